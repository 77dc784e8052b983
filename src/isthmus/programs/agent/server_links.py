"""The agent's part that keeps its links: its greeting, and the state of its servers.

servers.py finds servers and makes links.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from typing_extensions import override

from isthmus.dial.frontends.backend import PROCESS
from isthmus.errors import LinkError, LinkStage, unreadable
from isthmus.frame.admin.answers import Check
from isthmus.frame.gate_state import GateState, Known, state_of
from isthmus.frame.lifetime import counted
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.frame.revoking import Revoking
from isthmus.frame.tunnels import TunnelTable
from isthmus.frame.views import gate_views, link_view
from isthmus.kube.api import Kube
from isthmus.kube.leases import LeaseCounter
from isthmus.kube.opening import open_kube
from isthmus.links.agent_side import AgentGreeting, ServerLink
from isthmus.links.link import LinkTerms
from isthmus.links.talk import Incoming
from isthmus.logs import log
from isthmus.net.contexts import HotContext, TlsFiles, client_context
from isthmus.net.files import read_part
from isthmus.net.resolver import Resolver
from isthmus.net.revocation import watch as watch_lists
from isthmus.net.rules_near import ZONE_LABEL
from isthmus.net.rules_proxies import ProxyRules
from isthmus.programs.agent.linking import Linking, ServerAddresses
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.agent.servers import Servers
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.text.pacing import Backoff
from isthmus.tunnel.limits import Limits, with_keepalive
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.values import AgentId

_log = logging.getLogger("isthmus.agent")
_GATE = f"the feature gate {CLUSTER_TO_MASTER}"
_SAID = {
    GateState.HERE_ONLY: (
        logging.WARNING,
        f"{_GATE} is on here and off at the server: it carries no connections from this node",
    ),
    # Not logged as a problem: most agents do not need this feature of a server.
    GateState.THERE_ONLY: (
        logging.INFO,
        f"{_GATE} is off here and on at the server: no connections from this node are taken",
    ),
}


class GateWatch:
    """Checks the servers whenever a link is added or lost, then calls ``then``.

    A gate that only one side has on is logged once for each server and state.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_here: bool,
        links: Callable[[], Iterable[ServerLink]],
        then: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_here = on_here
        self._links = links
        self._then = then
        self._due: asyncio.Handle | None = None
        self._known = Known()

    def changed(self) -> None:
        """A link was added or lost: check once the current event is handled."""
        if self._due is None:
            self._due = self._loop.call_soon(self._look)

    def stop(self) -> None:
        """Stop checking."""
        if self._due is not None:
            self._due.cancel()

    def _look(self) -> None:
        self._due = None
        for link in list(self._links()):
            self._compare(link)
        self._then()

    def _compare(self, link: ServerLink) -> None:
        state = state_of(here=self._on_here, there=link.features)
        # Whether konnectivity's own server carries connections shows only when it is asked.
        if state is not GateState.SILENT and self._known.is_news(link.server_id, state):
            level, sentence = _SAID[state]
            log(_log, level, sentence, server_id=link.server_id, address=link.peer_address)


_MAX_TOKEN_CHARS = 64 * 1024


def _nobody() -> None:
    """Do nothing: the default of ``on_change``."""


class ServerLinks(Part):
    """The links to all servers. ``on_change`` is called when one is added or lost."""

    def __init__(
        self,
        ground: Ground[AgentSettings, AgentMetrics],
        on_dial: Callable[[Incoming], None],
        tunnels: TunnelTable,
    ) -> None:
        settings = ground.settings
        self._ground = ground
        self._settings = settings
        self._on_dial = on_dial
        self._tunnels = tunnels
        self._resolver = Resolver(ground.loop, settings.aliases, for_peers=False)
        self._revoking = Revoking(
            once=ground.once, metrics=ground.metrics.revocation, poller=ground.poller
        )
        self._packets = PacketCounts()
        self._instance = secrets.token_hex(8)  # servers tell by it that the agent was restarted
        self._gates = GateWatch(
            ground.loop,
            on_here=settings.gates.enabled(CLUSTER_TO_MASTER),
            links=lambda: self.links,
            then=lambda: self.on_change(),
        )
        self.servers: Servers | None = None
        self.on_change: Callable[[], None] = _nobody

    @property
    def links(self) -> list[ServerLink]:
        """The link to each server."""
        return [*self.servers.links.values()] if self.servers is not None else []

    @property
    def open_links(self) -> list[ServerLink]:
        """Every link that is open and welcomed."""
        return self.servers.open_links if self.servers is not None else []

    @property
    def known_count(self) -> int:
        """The number of servers, as announced."""
        return self.servers.known_count if self.servers is not None else 0

    # Part.

    @override
    async def prepare(self) -> None:
        for warning in self._settings.warnings():
            log(_log, logging.WARNING, warning)
        self.servers = self._made()

    def _made(self) -> Servers:
        ground, settings = self._ground, self._settings
        files = TlsFiles(
            cert=settings.agent_cert,
            key=settings.agent_key,
            ca=settings.ca_cert,
            labels=("--agent-cert", "--agent-key", "--ca-cert"),
        )
        self._revoking.read("agent", settings.crl_file, settings.ca_cert)
        revocations = self._revoking.all.get("agent")
        build = partial(client_context, alpn=settings.alpn, revocations=revocations)
        context = HotContext(files, build, purpose="client")
        ground.contexts.append(context)
        terms = LinkTerms(
            loop=ground.loop,
            poller=ground.poller,
            limits=with_keepalive(Limits(), settings.keepalive_time_s),
            budget=ground.budget,
            only=settings.link,
            resume_s=1.0,
            packets=self._packets,
        )
        linking = Linking(
            terms,
            context=lambda: context.current,
            greeting=self._greeting,
            on_dial=self._on_dial,
            metrics=ground.metrics,
            once=ground.once,
            alpn=settings.alpn,
        )
        addresses = ServerAddresses(
            terms,
            self._resolver,
            hosts=settings.proxy_server_host,
            port=settings.proxy_server_port,
            proxies=ProxyRules.from_environment(os.environ),
            once=ground.once,
            server_name=settings.proxy_server_name,
        )
        return Servers(
            linking,
            addresses,
            backoff=lambda: Backoff(
                first_s=settings.sync_interval_s,
                cap_s=settings.sync_interval_cap_s,
                chance=random.random,
            ),
            count_source=settings.server_count_source,
            changed=self._gates.changed,
        )

    def _greeting(self) -> AgentGreeting:
        """The agent's greeting; the token is read for each link, because it is rotated.

        Raises:
            LinkError: the token cannot be read now.
        """
        settings = self._settings
        path = settings.service_account_token_path
        token = ""
        if path:
            try:
                token = read_part(path, _MAX_TOKEN_CHARS).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as exc:
                why = str(unreadable(f"token {path}", exc))
                raise LinkError(why, LinkStage.CONNECT) from exc
        return AgentGreeting(
            agent_id=AgentId(self._ground.id),
            identifiers=settings.sent_identifiers,
            labels={ZONE_LABEL: settings.zone} if settings.zone else {},
            network=settings.agent_network,
            token=token,
            features=settings.gates.features,
            process=PROCESS,
            instance=self._instance,
        )

    @override
    def start(self) -> None:
        gauges = self._ground.metrics.gauges
        gauges.links = lambda: len(self.links)
        gauges.suspended_links = lambda: sum(link.suspended for link in self.open_links)
        gauges.kept_bytes = lambda: sum(link.kept_bytes for link in self.open_links)
        gauges.held_bytes = lambda: sum(link.held_bytes for link in self.open_links)
        gauges.packets = lambda: {
            "from_agent": self._packets.sent,
            "to_agent": self._packets.received,
        }
        gauges.known_servers = lambda: self.known_count
        gauges.gates = self._settings.gates.states

    @override
    def tasks(self) -> Iterable[LongTask]:
        assert self.servers is not None
        yield "servers", self.servers.keep_connected()
        if self._revoking.all:
            yield "crl", watch_lists([*self._revoking.all.values()], self._cut_revoked)

    def _cut_revoked(self) -> None:
        self._revoking.cut(self.open_links, self._tunnels)

    @override
    def drain(self) -> None:
        if self.servers is not None:
            self.servers.drain()

    @override
    def busy(self) -> bool:
        return self.servers is not None and self.servers.unsent

    @override
    def drained(self) -> None:
        if self.servers is not None:
            self.servers.take_no_more()

    @override
    def close(self) -> None:
        self._gates.stop()
        if self.servers is not None:
            self.servers.close()

    @override
    async def wait_closed(self) -> None:
        if self.servers is not None:
            await self.servers.wait_closed()
        self._resolver.close()

    @override
    def ready(self) -> Iterable[Check]:
        yield Check("server-connected", "" if self.links else "no server is connected")

    @override
    def status(self) -> str:
        linked = len(self.links)
        if not linked:
            return "linked to no server"
        of_all = f"{linked} of {counted(max(linked, self.known_count), 'server')}"
        return f"linked to {of_all}, {counted(len(self._tunnels), 'tunnel')}"

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        now = self._ground.now()
        return {
            "known_servers": self.known_count,
            "links": tuple(link_view(link, link.server_id, now) for link in self.links),
            "feature_gates": gate_views(self._settings.gates),
        }


class ServerLeases(Part):
    """The number of servers, by their Leases."""

    def __init__(self, settings: AgentSettings, links: ServerLinks, metrics: AgentMetrics) -> None:
        self._settings = settings
        self._links = links
        self._metrics = metrics
        self._kube: Kube | None = None

    @override
    async def prepare(self) -> None:
        self._kube = open_kube(self._settings.kubeconfig)

    @override
    def tasks(self) -> Iterable[LongTask]:
        assert self._kube is not None and self._links.servers is not None
        counter = LeaseCounter(
            self._kube.leases(self._settings.lease_namespace),
            selector=self._settings.lease_label_selector,
            changed=self._links.servers.counted,
            metrics=self._metrics.leases,
        )
        yield "count", counter.run()

    @override
    async def wait_closed(self) -> None:
        if self._kube is not None:
            await self._kube.close()
