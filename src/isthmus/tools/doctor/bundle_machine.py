"""What a support bundle has of the machine: versions, limits, network, some of its sysctls.

Everything is read; programs are run with a deadline and change nothing.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from isthmus import __version__
from isthmus.net.files import MOST_BYTES, read_part
from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.commands import run
from isthmus.settings.shown import blanked

_COMMAND_S = 10.0
#: Of the environment, only these: what is not named is not written, whatever it is called.
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
# iptables-save loads the kernel's tables if they are not there; then there is nothing to save.
_TABLES = {"ip_tables_names": "iptables-save", "ip6_tables_names": "ip6tables-save"}


class MissingError(Exception):
    """A part of the bundle is not to be had; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the bundle, and how to get its text; ``get`` raises MissingError."""

    name: str
    get: Callable[[], str]


def machine_parts(environ: Mapping[str, str]) -> Iterator[Part]:
    """Everything of this machine."""
    yield Part("versions.json", _versions)
    yield Part("machine/environment.txt", partial(_environment, environ))
    yield Part("machine/limits.json", _limits)
    yield Part("machine/sysctls.txt", _sysctls)
    yield Part("machine/resolv.conf", partial(read, Path("/etc/resolv.conf")))
    for name, argv in _COMMANDS.items():
        yield Part(name, partial(_run, argv))
    for file, program in _TABLES.items():
        yield Part(f"machine/{program}.txt", partial(_tables, file, program))


def _versions() -> str:
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
    # A proxy's password may be too short, or its URL too wrong, to be found as a secret later.
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
        MissingError: it cannot be read.
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
        raise MissingError(f"no tables of the old kind to be seen: {error.strerror}") from error
    if not used.strip():
        raise MissingError("the kernel has no such tables loaded")
    return _run((program,))
