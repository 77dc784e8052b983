"""The environment of a scenario: certificates, a target, servers and agents as processes."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from processes import Child, Workspace
from topologies import wait_until

from hold import ROOT
from hold.programs import Agent, Program, Server, SilentError
from isthmus.tools.pki import making as pki

LAUNCH = ROOT / "bench" / "launch.py"
#: Every address that a server may have in a scenario.
NAMES = ("localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3", "10.77.0.1")
READY_S = 60.0


class Target:
    """The target's process; see target.py."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.port = port

    def address(self, host: str = "127.0.0.1") -> str:
        """The target of tunnels."""
        return f"{host}:{self.port}"

    def ask(self, line: str) -> dict[str, object]:
        """Send it a query, directly."""
        with socket.create_connection(("127.0.0.1", self.port), READY_S) as sock:
            sock.sendall(line.encode() + b"\n")
            said = b"".join(iter(lambda: sock.recv(1 << 20), b""))
        answer: dict[str, object] = json.loads(said)
        return answer


class Ground:
    """Starts the programs of one scenario; leaving the workspace ends them all.

    ``say`` receives progress messages. ``alone`` is whether the run has its own network namespace.
    """

    def __init__(
        self, space: Workspace, *, alone: bool = False, say: Callable[[str], None] = print
    ) -> None:
        self.space = space
        self.alone = alone
        self.say = say
        self.files = pki.init(space.dir / "pki", server_names=NAMES, days=2, one_ca=True)
        self.target = self._target()

    def _target(self) -> Target:
        child = self.space.start(
            "target",
            [sys.executable, "-m", "hold.target"],
            speaks=True,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        )
        return Target(child, int(child.read_line(READY_S)["port"]))

    def server(
        self,
        name: str,
        *more: str,
        host: str = "127.0.0.1",
        agent_port: int = 0,
        files: pki.PkiFiles | None = None,
    ) -> Server:
        """Start a server with both frontends, each by UNIX socket and by TLS, without waiting."""
        files = files or self.files
        server = Server(
            name=name,
            host=host,
            agent_port=agent_port or self.space.free_port(),
            ports=tuple(self.space.free_port() for _ in range(4)),
            directory=self.space.dir,
            files=files,
        )
        self.start(server, server.flags(more))
        return server

    def agent(
        self,
        name: str,
        server: Server,
        *more: str,
        link: str = "mux",
        inside: Sequence[str] = (),
        files: pki.PkiFiles | None = None,
    ) -> Agent:
        """Start an agent of a server, whose address ``more`` may override, without waiting.

        ``inside`` is a prefix of its command.
        """
        agent = Agent(
            name=name,
            ports=(self.space.free_port(), self.space.free_port()),
            files=files or self.files,
        )
        self.start(agent, agent.flags(server, link, more), inside)
        return agent

    def pair(self, link: str) -> tuple[Server, Agent]:
        """Start a server and an agent, and wait until they are linked."""
        server = self.server(f"s-{link}")
        agent = self.agent(f"a-{link}", server, link=link)

        def linked() -> bool:
            try:
                return server.has(agent.name)
            except SilentError:
                return False

        wait_until(linked, (server.child, agent.child), "the link")
        return server, agent

    def start(self, program: Program, flags: Sequence[str], inside: Sequence[str] = ()) -> None:
        """Start a program; ``again`` starts it with the same flags."""
        program.command = [*inside, sys.executable, str(LAUNCH), program.kind, *flags]
        self.again(program)

    def again(self, program: Program) -> None:
        """Start a program again with its flags, after its end."""
        program.child = self.space.start(program.name, program.command)

    def end(self, program: Program, by: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal that ends a program, and wait for its end."""
        program.signal(by)
        program.child.wait(READY_S)
        self.space.stop(program.child)
