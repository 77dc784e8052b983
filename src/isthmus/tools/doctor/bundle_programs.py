"""What a support bundle has of the programs: what their admin ports say, and /proc of them.

Files that they use are described; only certificates, which are public, and documents of
configuration are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.client.admin import AdminClient, AdminError
from isthmus.errors import ConfigError, IsthmusError
from isthmus.tools.doctor.bundle_machine import MissingError, Part, read
from isthmus.tools.doctor.files import placed
from isthmus.tools.doctor.layout import NamedFile, named_files
from isthmus.tools.doctor.patient import Patient
from isthmus.tools.doctor.places import socket_files
from isthmus.tools.pki.show import show

_TUNNELS = 1000
_PATHS = {
    "configz.json": "/configz",
    "snapshot.json": f"/snapshot?limit={_TUNNELS}",
    "history.json": "/history",
    "logs.json": "/logs",
    "metrics.txt": "/metrics",
    "readyz.txt": "/readyz?verbose",
    "livez.txt": "/livez?verbose",
}
_AUDIT = {"audit.json": "/audit"}
_OF_PROCESS = ("status", "limits", "cgroup", "net/sockstat", "net/netstat")


def program_parts(place: str, client: AdminClient, *, audit: bool) -> Iterator[Part]:
    """Everything that an admin port says, in the directory of that name."""
    for name, path in {**_PATHS, **(_AUDIT if audit else {})}.items():
        yield Part(f"{place}/{name}", partial(_asked, client, path))


def _asked(client: AdminClient, path: str) -> str:
    try:
        answer = client.ask(path)
    except AdminError as error:
        raise MissingError(str(error)) from error
    # A program that is not ready says why with a status of its own.
    if answer.status != 200 and not path.startswith(("/readyz", "/livez")):
        raise MissingError(f"{client.url}{path} answers {answer.status}: {answer.text[:200]}")
    return answer.text


def process_parts(place: str, patient: Patient) -> Iterator[Part]:
    """What /proc has of a running program, and what its files are."""
    pid = patient.running.pid if patient.running is not None else 0
    if pid:
        for name in _OF_PROCESS:
            path = Path(f"/proc/{pid}") / name
            yield Part(f"{place}/proc-{name.replace('/', '-')}.txt", partial(read, path))
        yield from _documents(place, patient)
    yield Part(f"{place}/files.json", partial(_files, patient))


def _documents(place: str, patient: Patient) -> Iterator[Part]:
    """The configuration that flags name, such as a policy."""
    try:
        files = list(named_files(patient.settings))
    except IsthmusError:
        return  # files.json says why
    for file in files:
        if file.document:
            name = f"{place}/document-{file.flag.removeprefix('--')}.txt"
            yield Part(name, partial(read, placed(patient, file.path)))


def _files(patient: Patient) -> str:
    if patient.running is not None and not patient.running.here:
        raise MissingError("the program is on another machine")
    try:
        files = list(named_files(patient.settings))
        sockets = [socket.path for socket in socket_files(patient.settings)]
    except IsthmusError as error:
        raise MissingError(str(error)) from error
    found = [_described(file, placed(patient, file.path)) for file in files]
    found += [_metadata("UNIX socket", placed(patient, path)) for path in sockets]
    return json.dumps(found, indent=2) + "\n"


def _described(file: NamedFile, path: Path) -> dict[str, Any]:
    found = _metadata(file.flag, path)
    if file.certificates:
        try:
            found["certificates"] = [info.to_json() for info in show([path])]
        except ConfigError as error:
            found["error"] = str(error)
    return found


def _metadata(flag: str, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"flag": flag, "path": str(path)}
    try:
        status = path.stat()
    except OSError as error:
        return {**found, "error": error.strerror}
    return {
        **found,
        "mode": f"{status.st_mode & 0o7777:04o}",
        "uid": status.st_uid,
        "gid": status.st_gid,
        "bytes": status.st_size,
        "modified": datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds"),
    }


def place_names(clients: Sequence[AdminClient], programs: dict[str, str]) -> dict[str, str]:
    """A directory for each admin port: the program's name, with a number where there are more."""
    found: dict[str, str] = {}
    for client in clients:
        base = f"programs/{programs.get(client.url, 'unknown')}"
        count = sum(1 for place in found.values() if place.partition("-at-")[0] == base)
        found[client.url] = base if not count else f"{base}-at-{count + 1}"
    return found
