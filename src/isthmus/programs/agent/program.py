"""The agent program: links to every server, and the dials that come by them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial

from isthmus import __version__
from isthmus.dial.dialers.direct import DirectDialer
from isthmus.dial.dialers.permitted import EndpointsOnly
from isthmus.dial.frontends.backend import PROCESS
from isthmus.dial.rules_endpoint_lists import Entry, Refusal
from isthmus.errors import DialFailure, LinkError, LinkStage
from isthmus.frame import lifetime
from isthmus.frame.admin.answers import PING, Check
from isthmus.frame.admin.watched import Watched
from isthmus.frame.descriptors import allow_all
from isthmus.frame.health import Health
from isthmus.frame.memory import open_budget
from isthmus.frame.model.snapshot import AgentProgramView
from isthmus.frame.observe.tracing import Tracing, open_tracing
from isthmus.frame.operator_ports import OperatorPorts
from isthmus.frame.revoking import Revoking
from isthmus.frame.supervised import counted
from isthmus.frame.tunnels import TunnelTable
from isthmus.frame.views import certificates, gate_views, link_view, memory_view, tally, totals
from isthmus.kube.api import Kube
from isthmus.kube.leases import LeaseCounter
from isthmus.kube.opening import open_kube
from isthmus.links.agent_side import AgentGreeting
from isthmus.links.link import LinkTerms
from isthmus.links.talk import Incoming
from isthmus.logs import OncePer, log
from isthmus.net.contexts import HotContext, TlsFiles, client_context, lifetimes_of, watch
from isthmus.net.files import read_part
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.revocation import watch as watch_lists
from isthmus.net.rules_near import ZONE_LABEL
from isthmus.net.rules_proxies import ProxyRules
from isthmus.programs.agent import PROGRAM
from isthmus.programs.agent.gate_watch import GateWatch
from isthmus.programs.agent.linking import Linking, ServerAddresses
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.agent.node_traffic import NodeTraffic, remove_leftovers
from isthmus.programs.agent.servers import Servers
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.agent.target_dial import TargetDial
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.text.backoff import Backoff
from isthmus.tunnel.end import Ending
from isthmus.tunnel.limits import Limits, with_keepalive
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.values import AgentId, HostPort

_LOOK_AGAIN_S = 0.05
_MAX_TOKEN_CHARS = 64 * 1024
_QUIET_S = 60.0
_log = logging.getLogger("isthmus.agent")


class Agent:
    """A running agent."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.id = AgentId(settings.agent_id or str(uuid.uuid4()))
        self.started_at = self.loop.time()
        self.draining = False
        self.budget = open_budget(settings)
        self.metrics = AgentMetrics()
        self.once = OncePer(self.loop.time)
        self.poller = Poller(self.loop)
        self.resolver = Resolver(self.loop, settings.aliases, for_peers=False)
        self.endpoints = settings.endpoint_lists
        self._targets = EndpointsOnly(
            self.loop, self.endpoints, settings.aliases, denied=self._endpoint_denied
        )
        self.dialer = DirectDialer(
            self.loop, self.poller, self._targets, self._targets.refuse, metadata=None
        )
        self.dials: set[TargetDial] = set()
        self._no_dials = asyncio.Event()
        self.tunnels = TunnelTable(self.loop, self.metrics)
        self.contexts: list[HotContext] = []
        self._revoking = Revoking(
            once=self.once, metrics=self.metrics.revocation, poller=self.poller
        )
        self.servers: Servers | None = None
        self.packets = PacketCounts()
        self.tracing: Tracing | None = None
        self._kube: Kube | None = None
        self._counter: LeaseCounter | None = None
        self.ports: OperatorPorts | None = None
        self.node: NodeTraffic | None = None
        self._gate_watch = GateWatch(
            self.loop,
            on_here=settings.enabled(CLUSTER_TO_MASTER),
            links=lambda: self.servers.links.values() if self.servers is not None else (),
            then=lambda: self.node.links_changed() if self.node is not None else None,
        )
        self.health = Health(
            self.metrics,
            leaving=lambda: self.draining,
            listeners=lambda: self.node.listeners if self.node is not None else (),
            counted=lambda: tally(self.metrics, tunnels=len(self.tunnels)),
        )

    # Program.

    async def start(self) -> None:
        """Check every file, then open the ports; see Program."""
        for warning in self.settings.warnings():
            log(_log, logging.WARNING, warning)
        try:
            self.tracing = open_tracing(
                self.settings.tracing_endpoint, os.environ, service="isthmus-agent",
                instance=self.id,
            )  # fmt: skip
            self.servers = self._make_servers()
            self.ports = OperatorPorts(self.settings, once=self.once)
            self.contexts += [self.ports.tls] if self.ports.tls is not None else []
            if self.settings.count_server_leases:
                self._count_leases(self.servers)
            await remove_leftovers(self.settings)
            if self.settings.takes_node_traffic:
                self.node = NodeTraffic(self)
                await self.node.start()
            await self._open_ports(self.ports)
        except BaseException:
            await self.stop()
            raise
        self._set_gauges(self.servers)
        self.health.start(self.ports.open_ones)
        log(
            _log, logging.INFO, "serving", agent_id=self.id, health_port=self.health_port,
            admin_port=self.admin_port,
        )  # fmt: skip

    def _make_servers(self) -> Servers:
        settings = self.settings
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
        self.contexts.append(context)
        terms = LinkTerms(
            loop=self.loop,
            poller=self.poller,
            limits=with_keepalive(Limits(), settings.keepalive_time_s),
            budget=self.budget,
            only=settings.link,
            packets=self.packets,
        )
        linking = Linking(
            terms,
            context=lambda: context.current,
            greeting=self._greeting,
            on_dial=self._dial,
            metrics=self.metrics,
            once=self.once,
            alpn=settings.alpn,
        )
        addresses = ServerAddresses(
            terms,
            self.resolver,
            hosts=settings.proxy_server_host,
            port=settings.proxy_server_port,
            proxies=ProxyRules.from_environment(os.environ),
            once=self.once,
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
            changed=self._gate_watch.changed,
        )

    def _greeting(self) -> AgentGreeting:
        """Say who we are; the token is read for each link, because it is rotated.

        Raises:
            LinkError: the token cannot be read now.
        """
        path = self.settings.service_account_token_path
        token = ""
        if path:
            try:
                token = read_part(path, _MAX_TOKEN_CHARS).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as exc:
                why = exc.strerror if isinstance(exc, OSError) else "is no token"
                raise LinkError(f"token {path}: {why}", LinkStage.CONNECT) from exc
        return AgentGreeting(
            agent_id=self.id,
            identifiers=self.settings.agent_identifiers,
            labels={ZONE_LABEL: self.settings.zone} if self.settings.zone else {},
            network=self.settings.agent_network,
            token=token,
            features=self.settings.features,
            process=PROCESS,
        )

    def _count_leases(self, servers: Servers) -> None:
        """Prepare to count the servers' Leases; nothing is sent yet."""
        settings = self.settings
        self._kube = open_kube(settings.kubeconfig)
        self._counter = LeaseCounter(
            self._kube.leases(settings.lease_namespace),
            selector=settings.lease_label_selector,
            changed=servers.counted,
            metrics=self.metrics.leases,
        )

    async def watch(self) -> None:
        """Keep the links and follow the certificate files; see Program."""
        assert self.servers is not None
        async with self.health.tasks() as tasks:
            tasks.create_task(self.servers.keep_connected(), name="servers")
            tasks.create_task(watch(self.contexts), name="reload")
            tasks.create_task(self.tunnels.watch(), name="sweep")
            if self._revoking.all:
                tasks.create_task(
                    watch_lists([*self._revoking.all.values()], self._cut_revoked), name="crl"
                )
            if self._counter is not None:
                tasks.create_task(self._counter.run(), name="count")
            if self.node is not None:
                tasks.create_task(self.node.watch(), name="node-address")

    def _cut_revoked(self) -> None:
        assert self.servers is not None
        self._revoking.cut(self.servers.open_links, self.tunnels)

    async def drain(self, timeout_s: float) -> None:
        """Tell the servers, wait for dials and tunnels; see Program."""
        self.draining = True
        if self.node is not None:
            self.node.drain()
        if self.servers is not None:
            self.servers.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._dialing or len(self.tunnels) or self._unsent:  # one becomes the next
                    await self._wait_no_dials()
                    await self.tunnels.wait_empty()
                    await asyncio.sleep(_LOOK_AGAIN_S if self._unsent else 0)
        # Without a turn of the loop in between: what was joined after that look would be reset.
        if self.node is not None:
            self.node.close()
        if self.servers is not None:
            self.servers.take_no_more()

    @property
    def _unsent(self) -> bool:
        return self.servers is not None and self.servers.unsent

    @property
    def _dialing(self) -> bool:
        return bool(self.dials) or (self.node is not None and self.node.connections.waiting > 0)

    async def _wait_no_dials(self) -> None:
        if self.dials:
            self._no_dials.clear()
            await self._no_dials.wait()
        if self.node is not None:
            await self.node.connections.wait_settled()

    def dial_over(self, dial: TargetDial) -> None:
        """A dial has become a tunnel, failed, or was cancelled."""
        self.dials.discard(dial)
        if not self.dials:
            self._no_dials.set()

    async def stop(self) -> None:
        """Close everything; see Program."""
        self.health.stop()
        self._gate_watch.stop()
        if self.node is not None:
            self.node.close()
        self.tunnels.abort_all(Ending.DRAINED)
        if self.servers is not None:
            self.servers.close()
            await self.servers.wait_closed()
        if self._kube is not None:
            await self._kube.close()
        self.resolver.close()
        self._targets.close()
        if self.ports is not None:
            await self.ports.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        self.poller.shut_down()
        if self.tracing is not None:
            await self.tracing.close()
        if self.node is not None:
            await self.node.take_away()

    async def _open_ports(self, ports: OperatorPorts) -> None:
        settings = self.settings
        watched = Watched(
            program="agent",
            instance=self.id,
            settings=settings,
            live=self.health.live,
            ready=self.ready,
            metrics=self.metrics.render,
            open_metrics=self.metrics.render_open,
            snapshot=self.view,
            history=self.health.history,
            end_tunnel=self.tunnels.end,
        )
        assert PROGRAM.operator_flags is not None
        await ports.open(watched, PROGRAM.operator_flags)

    @property
    def health_port(self) -> int:
        """The port of probes; 0 while it is not open."""
        return self.ports.health if self.ports is not None else 0

    @property
    def admin_port(self) -> int:
        """The port for operators; 0 while it is not open."""
        return self.ports.admin if self.ports is not None else 0

    def _set_gauges(self, servers: Servers) -> None:
        gauges = self.metrics.gauges
        # Those of the node are no connections to endpoints, and are counted by themselves.
        gauges.tunnels = lambda: (
            len(self.tunnels) - (self.node.connections.open if self.node is not None else 0)
        )
        gauges.links = lambda: len(servers.links)
        gauges.budget = self.budget
        gauges.held_bytes = lambda: sum(link.held_bytes for link in servers.open_links)
        gauges.reload_failures = lambda: sum(context.failures for context in self.contexts)
        gauges.draining = lambda: int(self.draining)
        gauges.lines_suppressed = lambda: self.once.suppressed
        gauges.live_bytes = self.tunnels.live_bytes
        gauges.packets = lambda: {
            "from_agent": self.packets.sent,
            "to_agent": self.packets.received,
        }
        gauges.certificates = lambda: lifetimes_of(self.contexts)
        gauges.known_servers = lambda: servers.known_count
        gauges.gates = self.settings.gates

    def view(self, limit: int) -> AgentProgramView:
        """Show the agent, with at most ``limit`` tunnels."""
        now = self.loop.time()
        servers = self.servers
        assert servers is not None  # the admin port opens after it is made
        return AgentProgramView(
            agent_id=self.id,
            version=__version__,
            taken_at=datetime.now(UTC),
            uptime_s=now - self.started_at,
            draining=self.draining,
            known_servers=servers.known_count,
            totals=totals(self.metrics),
            links=tuple(link_view(link, link.server_id, now) for link in servers.links.values()),
            tunnels=self.tunnels.views(limit),
            truncated=max(0, len(self.tunnels) - limit),
            recent_endings=self.tunnels.endings.views(now=now),
            certificates=certificates(self.contexts),
            feature_gates=gate_views(self.settings),
            node_traffic=self.node.view() if self.node is not None else None,
            endpoint_allow=_texts(self.endpoints.allow),
            endpoint_deny=_texts(self.endpoints.deny),
            memory=memory_view(self.budget),
        )

    def status(self) -> str:
        """How many servers are linked, and tunnels open; see Supervisable."""
        if self.servers is None or not self.servers.links:
            return "linked to no server"
        linked, known = len(self.servers.links), self.servers.known_count
        of_all = f"{linked} of {counted(max(linked, known), 'server')}"
        return f"linked to {of_all}, {counted(len(self.tunnels), 'tunnel')}"

    def ready(self) -> list[Check]:
        """Ready: at least one server is linked, and we do not drain."""
        linked = self.servers is not None and bool(self.servers.links)
        return [
            PING,
            Check("server-connected", "" if linked else "no server is connected"),
            Check("drain", "draining" if self.draining else ""),
            *([Check("node-listeners", self.node.waits_for())] if self.node else []),
        ]

    # Dials.

    def _dial(self, incoming: Incoming) -> None:
        try:
            target = _target(incoming.host, incoming.port)
        except ValueError as exc:
            incoming.refuse(DialFailure.UNRESOLVED, str(exc))
            return
        TargetDial(self, incoming, target)

    def _endpoint_denied(self, target: HostPort, refusal: Refusal) -> None:
        self.metrics.endpoint_denied(refusal.entry)
        self.once.log(
            ("endpoint", refusal.entry), _QUIET_S, _log, logging.WARNING,
            "a server asked for what this agent may not dial", target=str(target),
            reason=refusal.why,
        )  # fmt: skip


def _texts(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.text for entry in entries))


@lru_cache(maxsize=1024)
def _target(host: str, port: int) -> HostPort:
    """Check a target; the same ones come again and again, and checking takes 1.5 µs."""
    return HostPort(host, port)


def main(settings: AgentSettings) -> int:
    """Run an agent until it is told to stop; the exit code."""
    os.umask(0o077)
    allow_all()
    return lifetime.main(
        lambda: Agent(settings), settings, drain_s=settings.graceful_shutdown_timeout_s
    )
