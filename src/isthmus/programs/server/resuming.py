"""The links that a server can resume: for which agents, and for how many it waits.

Every link of an agent that can resume has a key (links/resuming.py). A connection that shows the
key goes through admission like a new one, and the agent must have the same identity. A wrong key,
or the right one from another agent, changes nothing for the link.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from isthmus.errors import LinkStage, ProtocolError
from isthmus.links.server_side import Admit, AgentLink
from isthmus.links.talk import Unwelcome
from isthmus.logs import OncePer, log
from isthmus.programs.server.metrics import ResumeRefusal, ServerMetrics
from isthmus.tunnel.budget import Budget
from isthmus.values import AgentId, Identity
from isthmus.wire.link_pb2 import Resume

#: How many links may wait for another connection. Past it, one of the identity with most of them
#: ends, the one that has waited longest: all agents of a cluster may share one certificate.
MOST_SUSPENDED = 4096
_LOOK_S = 1.0
_QUIET_S = 60.0
_log = logging.getLogger("isthmus.server")
_audit = logging.getLogger("isthmus.audit")


class ResumableLinks:
    """Finds the link that a connection wants to resume, and limits how many wait."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        admit: Admit,
        moved: Callable[[AgentLink, AgentLink], None],
        budget: Budget,
        metrics: ServerMetrics,
        once: OncePer,
    ) -> None:
        """``moved(connection, link)`` is called with the connection whose token was reviewed for
        the link."""
        self._loop = loop
        self._admit = admit
        self._moved = moved
        self._budget = budget
        self._metrics = metrics
        self._once = once
        self._links: dict[bytes, AgentLink] = {}
        self._suspended: dict[AgentLink, None] = {}  # the one that has waited longest first
        self._by_identity: dict[Identity, dict[AgentLink, None]] = {}
        self._by_agent: dict[AgentId, dict[AgentLink, None]] = {}
        self._looks = False

    def __len__(self) -> int:
        return len(self._suspended)

    def add(self, link: AgentLink) -> None:
        """An agent was welcomed; an earlier process of it is gone, with its links."""
        if link.key is not None:
            self._links[link.key.link] = link
        for other in list(self._by_agent.get(link.agent_id, ())):
            if other.identity == link.identity and other.instance != link.instance:
                other.lost("the agent was restarted")

    def gone(self, link: AgentLink) -> None:
        """A link is over."""
        self._no_longer(link)
        if link.key is not None and self._links.get(link.key.link) is link:
            del self._links[link.key.link]

    def _no_longer(self, link: AgentLink) -> None:
        if link in self._suspended:
            del self._suspended[link]
            del self._by_identity[link.identity][link], self._by_agent[link.agent_id][link]
            if not self._by_identity[link.identity]:
                del self._by_identity[link.identity]
            if not self._by_agent[link.agent_id]:
                del self._by_agent[link.agent_id]

    def suspended(self, link: AgentLink, why: str) -> None:
        """A link has no connection."""
        self._metrics.link_suspensions += 1
        log(
            _log, logging.INFO, "agent link suspended", agent_id=link.agent_id, link=link.id,
            tunnels=link.load, reason=why,
        )  # fmt: skip
        self._suspended[link] = None
        self._by_identity.setdefault(link.identity, {})[link] = None
        self._by_agent.setdefault(link.agent_id, {})[link] = None
        if len(self._suspended) > MOST_SUSPENDED:
            most = max(self._by_identity.values(), key=len)
            next(iter(most)).lost("too many links wait for a connection")
        if not self._looks:
            self._looks = True
            self._loop.call_later(_LOOK_S, self._look)

    def resumed(self, link: AgentLink) -> None:
        """A link has another connection."""
        self._no_longer(link)
        self._metrics.link_resumes += 1
        log(
            _log, logging.INFO, "agent link resumed", agent_id=link.agent_id, link=link.id,
            address=link.peer_address, tunnels=link.load,
        )  # fmt: skip

    def _look(self) -> None:
        """End waiting links while memory is short, before other peers are slowed."""
        while self._suspended and self._budget.exhausted:
            next(iter(self._suspended)).lost("the memory budget is used up")
        self._looks = bool(self._suspended)
        if self._looks:
            self._loop.call_later(_LOOK_S, self._look)

    # Resuming.

    def resume(self, connection: AgentLink, message: Resume) -> None:
        """Continue a link on this connection, if it shows the key and is admitted."""
        link = self._links.get(message.link)
        if link is None or link.key is None or link.lasting is None:
            self._refuse(connection, ResumeRefusal.UNKNOWN)
            return
        if not link.key.opens(message, link.lasting.received_bytes):
            self._refuse(connection, ResumeRefusal.TOKEN, link)
            return
        connection.greet_like(link)

        def decided(refusal: str, kind: Unwelcome = Unwelcome.NO_PROOF, /) -> None:
            self._decided(connection, link, message, (refusal, kind))

        self._admit(connection, message.bearer_token, decided)

    def _decided(
        self,
        connection: AgentLink,
        link: AgentLink,
        message: Resume,
        verdict: tuple[str, Unwelcome],
    ) -> None:
        refusal, kind = verdict
        if connection.closed_because:
            return  # it did not wait for the verdict
        if link.closed_because or link.key is None or link.lasting is None:
            self._refuse(connection, ResumeRefusal.UNKNOWN)
        elif refusal and kind is Unwelcome.TRY_LATER:
            self._refuse(connection, ResumeRefusal.LATER)
        elif connection.identity != link.identity:
            self._refuse(connection, ResumeRefusal.IDENTITY, link)
        elif refusal:
            self._refuse(connection, ResumeRefusal.ADMISSION)
            link.lost(f"not resumed: {refusal}", LinkStage.REFUSED)
        elif not link.key.opens(message, link.lasting.received_bytes):
            self._refuse(connection, ResumeRefusal.TOKEN, link)  # another one was faster
        else:
            self._go_on(connection, link, message)

    def _go_on(self, connection: AgentLink, link: AgentLink, message: Resume) -> None:
        try:
            connection.give_way(link, message)
        except ProtocolError as exc:
            self._refuse(connection, ResumeRefusal.OFFSET)
            link.lost(str(exc), LinkStage.PROTOCOL)
        else:
            self._moved(connection, link)

    def _refuse(
        self, connection: AgentLink, why: ResumeRefusal, link: AgentLink | None = None
    ) -> None:
        """Refuse; ``link`` is given if the agent may not have it, which is audited."""
        self._metrics.resumes_refused[why] += 1
        if link is not None:
            identity: Identity = connection.identity
            self._once.log(
                ("not resumed", connection.peer_host, link.agent_id), _QUIET_S, _audit,
                logging.WARNING, "resuming a link refused", agent_id=link.agent_id, link=link.id,
                address=connection.peer_address, identity=str(identity), reason=why.value,
            )  # fmt: skip
        connection.refuse_resume(why.value, later=why is ResumeRefusal.LATER)
