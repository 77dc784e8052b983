"""Servers, agents and clients of the konnectivity protocol, Go's and ours, as processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from programs import Program, Programs
from stack import wait_until

from isthmus.tools.pki.making import PkiFiles

PATIENCE_S = 30.0
CHECK_S = 90
Event = dict[str, Any]


class GoPeer:
    """One Go process: a JSON line for everything that happens, gone when its stdin closes."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self._file = log.open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._file, text=True
        )
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"go:{command[1]}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def count(self, name: str) -> int:
        """How often an event has happened."""
        with self._changed:
            return sum(event.get("event") == name for event in self.events)

    def wait(self, name: str, at_least: int = 1) -> Event:
        """Wait until an event has happened that often; the last such one."""

        def found() -> list[Event]:
            return [event for event in self.events if event.get("event") == name]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= at_least or self._ended, PATIENCE_S)
            assert len(found()) >= at_least, f"no {name}: {self.events}\n{self._log.read_text()}"
            return found()[at_least - 1]

    def first(self) -> Event:
        """Wait for the first line."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.events) or self._ended, PATIENCE_S)
            assert self.events, self._log.read_text()
            return self.events[0]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait_exit(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def end(self) -> None:
        """Kill it: it has nothing to lose, and gRPC takes seconds to end by itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self.process.stdout.close()
        self._file.close()


class Target:
    """What tunnels lead to: a port for each role, and counters for what came."""

    def __init__(self, binary: Path, logs: Path) -> None:
        self._peer = GoPeer([str(binary), "target"], logs / "target.log")
        self.ports: dict[str, str] = self._peer.first()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.end()

    def __getitem__(self, role: str) -> str:
        """The address of a role."""
        return self.ports[role]

    def counters(self, role: str) -> dict[str, int]:
        """Accepted and open connections, and bytes received, of a role."""
        host, port = self.ports["stats"].split(":")
        with (
            socket.create_connection((host, int(port)), PATIENCE_S) as sock,
            sock.makefile() as file,
        ):
            found: dict[str, int] = json.loads(file.read())[role]
            return found

    def wait_closed(self, role: str) -> None:
        """Wait until no connection of a role is open."""
        wait_until(lambda: self.counters(role)["open"] == 0, f"{role} connections all end")


class Peers(Programs):
    """Starts peers; ends them all when the test is over."""

    def __init__(self, binary: Path, files: PkiFiles, target: Target, logs: Path) -> None:
        super().__init__(files, logs)
        self.binary = binary
        self.target = target
        self._dir = logs
        self._go: list[GoPeer] = []
        self.said = ""  # on standard error by the client that ran last

    def __exit__(self, *_: object) -> None:
        for peer in self._go:
            peer.end()
        super().__exit__()

    # Go's peers.

    def start_go(self, *args: str) -> GoPeer:
        """Start a Go peer."""
        log = self._dir / f"go-{len(self._go)}-{args[0]}.log"
        peer = GoPeer([str(self.binary), *args], log)
        self._go.append(peer)
        return peer

    def _tls(self, role: str) -> list[str]:
        cert, key = {
            "server": (self.files.server_cert, self.files.server_key),
            "agent": (self.files.agent_cert, self.files.agent_key),
            "client": (self.files.client_cert, self.files.client_key),
        }[role]
        return [f"--ca={self.files.ca_cert}", f"--cert={cert}", f"--key={key}"]

    def go_server(self, *more: str, uds: str = "") -> GoPeer:
        """Start what stands in for konnectivity's server, and wait until it serves."""
        Path(uds or self.uds).unlink(missing_ok=True)  # of one that was ended just now
        peer = self.start_go(
            "server", f"--uds={uds or self.uds}", "--id=go-server", *self._tls("server"), *more
        )
        peer.wait("serving")
        return peer

    def go_agent(self, server: Program, *more: str, linked: bool = True) -> GoPeer:
        """Start what stands in for konnectivity's agent, and wait until it is connected."""
        port = server.port("agent_port")
        flags = [f"--address=localhost:{port}", "--id=go-agent", *self._tls("agent")]
        peer = self.start_go("agent", *flags, *more)
        if linked:
            peer.wait("connected")
            self.wait_ready(server)
        return peer

    def agent_of(self, server: GoPeer, *more: str) -> Program:
        """Start our agent of a Go server, and wait until the server has it."""
        port = int(server.wait("serving")["agent_port"])
        program = self.start("agent", *self.agent_flags(port), *more)
        wait_until(
            lambda: server.count("agent") > 0 or program.process.poll() is not None,
            "the agent connects to the Go server",
        )
        assert server.count("agent"), program.log
        return program

    # Go's clients.

    def over_tls(self, server: Program) -> list[str]:
        """The flags of a client of a server's TCP port."""
        return [f"--address=localhost:{server.port('frontend_port')}", *self._tls("client")]

    def to_agent_port(self, server: Program) -> list[str]:
        """The flags of a raw client that poses as an agent."""
        return [f"--address=localhost:{server.port('agent_port')}", *self._tls("agent")]

    def run(self, command: str, *flags: str, script: str = "", timeout_s: int = CHECK_S) -> Any:
        """Run a client to its end; all lines that it printed. It must have succeeded."""
        way = [] if any(f.startswith("--address=") for f in flags) else [f"--uds={self.uds}"]
        done = subprocess.run(
            [str(self.binary), command, *way, f"--timeout={timeout_s}s", *flags],
            input=script,
            capture_output=True,
            text=True,
            timeout=timeout_s + 20,
        )
        self.said = done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0, f"{command}: {lines[-3:]}\n{done.stderr[-3000:]}"
        # What came by another stream may be printed after the result.
        result = next(line for line in lines if "ok" in line)
        assert result["ok"] is True
        return [*(line for line in lines if line is not result), result]

    def check(self, command: str, role: str, *flags: str, timeout_s: int = CHECK_S) -> Event:
        """Run a client against a role of the target; what it found."""
        address = self.target.ports.get(role, role)
        found: Event = self.run(command, f"--target={address}", *flags, timeout_s=timeout_s)[-1]
        return found

    def script(self, *steps: Event, flags: Sequence[str] = ()) -> list[Event]:
        """Run a script of raw packets; everything that came, in order."""
        lines = self.run("raw", *flags, script="".join(json.dumps(s) + "\n" for s in steps))
        return list(lines[:-1])
