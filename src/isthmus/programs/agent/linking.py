"""Making one link of an agent: by one address, to whoever is there or to a server by its id."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence

from isthmus.errors import LinkError
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.links.agent_side import Greeting, ServerLink, connect
from isthmus.links.talk import Incoming
from isthmus.logs import OncePer
from isthmus.net.connect import Address
from isthmus.net.poller import Poller
from isthmus.programs.agent.places import Place, Places
from isthmus.tunnel.budget import UNBOUNDED, Budget
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.values import HostPort, ServerId
from isthmus.wire.link import alpn_asking_for

_QUIET_S = 30.0
_log = logging.getLogger("isthmus.agent")


class Linking:
    """Makes links that are all alike, and says now and then why one could not be made."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        *,
        context: Callable[[], ssl.SSLContext],
        greeting: Callable[[], Greeting],
        on_dial: Callable[[Incoming], None],
        limits: Limits,
        metrics: ProgramMetrics,
        once: OncePer,
        packets: PacketCounts,
        only: str = "auto",
        alpn: Sequence[str] = (),
        budget: Budget = UNBOUNDED,
    ) -> None:
        """``alpn`` is what the context offers; without it no server is asked for by its id."""
        self._loop = loop
        self._poller = poller
        self._context = context
        self._greeting = greeting
        self._on_dial = on_dial
        self._limits = limits
        self._metrics = metrics
        self._once = once
        self._packets = packets
        self._only = only
        self._alpn = tuple(alpn)
        self._budget = budget

    @property
    def can_ask(self) -> bool:
        """A server can be asked for by its id."""
        return self._only != "grpc" and bool(self._alpn)

    async def link(
        self,
        places: Places,
        place: Place,
        asked: ServerId | None,
        *,
        claim: Callable[[ServerLink], bool],
        on_membership: Callable[[], None],
    ) -> ServerLink | None:
        """Link the server that is asked for, or any; None if that failed."""
        alpn = self._alpn if asked is None else (alpn_asking_for(asked), *self._alpn)
        try:
            return await connect(
                self._loop,
                self._poller,
                place[0],
                self._context(),
                server_hostname=place[1],
                greeting=self._greeting(),
                on_dial=self._on_dial,
                claim=claim,
                on_membership=on_membership,
                only=self._only,
                alpn=alpn,
                packets=self._packets,
                through=places.through(place),
                limits=self._limits,
                budget=self._budget,
            )
        except LinkError as exc:
            self._metrics.link_failed(exc.stage)
            self._say("cannot link to the server", about=_shown(place[0], asked), reason=str(exc))
        except Exception as exc:  # whatever it is, the other links go on and this one is retried
            self._say("cannot link to the server", about=_shown(place[0], asked), reason=repr(exc))
        return None

    def unresolved(self, host: str, reason: str) -> None:
        """Say now and then that a name does not resolve."""
        self._say("server name does not resolve", about=host, reason=reason)

    def _say(self, message: str, *, about: str, reason: str) -> None:
        self._once.log(
            (message, about, reason), _QUIET_S, _log, logging.WARNING, message,
            server=about, reason=reason,
        )  # fmt: skip


def _shown(address: Address, asked: ServerId | None) -> str:
    shown = str(HostPort(address[1][0].partition("%")[0], address[1][1]))
    return shown if asked is None else f"{asked} by {shown}"
