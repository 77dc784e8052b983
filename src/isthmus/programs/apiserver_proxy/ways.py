"""How the apiserver proxy reaches its upstreams: at which addresses, or through which HTTP proxy.

Names are looked up periodically and when an upstream cannot be reached, never per connection; while
DNS does not answer, the last addresses stay in use. An HTTP proxy resolves names itself. rules.py
decides which upstream is tried.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence

from isthmus.dial.dialers.direct import DirectDial, DirectDialer
from isthmus.errors import DialError, DialFailure, LinkError
from isthmus.net.connect import Address, Connecting, Dialing, Failed
from isthmus.net.connection_gate import endpoint
from isthmus.net.poller import Poller
from isthmus.net.resolver import Cancel, Found, Resolver, interleaved
from isthmus.net.rules_metadata import NO_METADATA
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.net.socket_end import SocketEnd
from isthmus.net.through_proxy import connect_through
from isthmus.programs.apiserver_proxy.planning import Prepared
from isthmus.values import HostPort, is_address
from isthmus.wire.proxy_protocol import IpPort

#: The earliest time after a lookup at which a failure may trigger another.
LOOK_AGAIN_S = 1.0

Reached = Callable[[SocketEnd], None]


class OtherResolver(Resolver):
    """Looks names up, and drops addresses to which no name may lead.

    Those are metadata addresses and addresses where this program listens, which would make a loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        aliases: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(loop, aliases)
        #: Where this program listens.
        self.ours: set[IpPort] = set()

    def lookup(
        self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
    ) -> Cancel:
        """See Resolver."""

        def others(addresses: Sequence[Address]) -> None:
            refusals = [self._refuse(target, one) for one in addresses]
            left = [one for one, no in zip(addresses, refusals, strict=True) if not no]
            if addresses and not left:
                failed(DialFailure.DENIED, refusals[0])
            else:
                found(left)

        return super().lookup(target, others, failed, client)

    def _refuse(self, target: HostPort, address: Address) -> str:
        """Why an address of a name is dropped; empty if it is not."""
        if endpoint(address[1]) in self.ours:
            return f"{target} leads back to this proxy"
        return NO_METADATA.refuse(address[1][0])


class Ways:
    """Dials upstreams as the adopted plan says; ``adopt`` may be called at any time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, poller: Poller, prepared: Prepared) -> None:
        self._loop = loop
        self._poller = poller
        self._resolver = OtherResolver(loop)
        self._direct = DirectDialer(loop, poller, self._resolver, metadata=None)
        self._addresses: dict[HostPort, Sequence[Address]] = {}
        self._looked_at: dict[HostPort, float] = {}
        self._turn = 0
        self._proxied: set[ProxiedDial] = set()
        self.adopt(prepared)

    def adopt(self, prepared: Prepared) -> None:
        """Use this plan's upstreams and its HTTP proxy from now on."""
        plan = prepared.plan
        self._prepared = prepared
        self._proxies = {at: plan.proxy_for(at) for at in plan.upstreams}
        for at in [at for at in self._addresses if at not in self._proxies]:
            del self._addresses[at]
        self._looked_at = {}

    def listens_at(self, address: IpPort) -> None:
        """Note where this program listens: no name may lead there."""
        self._resolver.ours.add(address)

    @property
    def names(self) -> list[HostPort]:
        """The upstreams whose names are looked up here."""
        return [
            at for at, proxy in self._proxies.items() if proxy is None and not is_address(at.host)
        ]

    def proxy_of(self, at: HostPort) -> ProxyAddress | None:
        """The HTTP proxy on the way to an upstream."""
        return self._proxies.get(at)

    def addresses_of(self, at: HostPort) -> tuple[str, ...]:
        """The known addresses of an upstream's name."""
        return tuple(str(address[0]) for _, address in self._addresses.get(at, ()))

    # Dialing.

    def dial(self, at: HostPort, *, timeout_s: float, reached: Reached, failed: Failed) -> Dialing:
        """Open a connection to an upstream; see DirectDialer.dial."""
        proxy = self._proxies.get(at)
        if proxy is not None:
            return ProxiedDial(self, at, timeout_s, reached, failed)
        known = self._in_turn(at)
        if not known:  # an address, or a name that was never found
            return self._direct.dial(at, timeout_s=timeout_s, reached=reached, failed=failed)
        dial = DirectDial(self._direct, timeout_s, reached, failed)
        dial.try_each(known)
        return dial

    async def connect(
        self, at: HostPort, timeout_s: float, *, for_peer: bool = True
    ) -> socket.socket:
        """Open a connection, to be closed by ``poller.close``; its edges may have passed.

        ``for_peer`` False is for a check, which must not fail because clients hold all connections.

        Raises:
            DialError: it cannot be reached.
        """
        proxy = self._proxies.get(at)
        if proxy is not None:
            context = self._prepared.proxy_context
            try:
                return await connect_through(
                    self._poller,
                    self._resolver,
                    proxy,
                    at,
                    context=None if context is None else context.current,
                    timeout_s=timeout_s,
                    for_peer=for_peer,
                )
            except LinkError as exc:
                raise DialError(DialFailure.UNREACHABLE, at, str(exc)) from exc
        addresses = self._in_turn(at)
        if not addresses:
            try:
                addresses = await self._resolver.addresses(at)
            except OSError as exc:
                raise DialError(DialFailure.UNRESOLVED, at, str(exc)) from exc
        return await self._connect(at, addresses, timeout_s, for_peer)

    async def _connect(
        self, at: HostPort, addresses: Sequence[Address], timeout_s: float, for_peer: bool
    ) -> socket.socket:
        answer: asyncio.Future[socket.socket] = self._loop.create_future()

        def connected(sock: socket.socket, events: int) -> None:
            if answer.done():
                self._poller.close(sock)
            else:
                answer.set_result(sock)

        def failed(failure: DialFailure, detail: str) -> None:
            if not answer.done():
                answer.set_exception(DialError(failure, at, detail))

        attempt = Connecting(
            self._loop, self._poller, addresses, timeout_s=timeout_s, connected=connected,
            failed=failed, for_peer=for_peer,
        )  # fmt: skip
        try:
            return await answer
        except asyncio.CancelledError:
            attempt.cancel()
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._poller.close(answer.result())
            raise

    def _in_turn(self, at: HostPort) -> Sequence[Address]:
        """Its known addresses; those of one family take turns to be first.

        The family that the system prefers stays first: the other may be unreachable.
        """
        known = self._addresses.get(at, ())
        if len(known) < 2:
            return known
        self._turn += 1
        turned: list[Address] = []
        for family in dict.fromkeys(address[0] for address in known):
            alike = [address for address in known if address[0] == family]
            first = self._turn % len(alike)
            turned += [*alike[first:], *alike[:first]]
        return interleaved(turned)

    # Names.

    async def look_up(self, at: HostPort) -> str:
        """Look a name up now; the error, or an empty text."""
        self._looked_at[at] = self._loop.time()
        try:
            found = await self._resolver.addresses(at)
        except OSError as exc:
            return str(exc)
        if at in self._proxies and found:
            self._addresses[at] = found
        return ""

    async def look_all_up(self, *, older_than_s: float = 0.0) -> dict[HostPort, str]:
        """Look up every name whose last lookup is this long ago; the errors."""
        now = self._loop.time()
        due = [
            at for at in self.names if now - self._looked_at.get(at, float("-inf")) >= older_than_s
        ]
        said = await asyncio.gather(*map(self.look_up, due))
        return {at: why for at, why in zip(due, said, strict=True) if why}

    def close(self) -> None:
        """Cancel all pending dials."""
        for dial in list(self._proxied):
            dial.cancel()
        self._resolver.close()


class ProxiedDial:
    """A dial through an HTTP proxy; calls one of two callbacks once, unless cancelled."""

    def __init__(
        self, ways: Ways, at: HostPort, timeout_s: float, reached: Reached, failed: Failed
    ) -> None:
        self._ways = ways
        self._at = at
        self._reached, self._failed = reached, failed
        ways._proxied.add(self)
        self._task = ways._loop.create_task(self._run(timeout_s), name=f"through-proxy:{at}")

    def cancel(self) -> None:
        """Cancel without a callback."""
        self._ways._proxied.discard(self)
        self._task.cancel()

    async def _run(self, timeout_s: float) -> None:
        try:
            sock = await self._ways.connect(self._at, timeout_s)
        except DialError as exc:
            self._ways._proxied.discard(self)
            self._failed(exc.reason, exc.detail)
            return
        self._ways._proxied.discard(self)
        end = ThroughProxy(sock, self._ways._poller)
        self._reached(end)
        end.read_again()  # earlier bytes have used up their edge


class ThroughProxy(SocketEnd):
    """The connection through an HTTP proxy; with TLS it is one of a pair of UNIX sockets.

    UNIX sockets cannot be reset. When the connection behind the pair breaks, the other socket is
    closed before it has read our end of stream, so that sequence counts as a reset.
    """

    __slots__ = ()

    def got_eof(self) -> None:
        """Tell a connection that broke from one that half-closed."""
        if not self._is_tcp and not self._eof_in and not self._eof_out and self._gone():
            self.broken()
        else:
            super().got_eof()

    def _gone(self) -> bool:
        # Edges do not tell: the last of them may not have arrived yet.
        now = select.poll()
        now.register(self.fd, 0)
        return bool(now.poll(0))
