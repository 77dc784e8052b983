"""Making the kubeconfig of a kubelet that is to join through its agent: files read and checked.

What it looks like is manifests/kubeconfig.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from isthmus.dial.rules_tokens import MOST_CHARS, take_token
from isthmus.errors import ConfigError
from isthmus.manifests.kubeconfig import Credentials, FileRef, kubeconfig
from isthmus.net.certificates import TlsFiles, check_files
from isthmus.values import HostPort, is_address

#: Names that kube-apiserver's certificate has in every cluster, the shortest first.
_USUAL = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
_LABELS = ("--client-cert", "--client-key", "--ca-cert")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigInput:
    """What was asked for; an empty text means not given."""

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
    """Write a kubeconfig; with a sentence to warn, or "".

    Raises:
        ConfigError: a file, certificate or token is wrong, in one sentence.
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
        f" in the one that it writes: better have {asked.at.host} in kube-apiserver's certificate"
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
            "who is the kubelet? give --token-file, --token-id with --token-secret-file, or"
            " --client-cert with --client-key"
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


def _credentials(asked: KubeconfigInput, now: datetime) -> Credentials:
    if asked.client_cert:
        return Credentials(
            certificate=_file(asked.client_cert, asked.by_path),
            key=_file(asked.client_key, asked.by_path),
        )
    if asked.token_file:
        token = _token("--token-file", asked.token_file, "", now)
        if asked.by_path:
            return Credentials(token_file=_absolute(asked.token_file))
        return Credentials(token=token)
    prefix = f"{asked.token_id}."
    return Credentials(token=_token("--token-secret-file", asked.token_secret_file, prefix, now))


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
        raise ConfigError(f"{flag} {path}: {(exc.strerror or str(exc)).lower()}") from exc


def _file(path: str, by_path: bool) -> FileRef:
    return FileRef(_absolute(path), None if by_path else Path(path).read_bytes())


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _name_for(asked: KubeconfigInput, now: datetime) -> str:
    """The name to ask for: none where kube-apiserver's certificate has the address."""
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
