"""The server program: frontends on one side, agents on the other, dials in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
import time
import uuid
from functools import partial

from isthmus.app import lifetime, ports
from isthmus.app.server_view import server_view
from isthmus.app.tls_refusals import refusal_of
from isthmus.app.tunnels import TunnelTable
from isthmus.config.server import ServerSettings
from isthmus.core.agents import Agents
from isthmus.dialers.through_agent import AgentDial, AgentDialer
from isthmus.errors import DialFailure, LinkStage
from isthmus.frontends.http_connect import ConnectClient, ConnectFrontend
from isthmus.links.dials import IncomingDial
from isthmus.links.link import Link
from isthmus.links.server_side import AgentLink, Membership
from isthmus.net.contexts import HotContext, TlsFiles, server_context, watch
from isthmus.net.listen import Listener, bind_tcp, bind_uds
from isthmus.net.poller import Poller
from isthmus.observe.logs import OncePer, log
from isthmus.observe.metrics import ServerMetrics, TlsPort
from isthmus.tunnel.end import Ending
from isthmus.tunnel.limits import Limits, with_keepalive
from isthmus.tunnel.stream import Stream
from isthmus.values import HostPort, ServerId
from isthmus.wire.link import ALPN

_log = logging.getLogger("isthmus.server")
MOST_GREETING = 1024
_QUIET_S = 60.0
_LOOK_AGAIN_S = 0.05


class ConnectDial:
    """One request of a CONNECT client: the answer of its dial becomes a tunnel or a refusal."""

    __slots__ = ("_client", "_server")

    def __init__(self, server: Server, client: ConnectClient) -> None:
        self._server = server
        self._client = client

    def dialed(self, dial: AgentDial, stream: Stream, link: AgentLink) -> None:
        """The target is reached: join the client to it."""
        server = self._server
        end = self._client.established()
        if end is None:
            stream.abort(Ending.CANCELLED)
            return
        server.metrics.dial_succeeded(time.monotonic() - dial.started_at)
        server.tunnels.open(
            client=end,
            far=stream,
            target=dial.target,
            requester=dial.requester,
            agent_id=link.agent_id,
            link_id=link.id,
        )

    def dial_failed(self, dial: AgentDial, failure: DialFailure, detail: str) -> None:
        """It is not: answer and count."""
        server = self._server
        server.metrics.dial_failed(
            failure, time.monotonic() - dial.started_at, answered=dial.answered
        )
        server.once.log(
            ("dial", failure), _QUIET_S, _log, logging.WARNING, "dial failed",
            target=str(dial.target), reason=failure.value, detail=detail,
        )  # fmt: skip
        self._client.dial_failed(failure, detail)


class Server:
    """A running server."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.id = ServerId(settings.server_id or str(uuid.uuid4()))
        self.started_at = self.loop.time()
        self.draining = False
        self.metrics = ServerMetrics()
        self.once = OncePer(self.loop.time)
        self.poller = Poller(self.loop)
        self.tunnels = TunnelTable(self.loop, self.metrics, frontend="http-connect")
        self.agents: Agents[AgentLink] = Agents(settings.proxy_strategies, random.randrange)
        self.dialer = AgentDialer(self.loop, self.agents, timeout_s=settings.dial_limit_s)
        self.links: set[AgentLink] = set()
        self._limits = with_keepalive(Limits(), settings.keepalive_time_s)
        self.contexts: list[HotContext] = []
        self.frontend_port: int | None = None
        self.agent_port = 0
        self.health_port = 0
        self.admin_port = 0
        self._frontend: ConnectFrontend | None = None
        self._listeners: list[Listener] = []
        self._agent_listeners: list[Listener] = []
        self._ports: list[ports.Port] = []

    # Program.

    async def start(self) -> None:
        """Check every file, then open every port; see Program."""
        settings = self.settings
        frontend_tls = None
        try:
            if settings.frontend_port is not None:
                frontend_tls = self._hot("server", settings.server_ca_cert, alpn=())
            agent_tls = self._hot("cluster", settings.cluster_ca_cert, alpn=(ALPN,))
            self._listen(frontend_tls, agent_tls)
            await self._open_ports()
        except BaseException:
            await self.stop()
            raise
        self._set_gauges()
        log(
            _log, logging.INFO, "serving", server_id=self.id, uds=settings.uds_name or None,
            frontend_port=self.frontend_port, agent_port=self.agent_port,
            health_port=self.health_port, admin_port=self.admin_port,
        )  # fmt: skip

    async def watch(self) -> None:
        """Follow the certificate files; see Program."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(self.contexts), name="reload")
            tasks.create_task(self.tunnels.watch(), name="sweep")

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing more, tell the agents, wait for the tunnels; see Program."""
        self.draining = True
        for listener in self._listeners:
            listener.stop()
        for link in list(self.links):
            link.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                # A pending dial becomes a tunnel, and a tunnel's last bytes wait in its link.
                while len(self.dialer.pending) or len(self.tunnels) or self._unsent():
                    await self.tunnels.wait_empty()
                    await asyncio.sleep(_LOOK_AGAIN_S)

    def _unsent(self) -> bool:
        return any(link.unsent for link in self.links)

    async def stop(self) -> None:
        """Close everything; see Program."""
        for listener in (*self._listeners, *self._agent_listeners):
            listener.stop()
        self.tunnels.abort_all(Ending.DRAINED)
        for link in list(self.links):
            link.close("server stops")
        for dial in self.dialer.pending.take_all():
            dial.expire()
        if self._frontend is not None:
            self._frontend.close()
        while self.links:  # each is gone when its peer closed too, or GOODBYE_S later
            await asyncio.sleep(_LOOK_AGAIN_S)
        for port in self._ports:
            await port.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        self.poller.shut_down()

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
        )
        context = HotContext(files, build, purpose="server")
        self.contexts.append(context)
        return context

    def _listen(self, frontend_tls: HotContext | None, agent_tls: HotContext) -> None:
        settings = self.settings
        self._frontend = frontend = ConnectFrontend(
            self.loop,
            self.poller,
            self,
            compat=settings.compat,
            once=self.once,
            context=(lambda: frontend_tls.current) if frontend_tls is not None else None,
        )
        # Everything is bound before anything is accepted: a port in use leaves nothing open.
        bound: list[socket.socket] = []
        try:
            agents = bind_tcp(settings.agent_bind_address, settings.agent_port, flag="--agent-port")
            bound += agents
            clients: list[socket.socket] = []
            if settings.frontend_port is not None:
                clients = bind_tcp(
                    settings.server_bind_address, settings.frontend_port, flag="--server-port"
                )
                bound += clients
            if settings.uds_name:
                uds = bind_uds(
                    settings.uds_name,
                    delete_existing=settings.delete_existing_uds_file,
                    flag="--uds-name",
                )
                self._listeners.append(Listener(self.loop, uds, frontend.accept))
        except BaseException:
            for sock in bound:
                sock.close()
            raise
        for sock in clients:
            self._listeners.append(Listener(self.loop, sock, frontend.accept_tls))
            self.frontend_port = self._listeners[-1].port
        for sock in agents:
            listener = Listener(self.loop, sock, partial(self._accept_agent, agent_tls))
            self._agent_listeners.append(listener)
            self.agent_port = listener.port

    async def _open_ports(self) -> None:
        settings = self.settings
        health = await ports.serve(
            ports.server_health(ready=self.ready, metrics=self.metrics.render),
            host=settings.health_bind_address,
            port=settings.health_port,
            host_flag="--health-bind-address",
            port_flag="--health-port",
        )
        self._ports.append(health)
        admin = await ports.serve(
            ports.server_admin(snapshot=partial(server_view, self), metrics=self.metrics.render),
            host=settings.admin_bind_address,
            port=settings.admin_port,
            host_flag="--admin-bind-address",
            port_flag="--admin-port",
            admin=True,
        )
        self._ports.append(admin)
        self.health_port, self.admin_port = health.number, admin.number

    def _set_gauges(self) -> None:
        gauges = self.metrics.gauges
        gauges.pending_dials = lambda: len(self.dialer.pending)
        gauges.tunnels = gauges.http_connections = lambda: len(self.tunnels)
        gauges.links = lambda: len(self.agents)
        gauges.held_bytes = lambda: sum(link.session.held for link in self.links if link.session)
        gauges.reload_failures = lambda: sum(context.failures for context in self.contexts)
        gauges.draining = lambda: int(self.draining)
        gauges.lines_suppressed = lambda: self.once.suppressed
        gauges.live_bytes = self.tunnels.live_bytes
        gauges.certificates = self._expiries
        gauges.ready_agents = lambda: len({link.agent_id for link in self.agents})
        gauges.ready_by_strategy = self.agents.ready_by_strategy

    def _expiries(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for context in self.contexts:
            found.update(context.certificate_expiries())
        return found

    # Readiness.

    def ready(self) -> list[ports.Check]:
        """Ready: some strategy could choose an agent, and we do not drain."""
        agents = any(self.agents.ready_by_strategy().values())
        return [
            ports.Check("agents", "" if agents else "no connection to any proxy agent"),
            ports.Check("drain", "draining" if self.draining else ""),
        ]

    # Agents.

    def _accept_agent(self, context: HotContext, sock: socket.socket) -> None:
        if len(self.links) - len(self.agents) >= MOST_GREETING:
            sock.close()  # nobody has proved anything yet: they may not take every descriptor
            self.metrics.link_failed(LinkStage.REFUSED)
            return
        link = AgentLink(
            self.loop,
            self.poller,
            sock,
            context.current,
            membership=self._membership,
            on_ready=self._agent_ready,
            on_dial=self._agent_dials,
            on_closed=self._agent_gone,
            limits=self._limits,
        )
        self.links.add(link)

    def _membership(self) -> Membership:
        return Membership(server_id=self.id, server_count=self.settings.server_count)

    def _agent_ready(self, link: AgentLink) -> None:
        self.agents.add(link)
        self.metrics.link_opened()
        if self.draining:
            link.drain()
        log(
            _log, logging.INFO, "agent linked", agent_id=link.agent_id, link=link.id,
            address=link.peer_address, identity=str(link.identity), version=link.version,
        )  # fmt: skip

    def _agent_gone(self, link: Link) -> None:
        assert isinstance(link, AgentLink)
        self.links.discard(link)
        was_ready = bool(link.agent_id)
        self.agents.remove(link)
        if link.failure is not None:
            self.metrics.tls_refused(TlsPort.AGENT, refusal_of(link.failure))
        elif not link.orderly:
            self.metrics.link_failed(link.stage)
        log_it = partial(log, _log) if was_ready else partial(
            self.once.log, ("link", link.stage), _QUIET_S, _log
        )  # fmt: skip
        log_it(
            # A load balancer that looks whether the port is open connects and leaves: no warning.
            logging.INFO if was_ready or link.stage is LinkStage.LOST else logging.WARNING,
            "agent link ended" if was_ready else "agent link refused",
            agent_id=link.agent_id or None, link=link.id, address=link.peer_address,
            reason=link.closed_because,
        )  # fmt: skip

    def _agent_dials(self, incoming: IncomingDial) -> None:
        incoming.refuse(DialFailure.DENIED, "no destination is listed for agents")

    # Frontend.

    def dial(self, client: ConnectClient, target: HostPort) -> AgentDial:
        """A client asks for a target; see frontends.http_connect.Backend."""
        return self.dialer.dial(target, client.requester, ConnectDial(self, client))

    def refused(self, status: int) -> None:
        """Count a request that was refused without a dial."""
        self.metrics.request_refused(status)

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Count a client that did not prove who it is."""
        self.metrics.tls_refused(TlsPort.FRONTEND, refusal_of(error))

    def abandoned(self) -> None:
        """Count a client that left while its dial was under way."""
        self.metrics.dial_abandoned()


def main(settings: ServerSettings) -> int:
    """Run a server until it is told to stop; the exit code."""
    os.umask(0o077)
    return lifetime.main(
        lambda: Server(settings), settings, drain_s=settings.graceful_shutdown_timeout_s
    )
