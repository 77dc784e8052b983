"""Servers and agents in this process, on the event loop of a thread of their own.

Tests stay plain blocking code: they talk to the ports as any client would, and ask the programs
what they think by ``do``, which runs in the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop
from clients import LIMIT_S, Client, TlsClient, connect_uds, tunnel

from isthmus.frame.audit.recording import Auditor
from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.observe.tracing import Tracing
from isthmus.frame.tunnels import TunnelsPart, TunnelTable
from isthmus.net.contexts import HotContext
from isthmus.programs.agent import PROGRAM as AGENT
from isthmus.programs.agent.node_traffic import NodeTraffic
from isthmus.programs.agent.server_links import ServerLinks
from isthmus.programs.agent.servers import Servers
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.agent.target_dial import TargetDial, TargetDials
from isthmus.programs.server import PROGRAM as SERVER
from isthmus.programs.server.admission import Admission
from isthmus.programs.server.dials import ServerDials
from isthmus.programs.server.doors import ClientListening
from isthmus.programs.server.networks import ServerNetworks
from isthmus.programs.server.node_dials import NodeDials
from isthmus.programs.server.peers_relay import RelayKeeper, Relays
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import compose
from isthmus.tools.pki.making import PkiFiles
from isthmus.values import ServerId

T = TypeVar("T")


class Agent(Lifecycle):
    """An agent, and what tests ask its parts."""

    def __init__(self, settings: AgentSettings) -> None:
        super().__init__(AGENT, settings)
        self.settings = settings
        self.id = self.ground.id
        self.loop = self.ground.loop
        self.once = self.ground.once
        self.budget = self.ground.budget
        self.tunnels: TunnelTable = self.part(TunnelsPart).table
        self.dialer = self.part(TargetDials).dialer
        found = [part for part in self.parts if isinstance(part, NodeTraffic)]
        self.node = found[0] if found else None

    @property
    def servers(self) -> Servers | None:
        return self.part(ServerLinks).servers

    @property
    def dials(self) -> set[TargetDial]:
        return self.part(TargetDials).under_way

    @property
    def draining(self) -> bool:
        return self.ground.draining

    @property
    def tracing(self) -> Tracing | None:
        return self.ground.tracing

    @tracing.setter
    def tracing(self, tracing: Tracing | None) -> None:
        self.ground.tracing = self.part(TargetDials).tracing = tracing


class Server(Lifecycle):
    """A server, and what tests ask its parts."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(SERVER, settings)
        self.settings = settings
        self.id = ServerId(self.ground.id)
        self.loop = self.ground.loop
        self.once = self.ground.once
        self.budget = self.ground.budget
        self.tunnels: TunnelTable = self.part(TunnelsPart).table
        self.dials = self.part(ServerDials)
        self.dialer = self.dials.dialer
        self.agent_door = self.dials.agent_door
        self.agents = self.agent_door.agents
        self.links = self.agent_door.links
        self.networks = self.part(ServerNetworks)
        self.node_dials = self.part(NodeDials)
        self.doors = self.part(ClientListening)._doors
        self._admission = self.part(Admission)

    @property
    def relays(self) -> RelayKeeper | None:
        return self.part(Relays).keeper

    @property
    def agent_port(self) -> int:
        return self.agent_door.port

    @property
    def frontend_port(self) -> int | None:
        return self.part(ClientListening).port

    @property
    def draining(self) -> bool:
        return self.ground.draining

    @property
    def contexts(self) -> list[HotContext]:
        return self.ground.contexts

    @property
    def audit(self) -> Auditor | None:
        return self.dials.audit

    @audit.setter
    def audit(self, audit: Auditor | None) -> None:
        self.dials.audit = audit

    @property
    def tracing(self) -> Tracing | None:
        return self.ground.tracing

    @tracing.setter
    def tracing(self, tracing: Tracing | None) -> None:
        self.ground.tracing = self.dials.tracing = tracing


Program = Server | Agent


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Ask again and again until it holds; fail with ``what`` when it never does."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)


def client_context(files: PkiFiles) -> ssl.SSLContext:
    """What a client of the TCP frontend uses."""
    context = ssl.create_default_context(cafile=str(files.ca_cert))
    context.load_cert_chain(files.client_cert, files.client_key)
    return context


def agent_context(files: PkiFiles) -> ssl.SSLContext:
    """What an agent uses, for peers that only pretend to be one."""
    context = ssl.create_default_context(cafile=str(files.ca_cert))
    context.load_cert_chain(files.agent_cert, files.agent_key)
    context.set_alpn_protocols(["isthmus/1"])
    return context


def http_get(port: int, path: str) -> tuple[int, str]:
    """Ask a health or admin port; the status and the text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def metric(text: str, name: str) -> float:
    """The value of one sample of a scrape, named with its labels."""
    found = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    assert len(found) == 1, f"{name}: {found}"
    return float(found[0].rsplit(" ", 1)[1])


def counted(text: str, name: str) -> float:
    """The value of a sample that is there from its first event on; 0 before."""
    return metric(text, name) if f"\n{name} " in text else 0


#: Loops that could not be closed, kept from being collected: each turns in its own thread.
_abandoned: list[asyncio.AbstractEventLoop] = []


class Stack:
    """Some servers and agents; everything is stopped and checked at the end."""

    def __init__(self, files: PkiFiles, link: str = "auto") -> None:
        self.files = files
        self.link = link  # what agents speak
        self.dir = Path(tempfile.mkdtemp(prefix="isthmus-"))
        self.servers: list[Server] = []
        self.agents: list[Agent] = []
        self._watching: dict[Program, asyncio.Task[None]] = {}
        self.loop = uvloop.new_event_loop()
        self.unhandled: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.unhandled.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, name="stack", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for program in list(self._watching):
                self.run(self._stop(program))
            left = self.do(lambda: [t for t in asyncio.all_tasks(self.loop) if not t.done()])
        except BaseException:
            # uvloop waits without end for what a program that did not stop has open.
            _abandoned.append(self.loop)
            raise
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LIMIT_S)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.dir)
        assert not self.unhandled, self.unhandled
        # The task that asked is one of them.
        assert len(left) <= 1, left

    # In the loop.

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_S)

    def do(self, work: Callable[[], T]) -> T:
        """Call a function in the loop and wait for it."""

        async def call() -> T:
            return work()

        return self.run(call())

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, asked in the loop."""
        wait_until(lambda: self.do(holds), what)

    # Programs.

    @property
    def server(self) -> Server:
        """The first server."""
        return self.servers[0]

    @property
    def agent(self) -> Agent:
        """The first agent."""
        return self.agents[0]

    def add_server(self, **settings: Any) -> Server:
        """Start a server with a UNIX and a TLS frontend on free ports."""
        files = self.files
        uds = self.dir / f"{len(self.servers)}.sock"
        given: dict[str, Any] = {
            "mode": ("http-connect",),
            "uds_name": str(uds),
            "server_port": 0,
            "server_bind_address": "127.0.0.1",
            "server_cert": str(files.server_cert),
            "server_key": str(files.server_key),
            "server_ca_cert": str(files.client_ca_cert),
            "agent_port": 0,
            "agent_bind_address": "127.0.0.1",
            "cluster_cert": str(files.server_cert),
            "cluster_key": str(files.server_key),
            "cluster_ca_cert": str(files.ca_cert),
            "health_bind_address": "127.0.0.1",
            "health_port": 0,
            "admin_port": 0,
        }
        made = compose(ServerSettings, **(given | settings))
        made.validate()
        server = self.do(lambda: Server(made))
        self._start(server)
        self.servers.append(server)
        return server

    def add_agent(self, *, linked: bool = True, **settings: Any) -> Agent:
        """Start an agent that links to the first server, and wait until it does."""
        files = self.files
        given: dict[str, Any] = {
            "proxy_server_host": ("127.0.0.1",),
            "proxy_server_port": self.server.agent_port if self.servers else 1,
            "ca_cert": str(files.ca_cert),
            "agent_cert": str(files.agent_cert),
            "agent_key": str(files.agent_key),
            "health_server_host": "127.0.0.1",
            "health_server_port": 0,
            "admin_server_port": 0,
            "link": self.link,
            "sync_interval_s": 0.05,
            "sync_interval_cap_s": 0.2,
        }
        made = compose(AgentSettings, **(given | settings))
        made.validate()
        agent = self.do(lambda: Agent(made))
        self._start(agent)
        self.agents.append(agent)
        if linked:
            self.wait(lambda: self.is_linked(agent), "the agent links to the server")
        return agent

    def is_linked(self, agent: Agent) -> bool:
        """The first server could choose this agent."""
        return any(link.agent_id == agent.id and link.takes_dials for link in self.server.agents)

    def stop(self, program: Program) -> None:
        """Stop one program at once."""
        self.run(self._stop(program))
        (self.servers if isinstance(program, Server) else self.agents).remove(program)  # type: ignore[arg-type]

    def _start(self, program: Program) -> None:
        async def start() -> None:
            await program.start()
            self._watching[program] = asyncio.create_task(program.watch())

        self.run(start())

    async def _stop(self, program: Program) -> None:
        watching = self._watching.pop(program)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await program.stop()

    def wait_idle(self) -> None:
        """Wait until no tunnel, dial or stream is left anywhere."""
        self.wait(self._is_idle, "every tunnel ended")

    def _is_idle(self) -> bool:
        links = [link for server in self.servers for link in server.links]
        return (
            not any(len(program.tunnels) for program in self._watching)
            and not any(len(server.dialer.pending) for server in self.servers)
            and all(link.load == 0 for link in links)
        )

    # Clients.

    def uds(self) -> Client:
        """Connect to the first server's UNIX socket."""
        return connect_uds(self.server.settings.uds_name)

    def tls(self) -> TlsClient:
        """Connect to the first server's TCP port."""
        assert self.server.frontend_port is not None
        sock = socket.create_connection(("127.0.0.1", self.server.frontend_port), LIMIT_S)
        try:
            return TlsClient(sock, client_context(self.files), "localhost")
        except BaseException:
            sock.close()
            raise

    def client(self, kind: str) -> Client:
        """Connect by ``uds`` or ``tls``."""
        return self.tls() if kind == "tls" else self.uds()

    def tunnel(self, kind: str, target: str, early: bytes = b"") -> Client:
        """Open a tunnel by ``uds`` or ``tls``."""
        return tunnel(self.client(kind), target, early)

    # What the ports say.

    def snapshot(self, program: Program | None = None) -> dict[str, Any]:
        """A program's snapshot, by its admin port; the first server's when none is named."""
        status, text = http_get((program or self.server).admin_port, "/snapshot")
        assert status == 200
        found: dict[str, Any] = json.loads(text)
        return found

    def metrics(self, program: Program | None = None) -> str:
        """A program's metrics, by its health port; the first server's when none is named."""
        status, text = http_get((program or self.server).health_port, "/metrics")
        assert status == 200
        return text
