"""Collecting the secrets that must not be in a bundle, from where programs have them.

They are read to be searched for and are written nowhere; what cannot be read, nobody can leak.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from isthmus.errors import IsthmusError
from isthmus.net.files import read_part
from isthmus.tools.doctor.files import placed
from isthmus.tools.doctor.layout import named_files
from isthmus.tools.doctor.patient import Patient

_MOST_BYTES = 1024 * 1024
_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|_pass$|^pass$|credential|private|cookie|key$", re.IGNORECASE
)
_POD_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_KEY_LINES = re.compile(r"^[A-Za-z0-9+/=]{24,}$", re.MULTILINE)
_USER_KEYS = ("token", "password", "client-key-data", "id-token", "refresh-token")
_USER_FILES = ("tokenFile", "client-key")


def known_secrets(
    patients: Iterable[Patient], environ: Mapping[str, str], tokens: Iterable[str] = ()
) -> set[str]:
    """Every secret that can be found: of files, of environments, and the tokens given."""
    found = {*tokens, *_of_environ(environ), *_of_file(Path(_POD_TOKEN))}
    for patient in patients:
        found.update(_of_environ(_environ(patient)))
        try:
            files = list(named_files(patient.settings))
        except IsthmusError:
            files = []
        for file in files:
            path = placed(patient, file.path)
            if file.flag == "--kubeconfig":
                found.update(_of_kubeconfig(path))
            elif file.secret:
                found.update(_of_file(path))
    return {secret for secret in found if secret.strip()}


def _environ(patient: Patient) -> Mapping[str, str]:
    pid = patient.running.pid if patient.running is not None else 0
    if not pid:
        return {}
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if "=" in entry)


def _of_environ(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if _SECRET_NAME.search(name) and not _names_a_file(name, value):
            yield value
        if "@" in value and ("://" in value or name.lower().endswith("_proxy")):
            yield from _of_url(value)
        if name.upper().endswith("_HEADERS"):  # as OTEL_EXPORTER_OTLP_HEADERS: a=b,c=d
            yield from _of_headers(value)


def _names_a_file(name: str, value: str) -> bool:
    return name.upper().endswith(("_FILE", "_PATH", "_DIR")) or os.path.exists(value)


def _of_url(text: str) -> Iterator[str]:
    # Not by a parser: a password may have signs in it that ought to have been written otherwise.
    user, colon, password = text.rpartition("@")[0].rpartition("://")[2].partition(":")
    secret = password if colon else user
    yield from {secret, unquote(secret)}


def _of_headers(text: str) -> Iterator[str]:
    for header in text.split(","):
        value = unquote(header.partition("=")[2]).strip()
        yield value
        yield value.rpartition(" ")[2]  # without its scheme, as Bearer


def _read(path: Path) -> str:
    try:
        return read_part(path, _MOST_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _of_file(path: Path) -> Iterator[str]:
    """A key line by line, as it may be wrapped differently elsewhere; anything else whole."""
    text = _read(path)
    if "PRIVATE KEY-----" in text:
        yield from _KEY_LINES.findall(text)
        yield "".join(_KEY_LINES.findall(text))
    else:
        yield text.strip()
        yield from (line.strip() for line in text.splitlines())


def _of_kubeconfig(path: Path) -> Iterator[str]:
    import yaml

    try:
        content = yaml.safe_load(_read(path))
        users = [each["user"] for each in content["users"]]
    except (yaml.YAMLError, LookupError, TypeError):
        return
    for user in users:
        if isinstance(user, dict):
            yield from _of_user(user, path.parent)


def _of_user(user: Mapping[str, Any], above: Path) -> Iterator[str]:
    for key in _USER_KEYS:
        if isinstance(user.get(key), str):
            yield user[key]
    for key in _USER_FILES:
        if isinstance(user.get(key), str):
            yield from _of_file(above / user[key])
    provider = user.get("auth-provider")
    config = provider.get("config") if isinstance(provider, dict) else None
    if isinstance(config, dict):
        yield from (value for value in config.values() if isinstance(value, str))
    command = user.get("exec")
    for variable in (command.get("env") or ()) if isinstance(command, dict) else ():
        if isinstance(variable, dict) and isinstance(variable.get("value"), str):
            yield variable["value"]
