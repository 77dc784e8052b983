"""Makes one link of an agent: finds servers' addresses, and links any server or one by its id."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from isthmus.errors import LinkError
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.links.agent_side import (
    AgentGreeting,
    LinkOpening,
    ServerHooks,
    ServerLink,
    connect,
    reach,
)
from isthmus.links.link import LinkTerms
from isthmus.links.resuming import ResumeAttempt, resume_by
from isthmus.links.talk import Incoming
from isthmus.logs import OncePer
from isthmus.net.connect import Address
from isthmus.net.resolver import Resolver, srv_targets
from isthmus.net.rules_proxies import ProxyRules
from isthmus.net.through_proxy import connect_through
from isthmus.programs.agent.settings import is_srv_name
from isthmus.values import HostPort, ServerId
from isthmus.wire.alpn import alpn_asking_for

_QUIET_S = 30.0
#: The family of an address that is a name, which a proxy resolves.
_BY_NAME = int(socket.AF_UNSPEC)
_log = logging.getLogger("isthmus.agent")

#: A socket address and the name that its certificate must carry.
ServerAddress = tuple[Address, str]


class ServerAddresses:
    """Resolves the names of an agent's servers repeatedly."""

    def __init__(
        self,
        terms: LinkTerms,
        resolver: Resolver,
        *,
        hosts: Sequence[str],
        port: int,
        proxies: ProxyRules,
        once: OncePer,
        server_name: str = "",
    ) -> None:
        """``server_name`` must be in every server's certificate; empty means the host."""
        self._terms = terms
        self._resolver = resolver
        self._hosts = tuple(hosts)
        self._port = port
        self._proxies = proxies
        self._once = once
        self._server_name = server_name
        self._known: dict[str, list[ServerAddress]] = {}

    async def find(self) -> list[ServerAddress]:
        """Every address of every host; for hosts that do not resolve now, the last known ones."""
        for host in self._hosts:
            try:
                self._known[host] = await self._find_one(host)
            except OSError as exc:
                self._unresolved(host, str(exc))
            except Exception as exc:  # one name must not end the links to the others
                self._unresolved(host, repr(exc))
        return list(dict.fromkeys(it for found in self._known.values() for it in found))

    def _unresolved(self, host: str, reason: str) -> None:
        _say(self._once, "cannot resolve server name", about=host, reason=reason)

    async def _find_one(self, host: str) -> list[ServerAddress]:
        targets = await srv_targets(host) if is_srv_name(host) else [HostPort(host, self._port)]
        addresses: list[ServerAddress] = []
        for target in targets:
            name = self._server_name or target.host
            if self._proxies.proxy_for(target.host, target.port) is not None:
                # The proxy resolves the name; this machine may be unable to.
                addresses.append(((_BY_NAME, (target.host, target.port)), name))
            else:
                found = await self._resolver.addresses(target)
                addresses += [(address, name) for address in found]
        return addresses

    def through(self, address: ServerAddress) -> Callable[[], Awaitable[socket.socket]] | None:
        """How to connect to an address through a proxy; None without a proxy."""
        family, (host, port, *_) = address[0]
        if family != _BY_NAME:
            return None
        target = HostPort(host, port)
        proxy = self._proxies.proxy_for(target.host, target.port)
        assert proxy is not None  # otherwise the name would have been resolved
        return partial(connect_through, self._terms.poller, self._resolver, proxy, target)


class Linking:
    """Makes links with common parameters, and logs failures at a limited rate."""

    def __init__(
        self,
        terms: LinkTerms,
        *,
        context: Callable[[], ssl.SSLContext],
        greeting: Callable[[], AgentGreeting],
        on_dial: Callable[[Incoming], None],
        metrics: ProgramMetrics,
        once: OncePer,
        alpn: Sequence[str] = (),
    ) -> None:
        """``alpn`` is the context's offer; without it no server can be requested by id."""
        self.loop: asyncio.AbstractEventLoop = terms.loop
        self._terms = terms
        self._context = context
        self._greeting = greeting
        self.on_dial = on_dial
        self.metrics = metrics
        self._once = once
        self._alpn = tuple(alpn)

    @property
    def can_ask(self) -> bool:
        """Whether a server can be requested by id."""
        return self._terms.only != "grpc" and bool(self._alpn)

    async def link(
        self,
        addresses: ServerAddresses,
        address: ServerAddress,
        asked: ServerId | None,
        hooks: ServerHooks,
    ) -> ServerLink | None:
        """Link the requested server, or any; None on failure."""
        alpn = self._alpn if asked is None else (alpn_asking_for(asked), *self._alpn)
        try:
            opening = LinkOpening(
                context=self._context(),
                server_hostname=address[1],
                greeting=self._greeting(),
                alpn=alpn,
            )
            through = addresses.through(address)
            return await connect(self._terms, hooks, opening, address[0], through=through)
        except LinkError as exc:
            self.metrics.link_failed(exc.stage)
            reason = str(exc)
        except Exception as exc:  # whatever it is, the other links continue and this one is retried
            reason = repr(exc)
        _say(
            self._once, "cannot link to the server", about=_shown(address[0], asked), reason=reason
        )
        return None

    async def resume(
        self, link: ServerLink, addresses: ServerAddresses, address: ServerAddress
    ) -> None:
        """Continue a link that lost its connection, at this address.

        Raises:
            NotResumedError: it does not.
            LinkError: no server can be reached there.
        """
        through = addresses.through(address)
        terms = self._terms
        if through is not None:
            sock = await through()
        else:
            sock = await reach(terms.loop, terms.poller, address[0])
        try:
            attempt = ResumeAttempt(
                terms,
                link,
                sock,
                context=self._context(),
                server_hostname=address[1],
                bearer_token=self._greeting().token,
            )
        except BaseException:
            terms.poller.close(sock)
            raise
        await resume_by(attempt)

    def say_not_resumed(self, link: ServerLink, address: ServerAddress, why: str) -> None:
        """Say now and then that a link could not go on."""
        _say(
            self._once, "cannot resume the link", about=_shown(address[0], link.server_id),
            reason=why,
        )  # fmt: skip


def _say(once: OncePer, message: str, *, about: str, reason: str) -> None:
    once.log(
        (message, about, reason), _QUIET_S, _log, logging.WARNING, message,
        server=about, reason=reason,
    )  # fmt: skip


def _shown(address: Address, asked: ServerId | None) -> str:
    shown = str(HostPort(address[1][0].partition("%")[0], address[1][1]))
    return shown if asked is None else f"{asked} by {shown}"
