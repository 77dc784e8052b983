"""Where an agent's servers are: every address of every name that it was given; the way there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from isthmus.net.connect import Address
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_proxies import ProxyRules
from isthmus.net.srv import srv_targets
from isthmus.net.through_proxy import connect_through
from isthmus.programs.agent.settings import is_srv_name
from isthmus.values import HostPort

#: The family of an address that is a name, which a proxy looks up.
_BY_NAME = int(socket.AF_UNSPEC)

#: A socket address and the name that its certificate must carry.
Place = tuple[Address, str]


class Places:
    """Finds the addresses behind names, again and again."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        resolver: Resolver,
        *,
        hosts: Sequence[str],
        port: int,
        proxies: ProxyRules,
        server_name: str = "",
        unresolved: Callable[[str, str], None],
    ) -> None:
        """``unresolved(host, reason)`` hears what does not resolve now.

        ``server_name`` is what every server's certificate must carry; empty means the host.
        """
        self._loop = loop
        self._poller = poller
        self._resolver = resolver
        self._hosts = tuple(hosts)
        self._port = port
        self._proxies = proxies
        self._server_name = server_name
        self._unresolved = unresolved
        self._known: dict[str, list[Place]] = {}

    async def find(self) -> list[Place]:
        """Every address of every host; of those that do not resolve now, what was known before."""
        for host in self._hosts:
            try:
                self._known[host] = await self._find_one(host)
            except OSError as exc:
                self._unresolved(host, str(exc))
            except Exception as exc:  # one name must not end the links to the others
                self._unresolved(host, repr(exc))
        return list(dict.fromkeys(place for found in self._known.values() for place in found))

    async def _find_one(self, host: str) -> list[Place]:
        targets = await srv_targets(host) if is_srv_name(host) else [HostPort(host, self._port)]
        places: list[Place] = []
        for target in targets:
            name = self._server_name or target.host
            if self._proxies.proxy_for(target.host, target.port) is not None:
                # The proxy looks the name up: we perhaps cannot, and need not.
                places.append(((_BY_NAME, (target.host, target.port)), name))
            else:
                found = await self._resolver.addresses(target)
                places += [(address, name) for address in found]
        return places

    def through(self, place: Place) -> Callable[[], Awaitable[socket.socket]] | None:
        """The way to a place that is behind a proxy; None if none is."""
        family, address = place[0]
        if family != _BY_NAME:
            return None
        target = HostPort(address[0], address[1])
        proxy = self._proxies.proxy_for(target.host, target.port)
        assert proxy is not None  # or it would have been resolved
        return partial(connect_through, self._loop, self._poller, self._resolver, proxy, target)
