"""Reads --kubeconfig, or the service account of the pod that the program runs in.

Every problem is one ConfigError that names the flag and the file and quotes no secret.
Imports lightkube: reached only through ``api.open_kube``.
"""

from __future__ import annotations

import binascii
import hashlib
import ssl
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import msgspec
import yaml
from lightkube.config.client_adapter import BearerTokenFileAuth, ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as LightkubeError
from lightkube.core.generic_client import GenericAsyncClient

from isthmus.errors import ConfigError, unreadable, why_unreadable
from isthmus.net.files import read_bytes
from isthmus.text.addresses import is_loopback

_EXEC_VERSIONS = frozenset(
    f"client.authentication.k8s.io/{version}" for version in ("v1alpha1", "v1beta1")
)

#: A kubeconfig with the certificates of a hundred clusters has 2 MB.
MOST_BYTES = 4 * 1024 * 1024
_MOST_TOKEN_BYTES = 256 * 1024
_NO_POD = "the default is the service account of the pod, but this program does not run in a pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach one API server, and with which credentials.

    ``proxy`` and ``server_name`` are kubeconfig's proxy-url and tls-server-name, which lightkube
    does not read; None if not set.
    """

    config: SingleConfig
    proxy: str | None = None
    server_name: str | None = None


class TokenFile(BearerTokenFileAuth):
    """Sends the token in a file, which is read again when the API refuses it.

    lightkube would block the event loop on a named pipe, or read a device to its end.
    """

    def _read_token(self) -> str:
        try:
            token = read_bytes(self._token_file, most_bytes=_MOST_TOKEN_BYTES).decode()
        except (OSError, UnicodeError) as exc:
            raise LightkubeError(str(unreadable(f"token file {self._token_file}", exc))) from exc
        return f"Bearer {token.strip()}"


def read_config(kubeconfig: str, server: str = "") -> Access:
    """Read the file, or the pod's service account if the name is empty.

    ``server`` is a URL that replaces the configured one, and works without any configuration.

    Raises:
        ConfigError: the configuration cannot be read, or contains an invalid value.
    """
    if server:
        _check_url(server, "--master")
    where = f"--kubeconfig {kubeconfig}" if kubeconfig else "--kubeconfig is empty"
    try:
        access = _found(kubeconfig, server)
    except Exception as exc:  # any parser error becomes one line for the user
        if kubeconfig and isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError):
            raise unreadable(where, exc) from exc
        raise ConfigError(f"{where}: {_explain(exc)}") from exc
    config = access.config
    _check(config, where)
    # lightkube asserts that there is a user (an API on loopback may need none), and resolves a
    # relative tokenFile against the working directory.
    user = config.user or User()
    if user.token_file:
        user = msgspec.structs.replace(user, token_file=str(config.abs_file(user.token_file)))
    return replace(access, config=config._replace(user=user))


def _found(kubeconfig: str, server: str) -> Access:
    if not kubeconfig and server:
        alone = KubeConfig.from_server(server).get()
        assert alone is not None  # it has exactly one context, the current one
        return Access(config=alone)
    access = _from_file(Path(kubeconfig).expanduser()) if kubeconfig else _in_cluster()
    if not server:
        return access
    cluster = msgspec.structs.replace(access.config.cluster, server=server)
    return replace(access, config=access.config._replace(cluster=cluster))


def connect(access: Access, kubeconfig: str, timeout: httpx2.Timeout) -> GenericAsyncClient:
    """Load certificates and keys, and create a client; nothing is sent.

    HTTPS_PROXY and NO_PROXY apply, but not for loopback, as in Go.

    Raises:
        ConfigError: a certificate, key or authentication method cannot be used.
    """
    host = urlsplit(access.config.cluster.server).hostname or ""
    params = ConnectionParams(timeout=timeout, trust_env=not is_loopback(host), proxy=access.proxy)
    user = access.config.user
    try:
        made = GenericAsyncClient(params, access.config)
        if user is not None and user.token_file:
            made._client.auth = TokenFile(user.token_file)  # lightkube has no parameter for it
        return made
    except Exception as exc:  # certificates fail in many ways: ssl, base64, files
        # lightkube writes keys to temporary files; delete them now, not at garbage collection.
        traceback.clear_frames(exc.__traceback__)
        raise ConfigError(f"--kubeconfig {kubeconfig or '(in-cluster)'}: {_explain(exc)}") from exc


def fingerprint(config: SingleConfig, kubeconfig: str) -> bytes:
    """Digest the file and every file it names, to detect changes."""
    digest = hashlib.sha256()
    user = config.user or User()
    named = (config.cluster.certificate_auth, user.client_cert, user.client_key)
    paths = [Path(kubeconfig).expanduser()] if kubeconfig else []
    paths += [Path(config.abs_file(name)) for name in named if name]
    for path in paths:
        try:
            content = read_bytes(path, most_bytes=MOST_BYTES)
            digest.update(hashlib.sha256(content).digest())
        except OSError:
            digest.update(b"missing")
    return digest.digest()


def _from_file(path: Path) -> Access:
    content = yaml.safe_load(read_bytes(path, most_bytes=MOST_BYTES))
    config = KubeConfig.from_dict(content, fname=path).get()
    if config is None:
        raise LightkubeError("no current-context")
    (cluster,) = (
        found["cluster"] for found in content["clusters"] if found["name"] == config.context.cluster
    )
    return Access(
        config=config,
        proxy=cluster.get("proxy-url") or None,
        server_name=cluster.get("tls-server-name") or None,
    )


def _in_cluster() -> Access:
    try:
        config = KubeConfig.from_service_account(SERVICE_ACCOUNT).get()
    except KeyError as exc:
        raise LightkubeError(f"{_NO_POD} (no {exc.args[0]} in the environment)") from exc
    except OSError as exc:
        raise LightkubeError(f"{_NO_POD} ({exc.filename}: {exc.strerror})") from exc
    except LightkubeError as exc:
        missing = exc.__cause__  # the exception's own text begins with the errno
        why = missing.filename if isinstance(missing, OSError) else exc
        raise LightkubeError(f"{_NO_POD} (no {why})") from exc
    assert config is not None  # it has exactly one context, the current one
    return Access(config=config)


def _check(config: SingleConfig, where: str) -> None:
    _check_url(config.cluster.server, where)
    user = config.user or User()
    for key, name in (
        ("certificate-authority", config.cluster.certificate_auth),
        ("client-certificate", user.client_cert),
        ("client-key", user.client_key),
        ("tokenFile", user.token_file),
    ):
        if name:
            _check_file(Path(config.abs_file(name)), f"{where}: {key} {name}")
    if user.exec and user.exec.apiVersion not in _EXEC_VERSIONS and not user.token:
        raise ConfigError(
            f"{where}: users[].user.exec of {user.exec.apiVersion} is not supported,"
            " use a certificate, token or tokenFile"
        )


def _check_file(path: Path, what: str) -> None:
    """Make sure that opening the file will not block and that it has an end."""
    try:
        read_bytes(path, most_bytes=MOST_BYTES)
    except OSError as exc:
        raise unreadable(what, exc) from exc


def _check_url(server: str, where: str) -> None:
    try:
        url = urlsplit(server)
        works = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # mismatched brackets, or an invalid port
        works = False
    if not works:
        raise ConfigError(f"{where}: {server!r} is not a server URL")


def _explain(exc: Exception) -> str:
    """Describe the error. A YAML error would quote the line, which may contain a token."""
    match exc:
        case yaml.MarkedYAMLError():
            line = f", line {exc.problem_mark.line + 1}" if exc.problem_mark else ""
            return f"not YAML: {exc.problem}{line}"
        case yaml.YAMLError() | UnicodeDecodeError():
            return "not YAML"
        case KeyError():
            return f"key {exc.args[0]!r} is missing"
        case TypeError() | AttributeError():
            return "not a kubeconfig"
        case msgspec.ValidationError():
            return f"not a kubeconfig: {exc}"
        case binascii.Error():
            return f"certificate or key data is not base64: {exc}"
        case ssl.SSLError():
            return f"a certificate or key cannot be used: {exc.reason or exc}"
        case OSError():
            return f"cannot be read: {why_unreadable(exc)}"
        case _:
            return str(exc) or type(exc).__name__
