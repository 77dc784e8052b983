"""Resolvers that find of a name what may be reached, and nothing else.

``PermittedOnly`` is the server's, for what nodes may reach; ``EndpointsOnly`` the agent's, for what
it may dial at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from isthmus.core.destinations import Destinations
from isthmus.core.endpoint_lists import EndpointLists, Refusal
from isthmus.errors import DialFailure
from isthmus.net.connect import Address, Failed
from isthmus.net.resolver import Found, Resolver
from isthmus.values import HostPort

MOST_WAITING = 4096


class PermittedOnly(Resolver):
    """Finds every address of a listed name, and of any other those that are listed.

    What was looked at here is what is connected to: a second look could get another answer. That a
    name without any is denied, and nothing else, is all that is told of it: neither what it
    resolves to nor whether there is such a name.

    However many ask for a listed name at the same time, the system is asked once. Names that are
    not listed are the nodes' to choose, those of slow name servers included. They are looked up one
    after the other: the loop has two threads for lookups (libuv gives slow work half of its four),
    and one is left for everybody else. Whoever gives up waits no longer, so that asking and taking
    back fills nothing.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        destinations: Destinations,
        aliases: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(loop, aliases)
        self._destinations = destinations
        self._busy = False
        self._waiting: dict[Found, tuple[HostPort, Failed]] = {}  # the oldest first
        self._asked: dict[HostPort, dict[Found, Failed]] = {}  # of names that are listed

    def lookup(self, target: HostPort, found: Found, failed: Failed) -> None:
        """See Resolver; a name with no address that is listed is denied."""
        if target in self._asked:
            self._asked[target][found] = failed
        elif self._destinations.judge(target).by is not None:
            self._asked[target] = {found: failed}
            super().lookup(target, partial(self._found, target), partial(self._failed, target))
        elif not self._busy:
            self._look(target, found, failed)
        elif len(self._waiting) < MOST_WAITING:
            self._waiting[found] = target, failed
        else:
            failed(DialFailure.TOO_MANY, "too many lookups are waiting for the resolver")

    def forget(self, found: Found) -> None:
        """See Resolver."""
        self._waiting.pop(found, None)
        for waiting in self._asked.values():
            waiting.pop(found, None)

    def close(self) -> None:
        """Forget the lookups that are still waiting."""
        self._waiting.clear()
        self._asked.clear()
        super().close()

    def _found(self, target: HostPort, addresses: Sequence[Address]) -> None:
        for found in self._asked.pop(target, {}):
            found(addresses)

    def _failed(self, target: HostPort, failure: DialFailure, detail: str) -> None:
        for failed in self._asked.pop(target, {}).values():
            failed(failure, detail)

    def _look(self, target: HostPort, found: Found, failed: Failed) -> None:
        """Look up a name that is not listed."""

        def checked(addresses: Sequence[Address]) -> None:
            listed = [it for it in addresses if self._destinations.covering(it[1][0], target.port)]
            if listed:
                found(listed)
            else:
                failed(DialFailure.DENIED, "")
            self._look_next()

        def unknown(failure: DialFailure, detail: str) -> None:
            if failure is DialFailure.UNRESOLVED:
                failed(DialFailure.DENIED, "")
            else:
                failed(failure, detail)
            self._look_next()

        self._busy = True
        super().lookup(target, checked, unknown)

    def _look_next(self) -> None:
        self._busy = False
        if self._waiting:
            found = next(iter(self._waiting))
            target, failed = self._waiting.pop(found)
            self._look(target, found, failed)


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
        denied: Callable[[HostPort, Refusal], None],
    ) -> None:
        super().__init__(loop, aliases)
        self._lists = lists
        self._denied = denied

    def refuse(self, target: HostPort) -> Refusal | None:
        """Say why an address may not be dialed; see DirectDialer."""
        refusal = self._lists.refuse_address(target.host, target.port)
        if refusal is not None:
            self._denied(target, refusal)
        return refusal

    def lookup(self, target: HostPort, found: Found, failed: Failed) -> None:
        """See Resolver; a name that is denied, or has no address that is not, is refused."""
        refusal = self._lists.refuse_name(target.host, target.port)
        if refusal is not None:
            self._refuse(target, refusal, failed)
            return

        def checked(addresses: Sequence[Address]) -> None:
            refusals = [
                self._lists.refuse_found(target.host, it[1][0], target.port) for it in addresses
            ]
            good = [it for it, no in zip(addresses, refusals, strict=True) if no is None]
            first = next((no for no in refusals if no is not None), None)
            if good or first is None:
                found(good)
            else:
                self._refuse(target, first, failed)

        super().lookup(target, checked, failed)

    def _refuse(self, target: HostPort, refusal: Refusal, failed: Failed) -> None:
        self._denied(target, refusal)
        failed(DialFailure.DENIED, refusal.why)
