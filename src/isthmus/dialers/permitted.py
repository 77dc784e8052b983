"""A resolver that finds of a name what nodes may reach, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from isthmus.core.destinations import Destinations
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
