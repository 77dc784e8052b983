"""The commands of a lab: what is filled in, and where the programs that they start will answer.

A placeholder is ``{name}``: the lab's directory, its certificates, its hosts' addresses; anything
else with braces, JSON for one, is left alone. Where they may stand is said by reading.py, which
refuses those that nobody would fill in. A health or admin port is found in the words alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from isthmus.lab.topology import Topology
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.settings.options import Option, options_of

if TYPE_CHECKING:
    from isthmus.tools.pki.making import PkiFiles  # cryptography is slow to import

Kind = Literal[
    "server", "agent", "sni-router", "socks5-proxy", "https-proxy", "apiserver-proxy", ""
]

# What a program bound to all addresses is asked at.
_ALL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}

#: The files of the lab's own PKI: fields of isthmus.tools.pki.making.PkiFiles.
PKI_FILES = (
    "ca_cert",
    "ca_key",
    "client_ca_cert",
    "client_ca_key",
    "server_cert",
    "server_key",
    "agent_cert",
    "agent_key",
    "client_cert",
    "client_key",
)
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_.-]*)\}")


class _Port(NamedTuple):
    """The settings that say where one port is, by their attributes; ``cert`` makes it HTTPS."""

    host: str
    port: str
    cert: str = ""


class _Program(NamedTuple):
    settings: type[object]
    health: _Port = _Port("health_bind_address", "health_port")
    admin: _Port = _Port("admin_bind_address", "admin_port", "admin_cert")
    ready_path: str = "/readyz"


# A server without agents is alive but not ready, and agents come later.
_PROGRAMS: dict[Kind, _Program] = {
    "server": _Program(settings=ServerSettings, ready_path="/healthz"),
    "agent": _Program(
        settings=AgentSettings,
        health=_Port("health_server_host", "health_server_port"),
        admin=_Port("admin_bind_address", "admin_server_port", "admin_cert"),
    ),
    "sni-router": _Program(settings=SniRouterSettings),
    "socks5-proxy": _Program(settings=Socks5ProxySettings),
    "https-proxy": _Program(settings=HttpsProxySettings),
    "apiserver-proxy": _Program(settings=ApiserverProxySettings),
}


def kind(command: Sequence[str]) -> Kind:
    """Which of our programs it is; empty for any other."""
    for one in _PROGRAMS:
        if tuple(command[:2]) == ("isthmus", one):
            return one
    return ""


def ready_url(command: Sequence[str]) -> str:
    """What answers 200 once the program is up; empty when nobody can know.

    Placeholders of the command stay in it.
    """
    program = _PROGRAMS.get(kind(command))
    base = _url(program.settings, program.health, command) if program else ""
    return f"{base}{program.ready_path}" if program and base else ""


def admin_url(command: Sequence[str]) -> str:
    """Where the admin port is, without a path; empty when nobody can know."""
    program = _PROGRAMS.get(kind(command))
    return _url(program.settings, program.admin, command) if program else ""


def _url(settings: type[object], where: _Port, command: Sequence[str]) -> str:
    declared = {one.attribute: one for one in options_of(settings)}
    host = _given(declared[where.host], command)
    port = _given(declared[where.port], command)
    if port == "0":
        return ""  # any free one
    host = _ALL_ADDRESSES.get(host, host)
    scheme = "https" if where.cert and _given(declared[where.cert], command) else "http"
    bare = ":" in host or host.endswith("address6}")
    return f"{scheme}://[{host}]:{port}" if bare else f"{scheme}://{host}:{port}"


def _given(option: Option, command: Sequence[str]) -> str:
    """The last value of a flag, as ``--flag=value`` or ``--flag value``, or else its default."""
    found = str(option.default)
    names = [f"--{flag}" for flag in (option.flag, *option.aliases)]
    for word, after in zip(command, (*command[1:], ""), strict=True):
        flag, equals, value = word.partition("=")
        if flag in names:
            found = value if equals else after
    return found


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put the values in; a placeholder without one stays as it is."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def unknown(text: str, names: Collection[str]) -> list[str]:
    """The names of the placeholders in the text that are none of these, each once."""
    found = dict.fromkeys(_PLACEHOLDER.findall(text))
    return [name for name in found if name not in names]


def addresses(topology: Topology) -> dict[str, str]:
    """``HOST.address`` and ``HOST.address6``: the first of each kind that a host has."""
    found: dict[str, str] = {}
    for host in topology.hosts:
        for address in host.addresses:
            kind = "address" if address.version == 4 else "address6"
            found.setdefault(f"{host.name}.{kind}", str(address))
    return found


def known(topology: Topology) -> frozenset[str]:
    """The names of all placeholders of a topology."""
    return frozenset({"dir", "name", "python", *PKI_FILES, *addresses(topology)})


def values(topology: Topology, *, directory: str, files: PkiFiles) -> dict[str, str]:
    """What is filled in: ``directory`` is the lab's own, ``files`` are its certificates."""
    return {
        "dir": directory,
        "name": topology.name,
        "python": sys.executable,
        **{name: str(getattr(files, name)) for name in PKI_FILES},
        **addresses(topology),
    }
