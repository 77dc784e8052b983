"""The public library: connections to destinations in networks that a configuration defines.

    async with ConnectivityService.from_file("connectivity.yaml") as service:
        dialer = service.dialer(NetworkContext("cluster", user="alice"))
        async with await dialer.dial("tcp", "10.0.0.5:443") as connection:
            ...

Each adapter is a separate module that imports its library: isthmus.client.httpx, .aiohttp,
.urllib3, .kubernetes; isthmus.client.blocking is for code without an event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.client.context import NetworkContext
    from isthmus.client.dialer import Dialer
    from isthmus.client.service import ConnectivityService, UnknownNetworkError
    from isthmus.client.stream import Connection
    from isthmus.client.tls import TlsConnection, start_tls
    from isthmus.errors import ConfigError, DialError, DialFailure

__all__ = [
    "ConfigError",
    "Connection",
    "ConnectivityService",
    "DialError",
    "DialFailure",
    "Dialer",
    "NetworkContext",
    "TlsConnection",
    "UnknownNetworkError",
    "start_tls",
]

# Imported on first use: the terminal tools need isthmus.client.admin alone, and importing all of
# this would double their start-up time (0.13 s).
_WHERE = {
    "ConfigError": "isthmus.errors",
    "Connection": "isthmus.client.stream",
    "ConnectivityService": "isthmus.client.service",
    "DialError": "isthmus.errors",
    "DialFailure": "isthmus.errors",
    "Dialer": "isthmus.client.dialer",
    "NetworkContext": "isthmus.client.context",
    "TlsConnection": "isthmus.client.tls",
    "UnknownNetworkError": "isthmus.client.service",
    "start_tls": "isthmus.client.tls",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
