"""Servers and agents as processes: started with flags, watched by their log, ended by their id."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Self

from clients import LIMIT_S, Client, TlsClient, connect_uds
from forked import COMMAND, CURRENT, ENVIRONMENT, Forked
from stack import client_context, http_get, wait_until

from isthmus.tools.pki.making import PkiFiles


class Program:
    """One process and its log."""

    def __init__(
        self, args: list[str], log: Path, source: Path = CURRENT, *, forked: bool = True
    ) -> None:
        """Start it, of the version whose package is in ``source``.

        One that is not ``forked`` can be told by its command line, as the doctor does.
        """
        self._log = log
        self._file: IO[bytes] = log.open("wb")
        self.process: Forked | subprocess.Popen[bytes]
        if forked and source == CURRENT:
            self.process = Forked(args, self._file.fileno())
        else:
            environment = {**ENVIRONMENT, "PYTHONPATH": str(source)}
            self.process = subprocess.Popen([*COMMAND, *args], stderr=self._file, env=environment)

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text()

    def port(self, name: str) -> int:
        """A port that it said it serves."""
        found = re.search(rf"serving .*\b{name}=([0-9]+)", self.log)
        assert found, self.log
        return int(found[1])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait_log(self, text: str) -> None:
        """Wait until a text is in the log."""
        wait_until(lambda: text in self.log or self.process.poll() is not None, f"log: {text}")
        assert text in self.log, self.log

    def wait_exit(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(LIMIT_S)

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(LIMIT_S)
        self._file.close()


def _unless_given(flags: list[str], more: tuple[str, ...]) -> list[str]:
    """The flags without those that come again."""
    given = {each.partition("=")[0] for each in more}
    return [each for each in flags if each.partition("=")[0] not in given]


class Programs:
    """Starts programs; ends them all when the test is over."""

    def __init__(self, files: PkiFiles, logs: Path, *, forked: bool = True) -> None:
        self.files = files
        self._forked = forked
        self.uds = str(Path(tempfile.mkdtemp(prefix="isthmus-")) / "s.sock")
        self._logs = logs
        self._started: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._started:
            program.end()
        shutil.rmtree(Path(self.uds).parent)

    def start(self, *args: str, source: Path = CURRENT) -> Program:
        """Start the command line with these arguments."""
        log = self._logs / f"{len(self._started)}.log"
        program = Program(list(args), log, source, forked=self._forked)
        self._started.append(program)
        return program

    def server_flags(self) -> list[str]:
        """The flags of a server on free ports, all on loopback."""
        files = self.files
        return [
            "--mode=http-connect",
            f"--uds-name={self.uds}",
            "--server-port=0",
            "--server-bind-address=127.0.0.1",
            f"--server-cert={files.server_cert}",
            f"--server-key={files.server_key}",
            f"--server-ca-cert={files.client_ca_cert}",
            "--agent-port=0",
            "--agent-bind-address=127.0.0.1",
            f"--cluster-cert={files.server_cert}",
            f"--cluster-key={files.server_key}",
            f"--cluster-ca-cert={files.ca_cert}",
            "--health-bind-address=127.0.0.1",
            "--health-port=0",
            "--admin-port=0",
        ]

    def agent_flags(self, port: int) -> list[str]:
        """The flags of an agent of the server at this agent port."""
        files = self.files
        return [
            f"--proxy-server-port={port}",
            f"--ca-cert={files.ca_cert}",
            f"--agent-cert={files.agent_cert}",
            f"--agent-key={files.agent_key}",
            "--health-server-host=127.0.0.1",
            "--health-server-port=0",
            "--admin-server-port=0",
            "--sync-interval=50ms",
            "--sync-interval-cap=200ms",
        ]

    def server(self, *more: str, source: Path = CURRENT) -> Program:
        """Start a server and wait until it serves; a flag given again wins."""
        flags = _unless_given(self.server_flags(), more)
        program = self.start("server", *flags, *more, source=source)
        program.wait_log("serving ")
        return program

    def agent(self, server: Program, *more: str, source: Path = CURRENT) -> Program:
        """Start an agent and wait until it is linked."""
        flags = _unless_given(self.agent_flags(server.port("agent_port")), more)
        program = self.start("agent", *flags, *more, source=source)
        program.wait_log("linked ")
        return program

    def connect_uds(self) -> Client:
        """Connect to the UNIX socket."""
        return connect_uds(self.uds)

    def connect_tls(self, server: Program) -> TlsClient:
        """Connect to a server's TCP frontend."""
        port = server.port("frontend_port")
        sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        return TlsClient(sock, client_context(self.files), "localhost")

    def wait_ready(self, server: Program) -> None:
        """Wait until a server has an agent."""
        port = server.port("health_port")
        wait_until(lambda: http_get(port, "/readyz")[0] == 200, "the server is ready")
