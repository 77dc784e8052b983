"""Write the kubeconfig of a kubelet that joins through its agent; reads and checks its files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isthmus.dial.rules_tokens import MOST_CHARS, take_token
from isthmus.errors import ConfigError, unreadable
from isthmus.net.certificates import TlsFiles, check_files
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort, is_address

#: Names that kube-apiserver's certificate has in every cluster, the shortest first.
_USUAL = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
_LABELS = ("--client-cert", "--client-key", "--ca-cert")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigInput:
    """The flags of the command; an empty text means not given."""

    at: HostPort
    ca_cert: str
    by_path: bool = False
    tls_server_name: str = ""
    apiserver_cert: str = ""
    token_file: str = ""
    token_id: str = ""
    token_secret_file: str = ""
    client_cert: str = ""
    client_key: str = ""


def make_kubeconfig(asked: KubeconfigInput, *, now: datetime | None = None) -> tuple[str, str]:
    """Make a kubeconfig; the second value is a warning or "".

    Raises:
        ConfigError: a file, certificate or token is wrong.
    """
    now = now or datetime.now(UTC)
    _check_choice(asked)
    files = TlsFiles(asked.client_cert, asked.client_key, asked.ca_cert, labels=_LABELS)
    check_files(files, purpose="client", now=now.timestamp())
    name = asked.tls_server_name or _name_for(asked, now)
    text = kubeconfig(
        asked.at,
        ca=_file(asked.ca_cert, asked.by_path),
        credentials=_credentials(asked, now),
        server_name=name,
    )
    if not name:
        return text, ""
    return text, (
        f"tls-server-name is {name}, and a kubelet that joins by a bootstrap kubeconfig forgets it"
        f" in the one that it writes: add {asked.at.host} to kube-apiserver's certificate instead"
    )


def _check_choice(asked: KubeconfigInput) -> None:
    if bool(asked.token_id) != bool(asked.token_secret_file):
        raise ConfigError("--token-id and --token-secret-file belong together")
    given = [
        flag
        for flag, value in (
            ("--token-file", asked.token_file),
            ("--token-id", asked.token_id),
            ("--client-cert", asked.client_cert or asked.client_key),
        )
        if value
    ]
    if not given:
        raise ConfigError(
            "no credentials for the kubelet: give --token-file, --token-id with"
            " --token-secret-file, or --client-cert with --client-key"
        )
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other")
    if asked.token_id and asked.by_path:
        raise ConfigError("--by-path needs --token-file: a token in two parts is in no file")
    if not asked.ca_cert:
        raise ConfigError(
            "--ca-cert is missing: the kubelet must know which kube-apiserver to trust"
        )
    if asked.tls_server_name and asked.apiserver_cert:
        raise ConfigError("--tls-server-name and --apiserver-cert exclude each other")


def _credentials(asked: KubeconfigInput, now: datetime) -> KubeletCredentials:
    if asked.client_cert:
        return KubeletCredentials(
            certificate=_file(asked.client_cert, asked.by_path),
            key=_file(asked.client_key, asked.by_path),
        )
    if asked.token_file:
        token = _token("--token-file", asked.token_file, "", now)
        if asked.by_path:
            return KubeletCredentials(token_file=_absolute(asked.token_file))
        return KubeletCredentials(token=token)
    prefix = f"{asked.token_id}."
    return KubeletCredentials(
        token=_token("--token-secret-file", asked.token_secret_file, prefix, now)
    )


def _token(flag: str, path: str, prefix: str, now: datetime) -> str:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(MOST_CHARS + 100)
        return take_token(prefix + text.strip() if prefix else text, now=now)
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{flag} {path}: a token is one word of ASCII") from exc
    except ValueError as exc:
        raise ConfigError(f"{flag} {path}: {exc}") from exc
    except OSError as exc:
        raise unreadable(f"{flag} {path}", exc) from exc


def _file(path: str, by_path: bool) -> FileRef:
    return FileRef(_absolute(path), None if by_path else Path(path).read_bytes())


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _name_for(asked: KubeconfigInput, now: datetime) -> str:
    """The name to ask for; none if kube-apiserver's certificate has the address."""
    if not asked.apiserver_cert:
        return ""
    from isthmus.tools.pki.show import show

    info = show([asked.apiserver_cert], now=now)[0]
    where = f"--apiserver-cert {asked.apiserver_cert}"
    if info.not_after <= now:
        raise ConfigError(f"{where}: certificate expired on {info.not_after:%Y-%m-%d}")
    if asked.at.host in info.names:
        return ""
    names = [name for name in info.names if not is_address(name) and "*" not in name]
    if not names:
        raise ConfigError(f"{where}: it has neither {asked.at.host} nor any DNS name")
    return next((name for name in _USUAL if name in names), names[0])


_CLUSTER, _USER, _CONTEXT = "control-plane", "kubelet-bootstrap", "kubelet-bootstrap@control-plane"


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file that a kubeconfig names, or embeds: then ``content`` is all of it."""

    path: str
    content: bytes | None = None

    def to_fields(self, key: str) -> dict[str, str]:
        """The key with the path, or with ``-data`` and the content."""
        if self.content is None:
            return {key: self.path}
        return {f"{key}-data": base64.b64encode(self.content).decode()}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletCredentials:
    """The kubelet's credentials: a token or its file, or a certificate with its key."""

    token: str = field(default="", repr=False)
    token_file: str = ""
    certificate: FileRef | None = None
    key: FileRef | None = None

    def to_user(self) -> Mapping[str, Any]:
        """As in ``users[].user``."""
        found: dict[str, Any] = {}
        if self.certificate is not None and self.key is not None:
            found |= self.certificate.to_fields("client-certificate")
            found |= self.key.to_fields("client-key")
        if self.token:
            found["token"] = self.token
        if self.token_file:
            found["tokenFile"] = self.token_file
        return found


def kubeconfig(
    at: HostPort, *, ca: FileRef, credentials: KubeletCredentials, server_name: str = ""
) -> str:
    """Write a kubeconfig with one context, which is the current one."""
    cluster = {"server": f"https://{at}", **ca.to_fields("certificate-authority")}
    if server_name:
        cluster["tls-server-name"] = server_name
    context = {"cluster": _CLUSTER, "user": _USER}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _CLUSTER, "cluster": cluster}],
        "users": [{"name": _USER, "user": dict(credentials.to_user())}],
        "contexts": [{"name": _CONTEXT, "context": context}],
        "current-context": _CONTEXT,
    }
    return to_yaml([document])
