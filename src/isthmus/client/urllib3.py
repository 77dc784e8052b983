"""urllib3 and requests through the connectivity service, for code that blocks.

with BlockingService("connectivity.yaml") as service:
    PoolManager(service, "cluster").request("GET", "https://10.0.0.5/healthz")

    session = requests.Session()
    session.mount("https://", requests_adapter(service, "cluster"))
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isthmus.client.blocking import BlockingService
from isthmus.client.context import NetworkContext
from isthmus.client.dialer import DIAL_TIMEOUT_S
from isthmus.errors import DialError, DialFailure
from isthmus.values import HostPort

try:
    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
    from urllib3.util import Timeout
except ImportError as exc:
    raise ImportError(
        "isthmus.client.urllib3 needs the package urllib3: pip install urllib3"
    ) from exc

if TYPE_CHECKING:
    from requests.adapters import HTTPAdapter

Connect = Callable[[HTTPConnection], socket.socket]


class PoolManager(urllib3.PoolManager):
    """A urllib3.PoolManager whose connections come from the service; ``options`` are urllib3's."""

    def __init__(
        self, service: BlockingService, context: NetworkContext | str, **options: Any
    ) -> None:
        super().__init__(**options)

        def connect(connection: HTTPConnection) -> socket.socket:
            return _connect(service, context, connection)

        plain, secured = _connection_classes(connect)

        class Pool(urllib3.HTTPConnectionPool):
            ConnectionCls = plain

        class SecuredPool(urllib3.HTTPSConnectionPool):
            ConnectionCls = secured

        self.pool_classes_by_scheme = {"http": Pool, "https": SecuredPool}


def _connection_classes(
    connect: Connect,
) -> tuple[type[HTTPConnection], type[HTTPSConnection]]:
    """Connections that ``connect`` opens: the one step that urllib3 lets callers replace."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return connect(self)

    class Secured(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return connect(self)

    return Plain, Secured


def _connect(
    service: BlockingService, context: NetworkContext | str, connection: HTTPConnection
) -> socket.socket:
    timeout = Timeout.resolve_default_timeout(connection.timeout)
    try:
        target = HostPort(connection.host.strip("[]"), connection.port or 0)
        sock = service.connect(context, target, DIAL_TIMEOUT_S if timeout is None else timeout)
    except DialError as exc:
        if exc.reason is DialFailure.TIMED_OUT:
            raise ConnectTimeoutError(connection, str(exc)) from exc
        if exc.reason is DialFailure.UNRESOLVED:
            error = socket.gaierror(socket.EAI_NONAME, str(exc))
            raise NameResolutionError(connection.host, connection, error) from exc
        raise NewConnectionError(connection, str(exc)) from exc
    except ValueError as exc:
        raise NewConnectionError(connection, str(exc)) from exc
    sock.settimeout(timeout)
    return sock


def requests_adapter(
    service: BlockingService, context: NetworkContext | str, **options: Any
) -> HTTPAdapter:
    """Make an adapter to mount in a requests.Session; ``options`` are HTTPAdapter's.

    Proxies of the session or the environment are ignored: they would bypass the service.
    """
    try:
        from requests.adapters import HTTPAdapter
    except ImportError as exc:
        raise ImportError(
            "requests_adapter needs the package requests: pip install requests"
        ) from exc

    class Adapter(HTTPAdapter):
        def init_poolmanager(
            self, connections: int, maxsize: int, block: bool = False, **pool_kwargs: Any
        ) -> None:
            self.poolmanager = PoolManager(
                service,
                context,
                num_pools=connections,
                maxsize=maxsize,
                block=block,
                **pool_kwargs,
            )

        def send(self, *args: Any, **kwargs: Any) -> Any:
            return super().send(*args, **{**kwargs, "proxies": {}})

    return Adapter(**options)
