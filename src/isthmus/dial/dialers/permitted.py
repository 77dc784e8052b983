"""Resolvers that find of a name what may be reached, and nothing else.

``PermittedOnly`` is the server's, for what nodes may reach; ``EndpointsOnly`` the agent's, for what
it may dial at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence

from isthmus.dial.rules_destinations import Destinations
from isthmus.dial.rules_endpoint_lists import EndpointLists, Refusal
from isthmus.errors import DialFailure
from isthmus.net.connect import Address, Failed
from isthmus.net.resolver import Cancel, Found, Resolver, nothing
from isthmus.values import HostPort


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

    def lookup(
        self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
    ) -> Cancel:
        """See Resolver; a name that is denied, or has no address that is not, is refused."""
        refusal = self._lists.refuse_name(target.host, target.port)
        if refusal is not None:
            self._refuse(target, refusal, failed)
            return nothing

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

        return super().lookup(target, checked, failed, client)

    def _refuse(self, target: HostPort, refusal: Refusal, failed: Failed) -> None:
        self._denied(target, refusal)
        failed(DialFailure.DENIED, refusal.why)
