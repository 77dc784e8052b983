"""Make the dialer for a configured connection, and the TLS context it needs.

A dialer is imported when a network needs it: most programs use one protocol.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import Any

from isthmus.dial.dialers.through_server import ServerPlace
from isthmus.dial.rules_connectivity import (
    ClientTls,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.errors import ConfigError
from isthmus.net.connect import AnyDialer, Dialing, Failed, Reached
from isthmus.net.contexts import HotContext, TlsFiles, client_context
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import MetadataGuard
from isthmus.values import HostPort, RequestMetadata

#: How often files are checked while dials are made; a check is three stat calls.
LOOK_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class DialResources:
    """What all dialers of a service share, and the dials in progress."""

    loop: asyncio.AbstractEventLoop
    poller: Poller
    resolver: Resolver
    under_way: set[Failed] = field(default_factory=set)
    closed: bool = False


class Trust:
    """The TLS context of a connection, from the current content of its files.

    Nothing is read before the first connection, so that a network with missing files does not
    prevent others from working; the dial's error then names the file.
    """

    def __init__(self, files: ClientTls, alpn: tuple[str, ...]) -> None:
        self._files = TlsFiles(files.client_cert, files.client_key, files.ca_bundle)
        self._alpn = alpn
        self._hot: HotContext | None = None
        self._looked_at = 0.0

    def __call__(self) -> ssl.SSLContext:
        """The context for a new connection.

        Raises:
            ConfigError: the files could never be used.
        """
        now = time.monotonic()
        if self._hot is None:
            self._hot = HotContext(self._files, self._build, purpose="client")
            self._looked_at = now
        elif now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._hot.check(time.time())
        return self._hot.current

    def _build(self, files: TlsFiles) -> ssl.SSLContext:
        return client_context(files, alpn=self._alpn)


class ServiceRoute:
    """How one network is reached: a dialer, and whether it sends the requester."""

    def __init__(self, network: NetworkConfig, ground: DialResources) -> None:
        self.network = network
        protocol = network.connection.protocol
        self._says = protocol not in (NetworkProtocol.DIRECT, NetworkProtocol.CUSTOM)
        self._dialer: Any = _dialer(network, ground)

    def __str__(self) -> str:
        return describe(self.network.connection)

    def dial(
        self,
        target: HostPort,
        *,
        timeout_s: float,
        reached: Reached,
        failed: Failed,
        asking: RequestMetadata,
    ) -> Dialing:
        """Open a connection; see DirectDialer."""
        said = {"asking": asking} if self._says else {}
        dialing: Dialing = self._dialer.dial(
            target, timeout_s=timeout_s, reached=reached, failed=failed, **said
        )
        return dialing

    def close(self) -> None:
        """Close connections that the protocol keeps for later dials."""
        close = getattr(self._dialer, "close", None)
        if close is not None:
            close()


def _dialer(network: NetworkConfig, ground: DialResources) -> AnyDialer:
    connection = network.connection
    loop, poller, resolver = ground.loop, ground.poller, ground.resolver
    match connection.protocol:
        case NetworkProtocol.DIRECT:
            from isthmus.dial.dialers.direct import DirectDialer

            return DirectDialer(loop, poller, resolver, metadata=MetadataGuard(network.cidrs))
        case NetworkProtocol.HTTP_CONNECT:
            from isthmus.dial.dialers.through_connect import ConnectDialer

            return ConnectDialer(loop, poller, resolver, _place(connection, ()))
        case NetworkProtocol.PACKET:
            from isthmus.dial.dialers.through_grpc import GrpcDialer

            return GrpcDialer(loop, poller, resolver, _place(connection, ("h2",)))
        case NetworkProtocol.PAYLOAD:
            from isthmus.dial.dialers.through_grpc import PayloadDialer

            return PayloadDialer(loop, poller, resolver, _place(connection, ("h2",)))
        case NetworkProtocol.CUSTOM:
            from isthmus.dial.dialers.custom import ForeignDialer, load

            return ForeignDialer(
                loop,
                poller,
                load(connection.dialer),
                name=connection.dialer,
                options=connection.options,
            )


def _place(connection: NetworkConnection, alpn: tuple[str, ...]) -> ServerPlace:
    tls = connection.tls
    try:
        return ServerPlace(
            uds=connection.uds,
            tcp=connection.tcp,
            context=Trust(tls, alpn) if tls is not None else None,
            server_hostname=tls.server_name if tls is not None else "",
        )
    except ValueError as exc:
        raise ConfigError(f"{connection.protocol.value}: {exc}") from exc


def describe(connection: NetworkConnection) -> str:
    """How a network is reached, for people."""
    if connection.protocol is NetworkProtocol.DIRECT:
        return "directly"
    if connection.protocol is NetworkProtocol.CUSTOM:
        return f"by the custom dialer {connection.dialer!r}"
    if connection.uds:
        return f"by {connection.protocol.value} at the UNIX socket {connection.uds}"
    tls = connection.tls
    how = "in the clear" if tls is None else "with TLS" if tls.client_cert else "with TLS, unnamed"
    return f"by {connection.protocol.value} at {connection.tcp} {how}"
