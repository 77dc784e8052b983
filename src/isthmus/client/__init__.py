"""The public library: connections to a destination in a network, as the configuration says.

    async with ConnectivityService.from_file("connectivity.yaml") as service:
        dialer = service.dialer(NetworkContext("cluster", user="alice"))
        async with await dialer.dial("tcp", "10.0.0.5:443") as connection:
            ...

Adapters are modules of their own, which import their library: isthmus.client.httpx, .aiohttp,
.urllib3, .kubernetes; isthmus.client.blocking is for code without an event loop.
"""

from isthmus.client.context import NetworkContext
from isthmus.client.dialer import Dialer
from isthmus.client.errors import UnknownNetworkError
from isthmus.client.service import ConnectivityService
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
