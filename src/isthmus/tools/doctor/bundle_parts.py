"""The parts of a support bundle: programs by their admin ports and /proc, and the machine.

Files of the programs are only described; the content is read of certificates, which are public,
and of configuration documents.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from isthmus import __version__
from isthmus.client.admin import AdminClient, AdminError
from isthmus.errors import ConfigError, IsthmusError
from isthmus.frame.layout import SettingsFile
from isthmus.frame.patient import Patient
from isthmus.net.files import MOST_BYTES, read_part
from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.commands import run
from isthmus.settings.options import blanked
from isthmus.tools.doctor.files import placed
from isthmus.tools.doctor.layout import layout_of, named_files
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


def program_parts(place: str, client: AdminClient, *, audit: bool) -> Iterator[BundlePart]:
    """Every answer of an admin port, in the directory ``place``."""
    for name, path in {**_PATHS, **(_AUDIT if audit else {})}.items():
        yield BundlePart(f"{place}/{name}", partial(_asked, client, path))


def fetched(parts: Iterable[BundlePart]) -> list[BundlePart]:
    """Get the parts of one program now; if the first gets no answer, the others are skipped."""
    found: list[BundlePart] = []
    dead: MissingError | None = None
    for part in parts:
        got = dead or _got(part)
        if not found and isinstance(got, MissingError) and _no_answer(got):
            dead = got
        found.append(BundlePart(part.name, partial(_given, got)))
    return found


def _got(part: BundlePart) -> str | MissingError:
    try:
        return part.get()
    except MissingError as error:
        return error


def _no_answer(error: MissingError) -> bool:
    return isinstance(error.__cause__, AdminError) and not error.__cause__.status


def _given(got: str | MissingError) -> str:
    if isinstance(got, MissingError):
        raise got
    return got


def _asked(client: AdminClient, path: str) -> str:
    try:
        answer = client.ask(path)
    except AdminError as error:
        raise MissingError(str(error)) from error
    # A program that is not ready gives the reason with another status.
    if answer.status != 200 and not path.startswith(("/readyz", "/livez")):
        raise MissingError(f"{client.url}{path} answers {answer.status}: {answer.text[:200]}")
    return answer.text


def process_parts(place: str, patient: Patient) -> Iterator[BundlePart]:
    """The files of /proc of a running program, and a description of the program's files."""
    pid = patient.running.pid if patient.running is not None else 0
    if pid:
        for name in _OF_PROCESS:
            path = Path(f"/proc/{pid}") / name
            yield BundlePart(f"{place}/proc-{name.replace('/', '-')}.txt", partial(read, path))
        yield from _documents(place, patient)
    yield BundlePart(f"{place}/files.json", partial(_files, patient))


def _documents(place: str, patient: Patient) -> Iterator[BundlePart]:
    """The configuration that flags name, such as a policy."""
    try:
        files = list(named_files(patient.settings))
    except IsthmusError:
        return  # files.json has the reason
    for file in files:
        if file.document:
            name = f"{place}/document-{file.flag.removeprefix('--')}.txt"
            yield BundlePart(name, partial(read, placed(patient, file.path)))


def _files(patient: Patient) -> str:
    if patient.running is not None and not patient.running.here:
        raise MissingError("the program is on another machine")
    try:
        files = list(named_files(patient.settings))
        sockets = [socket.path for socket in layout_of(patient.settings).socket_files()]
    except IsthmusError as error:
        raise MissingError(str(error)) from error
    found = [_described(file, placed(patient, file.path)) for file in files]
    found += [_metadata("UNIX socket", placed(patient, path)) for path in sockets]
    return json.dumps(found, indent=2) + "\n"


def _described(file: SettingsFile, path: Path) -> dict[str, Any]:
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
    """A directory for each admin port: the program's name, with a number if there are several.

    The directory of a pod has the pod's name, whether it answered or not.
    """
    found: dict[str, str] = {}
    for client in clients:
        if client.reached:
            found[client.url] = f"pods/{client.address.replace(':', '-')}"
            continue
        base = f"programs/{programs.get(client.url, 'unknown')}"
        count = sum(1 for place in found.values() if place.partition("-at-")[0] == base)
        found[client.url] = base if not count else f"{base}-at-{count + 1}"
    return found


_COMMAND_S = 10.0
#: The only environment variables in the bundle.
_VARIABLES = (
    "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy",
    "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "ISTHMUS_ADMIN", "PROXY_SERVER_ID",
    "PROXY_AGENT_ID", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_SYSCTLS = (
    "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter", "net/ipv4/conf/all/route_localnet",
    "net/ipv4/ip_local_port_range", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_keepalive_time", "net/core/somaxconn", "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_count", "net/bridge/bridge-nf-call-iptables",
    "fs/file-max", "fs/file-nr", "kernel/osrelease", "vm/overcommit_memory",
)  # fmt: skip
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "machine/addresses.json": ("ip", "-j", "address"),
    "machine/links.txt": ("ip", "-s", "-d", "link"),
    "machine/routes.json": ("ip", "-j", "route", "show", "table", "all"),
    "machine/routes6.json": ("ip", "-6", "-j", "route", "show", "table", "all"),
    "machine/rules.json": ("ip", "-j", "rule"),
    "machine/listeners.txt": ("ss", "-tlnp"),
    "machine/nftables.txt": ("nft", "list", "ruleset"),
}
# iptables-save would load the kernel's tables if they are missing; then there is nothing to save.
_TABLES = {"ip_tables_names": "iptables-save", "ip6_tables_names": "ip6tables-save"}


class MissingError(Exception):
    """A part of the bundle is not available; the message is the reason."""


@dataclass(frozen=True, slots=True)
class BundlePart:
    """A file of the bundle, and how to get its text; ``get`` raises MissingError."""

    name: str
    get: Callable[[], str]


def machine_parts(environ: Mapping[str, str]) -> Iterator[BundlePart]:
    """The parts about this machine."""
    yield BundlePart("versions.json", versions)
    yield BundlePart("machine/environment.txt", partial(_environment, environ))
    yield BundlePart("machine/limits.json", _limits)
    yield BundlePart("machine/sysctls.txt", _sysctls)
    yield BundlePart("machine/resolv.conf", partial(read, Path("/etc/resolv.conf")))
    for name, argv in _COMMANDS.items():
        yield BundlePart(name, partial(_run, argv))
    for file, program in _TABLES.items():
        yield BundlePart(f"machine/{program}.txt", partial(_tables, file, program))


def versions() -> str:
    """The versions of Isthmus, its dependencies and the system, as JSON."""
    names = sorted(_requirements())
    found = {
        "isthmus": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "openssl": ssl.OPENSSL_VERSION,
        "kernel": platform.release(),
        "system": f"{platform.system()} {platform.version()}",
        "machine": platform.machine(),
        "distribution": _distribution(),
        "libraries": {name: _version(name) for name in names},
    }
    return json.dumps(found, indent=2) + "\n"


def _requirements() -> set[str]:
    try:
        lines = metadata.requires("isthmus") or []
    except metadata.PackageNotFoundError:
        return set()
    plain = (line for line in lines if "extra ==" not in line)
    return {"".join(char if char.isalnum() or char in "-_." else " " for char in line).split()[0]
            for line in plain}  # fmt: skip


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return "unknown"


def _environment(environ: Mapping[str, str]) -> str:
    # Later steps miss a proxy's password that is too short, or in a malformed URL.
    shown = ((name, blanked(environ[name])) for name in _VARIABLES if name in environ)
    return "".join(f"{name}={value}\n" for name, value in shown)


def _limits() -> str:
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    found = {
        "limits": limits,
        "cpus": os.cpu_count(),
        "loadAverage": os.getloadavg(),
        "memory": _memory(),
        "uid": os.geteuid(),
    }
    return json.dumps(found, indent=2) + "\n"


def _memory() -> dict[str, str]:
    lines = read(Path("/proc/meminfo")).splitlines()
    pairs = (line.partition(":") for line in lines[:5])
    return {name: value.strip() for name, _, value in pairs}


def _sysctls() -> str:
    lines = []
    for name in _SYSCTLS:
        try:
            value = " ".join((Path("/proc/sys") / name).read_text().split())
        except OSError:
            continue
        lines.append(f"{name.replace('/', '.')} = {value}\n")
    return "".join(lines)


def read(path: Path) -> str:
    """Read a small file.

    Raises:
        MissingError: the file cannot be read.
    """
    try:
        return read_part(path, MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise MissingError(f"{path}: {error.strerror}") from error


def _run(argv: tuple[str, ...]) -> str:
    try:
        done = run(argv, timeout_s=_COMMAND_S)
    except ApplyError as error:
        raise MissingError(str(error)) from error
    if done.code:
        raise MissingError(f"{argv[0]}: {done.complaint[:200]}")
    return done.out


def _tables(file: str, program: str) -> str:
    try:
        used = (Path("/proc/thread-self/net") / file).read_text()
    except OSError as error:
        raise MissingError(f"cannot see legacy tables: {error.strerror}") from error
    if not used.strip():
        raise MissingError("the kernel has no such tables loaded")
    return _run((program,))
