"""The direct dialer: opens a TCP connection from this host, by address or by name.

Resolvers return only permitted addresses of a name: ``PermittedOnly`` is the
server's, for dials of nodes; ``EndpointsOnly`` the agent's, for its endpoint lists.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache

from isthmus.dial.settings_destinations import Destinations
from isthmus.dial.settings_endpoint_lists import EndpointLists, EndpointRefusal
from isthmus.errors import DialFailure
from isthmus.net.connect import SHORT_S, SPENT, Address, Connecting, Failed, late, literal
from isthmus.net.poller import Poller
from isthmus.net.resolver import Cancel, Found, Resolver, nothing
from isthmus.net.rules_metadata import NO_METADATA, MetadataGuard
from isthmus.net.socket_end import SocketEnd
from isthmus.values import HostPort, is_address

Reached = Callable[[SocketEnd], None]


def _nobody(*_: object) -> None:
    """Replace the callbacks of a finished dial."""


class DirectDial:
    """One pending dial; calls one of two callbacks once, unless cancelled."""

    __slots__ = (
        "_attempt",
        "_cancel_lookup",
        "_deadline",
        "_dialer",
        "_done",
        "_due",
        "_failed",
        "_reached",
        "_timeout_s",
    )

    def __init__(
        self, dialer: DirectDialer, timeout_s: float, reached: Reached, failed: Failed
    ) -> None:
        self._dialer = dialer
        self._timeout_s = timeout_s
        self._due = dialer.loop.time() + timeout_s
        self._reached = reached
        self._failed = failed
        self._attempt: Connecting | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._cancel_lookup: Cancel | None = None
        self._done = False

    def cancel(self) -> None:
        """Cancel, without a callback."""
        self._finish()
        if self._attempt is not None:
            self._attempt.cancel()

    def give_up(self, failure: DialFailure, detail: str) -> None:
        """Fail without an attempt."""
        self._fail(failure, detail)

    def look_up(self, target: HostPort, client: Hashable = "") -> None:
        """Resolve the name, within the total time limit."""
        cancel = self._dialer.resolver.lookup(target, self.found, self._fail, client)
        if self._attempt is None and not self._done:
            self._cancel_lookup = cancel
            self._deadline = self._dialer.loop.call_at(self._due, self._unresolved)

    def _unresolved(self) -> None:
        why = late(self._timeout_s, "no answer from the resolver in time")
        self._fail(DialFailure.TIMED_OUT, why)

    def found(self, addresses: Sequence[Address]) -> None:
        """Handle the resolver's answer, removing addresses that no name may resolve to."""
        guard = self._dialer.metadata
        if guard is not None and not self._done:
            refusals = [guard.refuse(it[1][0]) for it in addresses]
            if refusals and all(refusals):
                self._fail(DialFailure.DENIED, refusals[0])
                return
            addresses = [it for it, no in zip(addresses, refusals, strict=True) if not no]
        self.try_each(addresses)

    def try_each(self, addresses: Sequence[Address]) -> None:
        """Connect to one of the addresses within the remaining time."""
        if self._done:
            return  # a late answer of the resolver
        if self._deadline is not None:
            self._stop_lookup()
        self._attempt = Connecting(
            self._dialer.loop,
            self._dialer.poller,
            addresses,
            timeout_s=max(0.0, self._due - self._dialer.loop.time()),
            connected=self._connected,
            failed=self._not_connected,
        )

    def _connected(self, sock: socket.socket, events: int) -> None:
        reached = self._reached
        self._finish()
        end = SocketEnd(sock, self._dialer.poller)
        reached(end)
        if events:
            # Bytes and even the end of file may have arrived, and their edge went to the connecting
            # socket.
            end.on_events(events)

    def _not_connected(self, failure: DialFailure, detail: str) -> None:
        late_s = self._timeout_s if failure is DialFailure.TIMED_OUT else SHORT_S
        self._fail(failure, late(late_s, detail))

    def _fail(self, failure: DialFailure, detail: str) -> None:
        failed = self._failed
        self._finish()
        failed(failure, detail)

    def _finish(self) -> None:
        self._done = True
        # The callbacks refer to this object: without this, only garbage collection would free both.
        self._reached, self._failed = _nobody, _nobody
        if self._deadline is not None:
            self._stop_lookup()

    def _stop_lookup(self) -> None:
        assert self._deadline is not None and self._cancel_lookup is not None
        self._deadline.cancel()
        self._deadline = None
        cancel, self._cancel_lookup = self._cancel_lookup, None
        cancel()


class DirectDialer:
    """Dials targets from this process.

    ``refuse`` is called for addresses, which are not resolved: why one is not dialed, or None.
    ``metadata`` is called for those and for resolved addresses; None for a dialer whose
    ``refuse`` and resolver already check metadata addresses.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        resolver: Resolver,
        refuse: Callable[[HostPort], EndpointRefusal | None] | None = None,
        *,
        metadata: MetadataGuard | None = NO_METADATA,
    ) -> None:
        self.loop = loop
        self.poller = poller
        self.resolver = resolver
        self._refuse = refuse
        self.metadata = metadata

    def dial(
        self,
        target: HostPort,
        *,
        timeout_s: float,
        reached: Reached,
        failed: Failed,
        client: Hashable = "",
    ) -> DirectDial:
        """Open a connection; a name needs a lookup, an address does not.

        ``timeout_s`` is the total limit. The callbacks may be called before this returns.
        ``client`` is the requester, whose lookups are limited together.
        """
        dial = DirectDial(self, timeout_s, reached, failed)
        addresses = _literal(target.host, target.port)
        if timeout_s <= 0:
            dial.give_up(DialFailure.TIMED_OUT, SPENT)
        elif addresses is None:
            dial.look_up(target, client)
        elif self._refuse is not None and (refusal := self._refuse(target)) is not None:
            dial.give_up(DialFailure.DENIED, refusal.why)
        elif (
            (guard := self.metadata) is not None
            and guard.literals
            and (why := guard.refuse(target.host))
        ):
            dial.give_up(DialFailure.DENIED, why)
        else:
            dial.try_each(addresses)
        return dial


@lru_cache(maxsize=1024)
def _literal(host: str, port: int) -> tuple[Address] | None:
    """The address of a literal host, or None for a name."""
    return (literal(host, port),) if is_address(host) else None


class PermittedOnly(Resolver):
    """Resolves a listed name to all its addresses, and any other name to listed addresses only.

    Exactly the checked addresses are connected to: a second lookup could return others. A
    name without permitted addresses is denied, without revealing what it
    resolves to or whether it exists.

    Unlisted names are chosen by nodes, including names of slow name servers: the pending lookups of
    one client are limited (see Resolver).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        destinations: Destinations,
        aliases: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(loop, aliases)
        self._destinations = destinations

    def lookup(
        self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
    ) -> Cancel:
        """See Resolver; a name with no address that is listed is denied."""
        if self._destinations.judge(target).by is not None:
            return super().lookup(target, found, failed, client)

        def checked(addresses: Sequence[Address]) -> None:
            listed = [it for it in addresses if self._destinations.covering(it[1][0], target.port)]
            if listed:
                found(listed)
            else:
                failed(DialFailure.DENIED, "")

        def unknown(failure: DialFailure, detail: str) -> None:
            if failure is DialFailure.UNRESOLVED:
                failed(DialFailure.DENIED, "")
            else:
                failed(failure, detail)

        return super().lookup(target, checked, unknown, client)


class EndpointsOnly(Resolver):
    """Resolves a name to the addresses that an agent's lists allow.

    Exactly the checked addresses are connected to: a second lookup could return others.
    ``denied`` is called for every refusal, including addresses, which a dialer checks
    with ``refuse`` instead of a lookup.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lists: EndpointLists,
        aliases: Mapping[str, Sequence[str]] | None = None,
        *,
        denied: Callable[[HostPort, EndpointRefusal], None],
    ) -> None:
        super().__init__(loop, aliases)
        self._lists = lists
        self._denied = denied

    def refuse(self, target: HostPort) -> EndpointRefusal | None:
        """Say why an address may not be dialed; see DirectDialer."""
        refusal = self._lists.refuse_address(target.host, target.port)
        if refusal is not None:
            self._denied(target, refusal)
        return refusal

    def lookup(
        self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
    ) -> Cancel:
        """See Resolver; a name that is denied, or has no address that is not, is refused."""
        refusal = self._lists.refuse_name(target.host, target.port)
        if refusal is not None:
            self._refuse(target, refusal, failed)
            return nothing

        def checked(addresses: Sequence[Address]) -> None:
            refusals = [self._lists.refuse_found(target.host, *it[1][:2]) for it in addresses]
            good = [it for it, no in zip(addresses, refusals, strict=True) if no is None]
            first = next((no for no in refusals if no is not None), None)
            if good or first is None:
                found(good)
            else:
                self._refuse(target, first, failed)

        return super().lookup(target, checked, failed, client)

    def _refuse(self, target: HostPort, refusal: EndpointRefusal, failed: Failed) -> None:
        self._denied(target, refusal)
        failed(DialFailure.DENIED, refusal.why)
