"""Where a command's program will answer: the health and admin ports of those of Isthmus.

Pure: looks at the words only. Flags and their defaults are those that config/ declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.sidecar.settings_https import HttpsProxySettings
from isthmus.programs.sidecar.settings_socks5 import Socks5ProxySettings
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.options import Option, options_of

Kind = Literal[
    "server", "agent", "sni-router", "socks5-proxy", "https-proxy", "apiserver-proxy", ""
]


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
# What a program bound to all addresses is asked at.
_ALL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


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
