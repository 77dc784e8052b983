"""The server program: frontends on one side, agents on the other, dials in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import uuid
from collections.abc import Callable
from functools import partial

from isthmus.dial.dialers.through_agent import AgentDialer
from isthmus.dial.frontends.backend import Request
from isthmus.errors import DialFailure
from isthmus.frame import lifetime
from isthmus.frame.admin.answers import Check, Watched
from isthmus.frame.audit.model import is_proven
from isthmus.frame.audit.recording import (
    UNAUDITED,
    Auditor,
    ignore_hangup,
    open_audit,
    reopen_on_hangup,
)
from isthmus.frame.health import Health
from isthmus.frame.lifetime import counted
from isthmus.frame.observe.relays import Retried
from isthmus.frame.observe.tracing import Tracing, open_tracing
from isthmus.frame.operator_ports import OperatorPorts
from isthmus.frame.part import Handed
from isthmus.frame.program import OperatorFlags
from isthmus.frame.resources import allow_all, open_budget
from isthmus.frame.revoking import Revoking
from isthmus.frame.tunnels import TunnelTable
from isthmus.frame.views import tally
from isthmus.links.link import GOODBYE_S
from isthmus.links.server_side import AgentLink
from isthmus.links.talk import Incoming
from isthmus.logs import OncePer, log
from isthmus.net.certificates import authorities
from isthmus.net.contexts import HotContext, TlsFiles, lifetimes_of, server_context, watch
from isthmus.net.poller import Poller
from isthmus.net.revocation import watch as watch_lists
from isthmus.net.rules_slots import AdmissionRefusal
from isthmus.programs.server.admission import Admission
from isthmus.programs.server.agents import AgentDoor, below
from isthmus.programs.server.client_dial import ClientDial
from isthmus.programs.server.doors import Doors
from isthmus.programs.server.kube import ServerKube
from isthmus.programs.server.metrics import ServerMetrics, TlsPort
from isthmus.programs.server.networks import ServerNetworks
from isthmus.programs.server.node_dials import NodeDials
from isthmus.programs.server.peers_relay import RelayKeeper, peer_context
from isthmus.programs.server.relayed import RelayedDials
from isthmus.programs.server.rules_role_warnings import role_warnings
from isthmus.programs.server.settings import GRPC, HTTP_CONNECT, ServerSettings
from isthmus.programs.server.tls_refusals import refusal_of
from isthmus.programs.server.view import server_view
from isthmus.settings.audit import DENY as AUDIT_DENY
from isthmus.tunnel.end import Ending
from isthmus.values import HostPort, Identity, ServerId

_log = logging.getLogger("isthmus.server")
#: What each mode negotiates; a client that offers h2 to a CONNECT port must not be promised it.
_ALPN: dict[str, tuple[str, ...]] = {GRPC: ("h2",), HTTP_CONNECT: ()}
_LOOK_AGAIN_S = 0.05
#: How long a drain waits for clients that were let in to say what they want; one that only looks
#: whether the port is open never does.
_HEADS_S = 2.0


class Server:
    """A running server."""

    def __init__(self, settings: ServerSettings, *, handed: Handed | None = None) -> None:
        """Prepare in the loop; in a worker connections are ``handed`` to it."""
        self.settings = settings
        self._handed = handed
        self.loop = asyncio.get_running_loop()
        self.id = ServerId(settings.server_id or str(uuid.uuid4()))
        self.started_at = self.loop.time()
        self.draining = False
        self.admits_clients = settings.roles.admits_clients
        self.budget = open_budget(settings.memory, settings.workers)
        self.metrics = ServerMetrics()
        self.once = OncePer(self.loop.time)
        self.poller = Poller(self.loop)
        self.tunnels = TunnelTable(self.loop, self.metrics)
        self.networks = ServerNetworks(self.loop, self.poller, settings, pick=below, once=self.once)
        self.agent_door = AgentDoor(
            self.loop, self.poller, settings, server_id=self.id, metrics=self.metrics,
            once=self.once, on_dial=self._agent_dials, agents=self.networks.agents,
            handed=handed, budget=self.budget,
        )  # fmt: skip
        self.node_dials = NodeDials(self)
        self.agent_door.on_relayed = RelayedDials(self).take
        self.agents = self.agent_door.agents
        self.links = self.agent_door.links
        self.dialer = AgentDialer(self.loop, self.agents, timeout_s=settings.dial_limit_s)
        self.dialer.retried = partial(self.metrics.relays.retried, Retried.BEFORE_ANSWER)
        self.relays: RelayKeeper | None = None
        self.contexts: list[HotContext] = []
        self._revoking = Revoking(
            once=self.once, metrics=self.metrics.revocation, poller=self.poller
        )
        self._frontend_tls: dict[str, HotContext] = {}
        self.doors = Doors(
            self.loop, self.poller, self, settings, once=self.once, context=self._client_context,
            handed=handed, budget=self.budget,
        )  # fmt: skip
        self.audit: Auditor | None = None
        self._fails_elsewhere = False
        if handed is not None:
            handed.on_audit = self.audit_fails_elsewhere
        self.tracing: Tracing | None = None
        self._kube: ServerKube | None = None
        self._admission: Admission | None = None
        self.ports: OperatorPorts | None = None
        self.health = Health(
            self.metrics,
            leaving=lambda: self.draining,
            listeners=lambda: (*self.doors.listeners, *self.agent_door.listeners),
            counted=lambda: tally(self.metrics, tunnels=len(self.tunnels)),
        )

    # Program.

    async def start(self) -> None:
        """Check every file, then open every port; see Program."""
        settings = self.settings
        try:
            self._revoking.read(
                "cluster",
                settings.revocation.cluster_crl_file,
                settings.cluster_ca_cert,
                prefix="cluster-",
            )
            self._revoking.read(
                "server",
                settings.revocation.server_crl_file,
                settings.server_ca_cert,
                prefix="server-",
            )
            for door in settings.doors:
                if door.port is not None:
                    self._frontend_tls[door.mode] = self._hot(
                        "server", settings.server_ca_cert, alpn=_ALPN[door.mode]
                    )
            agent_tls = self._hot("cluster", settings.cluster_ca_cert, alpn=self.agent_door.alpn)
            self.ports = OperatorPorts(
                settings, once=self.once, refused=self._admin_refused, handed=self._handed,
            )  # fmt: skip
            self.contexts += [self.ports.tls] if self.ports.tls is not None else []
            self.networks.start(self.dialer, self.metrics, self._refuses_unaudited())
            self.contexts += self.networks.contexts
            self._keep_relays()
            self._kube = ServerKube(
                settings, self.agent_door, server_id=self.id, metrics=self.metrics
            )
            self._admission = Admission(
                settings, reviewer=self._kube.reviewer, once=self.once,
                cut=self._cut_token,
            )  # fmt: skip
            self._open_records()
            self._listen(agent_tls, self._admission)
            await self._open_ports(self.ports)
        except BaseException:
            await self.stop()
            raise
        self._set_gauges()
        self.health.start(self.ports.open_ones)
        for warning in (*settings.warnings(), *role_warnings(settings, authorities)):
            _log.warning(warning)
        if self._handed is not None:
            log(_log, logging.INFO, "worker started", server_id=self.id)
            return
        log(
            _log, logging.INFO, "serving", server_id=self.id, uds=settings.uds_name or None,
            mode=",".join(settings.modes), frontend_port=self.frontend_port,
            agent_port=self.agent_port, health_port=self.health_port, admin_port=self.admin_port,
        )  # fmt: skip

    async def watch(self) -> None:
        """Follow the certificate files; see Program."""
        async with self.health.tasks() as tasks:
            tasks.create_task(watch(self.contexts), name="reload")
            tasks.create_task(self.tunnels.watch(), name="sweep")
            if self._admission is not None and self._admission.binding_file is not None:
                tasks.create_task(self._admission.binding_file.watch(), name="binding")
            if self._admission is not None and self._admission.tokens is not None:
                tasks.create_task(self._admission.tokens.run(), name="tokens")
            if self.networks.policy is not None:
                tasks.create_task(self.networks.policy.watch(), name="policy")
            if self._revoking.all:
                tasks.create_task(
                    watch_lists([*self._revoking.all.values()], self._cut_revoked), name="crl"
                )
            if self.relays is not None:
                tasks.create_task(self.relays.run(), name="relays")
            if self._kube is not None:
                self._kube.watch(tasks)

    def _cut_revoked(self) -> None:
        relays = self.relays.open if self.relays is not None else ()
        self._revoking.cut([*self.links, *relays], self.tunnels)

    def _cut_token(self, link: AgentLink, why: str) -> None:
        self._revoking.cut_link(link, self.tunnels, kind="token", why=why)

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing more, tell the agents, wait for the tunnels; see Program."""
        self.draining = True
        self.doors.drain()
        self.agent_door.drain()
        heads_until = self.loop.time() + _HEADS_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                # A pending dial becomes a tunnel, and a tunnel's last bytes wait in its link.
                # Of what passes through to other servers nothing can be seen; agents that have
                # another way to those by now, and no tunnels by this one any more, have ended it.
                while (
                    len(self.dialer.pending)
                    or self.node_dials.pending
                    or len(self.tunnels)
                    or self._unsent()
                    or len(self.agent_door.handing)
                    or (self.doors.asking and self.loop.time() < heads_until)
                ):
                    await self.tunnels.wait_empty()
                    await asyncio.sleep(_LOOK_AGAIN_S)
        # Without a turn of the loop in between: what was joined after that look would be reset.
        self.agent_door.take_no_more()

    def _unsent(self) -> bool:
        relays = self.relays is not None and self.relays.unsent
        return self.doors.unsent or relays or any(link.unsent for link in self.links)

    async def stop(self) -> None:
        """Close everything; see Program."""
        self.health.stop()
        self.doors.drain()
        self.agent_door.shut()
        self.tunnels.abort_all(Ending.DRAINED)
        # Before their links are closed, or each would be asked of the next link.
        for dial in self.dialer.pending.take_all():
            dial.give_up(DialFailure.AGENT_LOST, "server stops")
        self.node_dials.stop()
        for link in list(self.links):
            link.close("server stops")
        if self.relays is not None:
            self.relays.close()
        self.doors.close()
        self.networks.close()
        if self._admission is not None:
            self._admission.close()
        if self._kube is not None:
            await self._kube.close()
        if self.relays is not None:
            await self.relays.wait_closed()
        # Each is gone when its peer closed too, or GOODBYE_S later; whatever went wrong, we go.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * GOODBYE_S):
                while self.links:
                    await asyncio.sleep(_LOOK_AGAIN_S)
        if self.ports is not None:
            await self.ports.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        self.poller.shut_down()
        await self._close_records()

    # Starting.

    def _hot(self, flags: str, ca: str, *, alpn: tuple[str, ...]) -> HotContext:
        settings = self.settings
        files = TlsFiles(
            cert=getattr(settings, f"{flags}_cert"),
            key=getattr(settings, f"{flags}_key"),
            ca=ca,
            labels=(f"--{flags}-cert", f"--{flags}-key", f"--{flags}-ca-cert"),
        )
        build = partial(
            server_context,
            alpn=alpn,
            min_version=settings.tls_min_version or "VersionTLS12",
            cipher_suites=settings.cipher_suites,
            revocations=self._revoking.all.get(flags),
        )
        context = HotContext(files, build, purpose="server")
        self.contexts.append(context)
        return context

    def _keep_relays(self) -> None:
        if not self.settings.relay.peer_relay:
            return
        context = peer_context(self.settings, self._revoking.all.get("cluster"))
        self.contexts.append(context)
        self.relays = RelayKeeper(
            self.agent_door.terms, own=self.id, peers=self.agent_door.peers, context=context,
            server_name=self.settings.relay.peer_server_name, metrics=self.metrics, once=self.once,
        )  # fmt: skip
        self.dialer.relays = self.relays.links

    def _relay_links(self) -> tuple[int, int]:
        to = len(self.relays.links) if self.relays is not None else 0
        return to, len(self.agent_door.relays)

    def _open_records(self) -> None:
        settings = self.settings
        self.tracing = open_tracing(
            settings.tracing.endpoint, os.environ, service="isthmus-server", instance=self.id
        )
        audit = open_audit(settings.audit, server_id=self.id, believes=self.believes)
        if audit is not None:
            self.audit = audit
            self.metrics.audit_counts = audit.log.counts
            self.metrics.audit_failing = self._audit_fails
            if self._handed is None:  # a worker has a pipe, which cannot be opened again
                reopen_on_hangup(self.loop, audit.log)

    def audit_fails_elsewhere(self, failing: bool) -> None:
        """Whoever writes our records into the file can or cannot; see workers.records."""
        self._fails_elsewhere = failing

    def _audit_fails(self) -> bool:
        return self._fails_elsewhere or (self.audit is not None and self.audit.log.failing)

    def _refuses_unaudited(self) -> Callable[[], str] | None:
        return self.unaudited if self.settings.audit.on_failure == AUDIT_DENY else None

    def unaudited(self) -> str:
        """Say why nothing may be dialed now, because nobody could write it down."""
        denies = self.settings.audit.on_failure == AUDIT_DENY
        return UNAUDITED if denies and self._audit_fails() else ""

    async def _close_records(self) -> None:
        """Last, when everything has ended that they tell of."""
        if self.tracing is not None:
            await self.tracing.close()
        if self.audit is not None:
            if self._handed is None:
                ignore_hangup(self.loop)
            await asyncio.to_thread(self.audit.log.close)

    def _listen(self, agent_tls: HotContext, admission: Admission) -> None:
        # Everything is bound before anything is accepted: a port in use leaves nothing open.
        self.agent_door.bind()
        self.doors.bind()
        self.doors.open()
        self.agent_door.open(agent_tls, admission)

    async def _open_ports(self, ports: OperatorPorts) -> None:
        settings = self.settings
        watched = Watched(
            program="server",
            instance=self.id,
            settings=settings,
            live=self.health.live,
            ready=self.ready,
            metrics=self.metrics.render,
            open_metrics=self.metrics.render_open,
            snapshot=partial(server_view, self),
            history=self.health.history,
            records=self.audit.log.recent if self.audit is not None else None,
            end_tunnel=self.tunnels.end,
        )
        await ports.open(watched, OperatorFlags())

    @property
    def health_port(self) -> int:
        """The port of probes; 0 while it is not open."""
        return self.ports.health if self.ports is not None else 0

    @property
    def admin_port(self) -> int:
        """The port for operators; 0 while it is not open."""
        return self.ports.admin if self.ports is not None else 0

    def _admin_refused(self, error: OSError) -> None:
        if isinstance(error, ssl.SSLError):
            self.metrics.tls_refused(TlsPort.ADMIN, refusal_of(error))

    def _set_gauges(self) -> None:
        gauges = self.metrics.gauges
        gauges.pending_dials = lambda: len(self.dialer.pending)
        gauges.tunnels = lambda: len(self.tunnels)
        gauges.http_connections = lambda: self.tunnels.count_of(HTTP_CONNECT)
        gauges.grpc_calls = self._grpc_calls
        gauges.connections = lambda: {
            TlsPort.FRONTEND.value: len(self.doors.places),
            TlsPort.AGENT.value: len(self.agent_door.places),
        }
        gauges.handed_on = lambda: len(self.agent_door.handing)
        gauges.packets = lambda: {
            "from_client": self.doors.packets.received,
            "to_client": self.doors.packets.sent,
            "from_agent": self.agent_door.packets.received,
            "to_agent": self.agent_door.packets.sent,
        }
        gauges.links = lambda: len(self.agents)
        gauges.budget = self.budget
        gauges.held_bytes = lambda: sum(link.held_bytes for link in self.links)
        gauges.reload_failures = lambda: sum(context.failures for context in self.contexts)
        gauges.draining = lambda: int(self.draining)
        gauges.lines_suppressed = lambda: self.once.suppressed
        gauges.live_bytes = self.tunnels.live_bytes
        gauges.certificates = lambda: lifetimes_of(self.contexts)
        gauges.ready_agents = lambda: len({link.agent_id for link in self.agents})
        gauges.ready_by_strategy = self.agents.ready_by_strategy
        gauges.gates = self.settings.gates.states
        self.metrics.relays.links = self._relay_links
        gauges.node_dials = lambda: len(self.node_dials.pending)
        gauges.node_tunnels = lambda: self.node_dials.tunnels

    def _client_context(self, mode: str) -> ssl.SSLContext:
        return self._frontend_tls[mode].current

    @property
    def calls(self) -> int:
        """How many requests share connections with others."""
        return self.doors.grpc_calls

    @property
    def has_peers(self) -> bool:
        """Agents may go to other servers; workers beside this one are none."""
        return len(self.agent_door.peers) > 0

    @property
    def agent_port(self) -> int:
        """The port for agents."""
        return self.agent_door.port

    @property
    def frontend_port(self) -> int | None:
        """The TCP port of the first mode's frontend, if it has one."""
        return self.doors.ports.get(self.settings.doors[0].mode)

    def _grpc_calls(self) -> dict[str, float]:
        links = sum(link.talk is not None and link.talk.name == "grpc" for link in self.links)
        return {"Proxy": self.doors.grpc_calls, "Connect": links}

    def status(self) -> str:
        """How many agents and tunnels there are; see Supervisable."""
        agents = len({link.agent_id for link in self.agents})
        return f"{counted(agents, 'agent')}, {counted(len(self.tunnels), 'tunnel')}"

    # Readiness.

    def ready(self) -> list[Check]:
        """Ready: an agent could be chosen, or none is needed, and we do not drain."""
        agents = self.networks.reachable_without_agents or any(
            self.agents.ready_by_strategy().values()
        )
        agents = agents or (self.relays is not None and self.relays.links.ready)
        return [
            Check("agents", "" if agents else "no connection to any proxy agent"),
            Check("drain", "draining" if self.draining else ""),
        ]

    # Agents.

    def _agent_dials(self, incoming: Incoming) -> None:
        self.node_dials.take(incoming)

    # Frontend.

    def dial(self, request: Request, target: HostPort) -> ClientDial:
        """A client asks for a target; see frontends.backend.Backend."""
        return ClientDial(self, request, target, request.requester).start()

    def believes(self, requester: Identity) -> bool:
        """What somebody says about their request counts if they proved who they are."""
        return is_proven(requester) and not self.settings.compat

    def refused(self, status: int, request: Request | None = None, reason: str = "") -> None:
        """Count a request that was refused without a dial."""
        self.metrics.request_refused(status)
        if self.audit is not None and request is not None:
            self.audit.refused(request, status, reason)

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Count a client that did not prove who it is."""
        self.metrics.tls_refused(TlsPort.FRONTEND, refusal_of(error))

    def no_place(self, why: AdmissionRefusal, source: str) -> None:
        """Count a connection of a client for which there was no place."""
        self.agent_door.no_place(TlsPort.FRONTEND, why, source)

    def abandoned(self) -> None:
        """Count a client that left while its dial was under way."""
        self.metrics.dial_abandoned()


def main(settings: ServerSettings) -> int:
    """Run a server until it is told to stop; the exit code."""
    os.umask(0o077)
    allow_all()
    return lifetime.main(
        lambda: Server(settings), settings.log, drain_s=settings.graceful_shutdown_timeout_s
    )
