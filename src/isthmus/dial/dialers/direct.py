"""The direct dialer: opens a TCP connection from here, by address or by name.

Of a name the resolvers find what may be reached, and nothing else: ``PermittedOnly`` is the
server's, for what nodes may reach; ``EndpointsOnly`` the agent's, for what it may dial at all.
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
    """Stand in for callbacks of a dial that is over."""


class DirectDial:
    """One dial under way; tells once, by one of two callbacks, unless cancelled."""

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
        """Give up silently."""
        self._finish()
        if self._attempt is not None:
            self._attempt.cancel()

    def give_up(self, failure: DialFailure, detail: str) -> None:
        """Fail without a try."""
        self._fail(failure, detail)

    def look_up(self, target: HostPort, client: Hashable = "") -> None:
        """Ask the resolver; its time counts, too."""
        cancel = self._dialer.resolver.lookup(target, self.found, self._fail, client)
        if self._attempt is None and not self._done:
            self._cancel_lookup = cancel
            self._deadline = self._dialer.loop.call_at(self._due, self._unresolved)

    def _unresolved(self) -> None:
        why = late(self._timeout_s, "no answer from the resolver in time")
        self._fail(DialFailure.TIMED_OUT, why)

    def found(self, addresses: Sequence[Address]) -> None:
        """Take the resolver's answer, and leave out what no name may lead to."""
        guard = self._dialer.metadata
        if guard is not None and not self._done:
            refusals = [guard.refuse(it[1][0]) for it in addresses]
            if refusals and all(refusals):
                self._fail(DialFailure.DENIED, refusals[0])
                return
            addresses = [it for it, no in zip(addresses, refusals, strict=True) if not no]
        self.try_each(addresses)

    def try_each(self, addresses: Sequence[Address]) -> None:
        """Connect to one of the addresses, in the time that is left."""
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
            # Bytes and even the end may be here already, and their edge went to the connecting
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
        # Whoever is called back keeps us: without this, neither is freed until a collection.
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

    ``refuse`` is asked about addresses, which no resolver looks at: why one is not dialed, or None.
    ``metadata`` is asked about those and about what names resolve to; None is for a dialer whose
    ``refuse`` and resolver know of it.
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
        """Open a connection; a name costs a lookup, an address nothing.

        ``timeout_s`` is for all of it. The callbacks may come before this returns. ``client`` is
        for whom it is, whose lookups are bounded together.
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
    """Finds every address of a listed name, and of any other those that are listed.

    What was looked at here is what is connected to: a second look could get another answer. That a
    name without any is denied, and nothing else, is all that is told of it: neither what it
    resolves to nor whether there is such a name.

    Names that are not listed are the nodes' to choose, those of slow name servers included: what
    one client may have looked up at a time is bounded (see Resolver).
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
    """Finds of a name the addresses that an agent's lists let it dial.

    What was looked at here is what is connected to: a second look could get another answer.
    ``denied`` hears of everything that was refused, of an address too, which a dialer asks about
    instead of looking it up.
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
