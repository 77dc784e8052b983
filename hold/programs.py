"""A server or an agent as a process: its flags, its ports, and the resources it holds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import BenchError, Child, rss_kb

from isthmus.client.admin import AdminClient, AdminError
from isthmus.dial.rules_connectivity import ClientTls, NetworkConnection, NetworkProtocol
from isthmus.tools.pki.making import PkiFiles
from isthmus.values import HostPort

LOOPBACK = "127.0.0.1"


class SilentError(BenchError):
    """A running program does not answer on its administrative port, perhaps not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The resources of a program, which return to their previous values after the tunnels."""

    descriptors: int
    tasks: int
    streams: int
    tunnels: int

    def __str__(self) -> str:
        return (
            f"{self.descriptors} descriptors, {self.tasks} tasks, "
            f"{self.streams} streams, {self.tunnels} tunnels"
        )


@dataclass(slots=True, kw_only=True)
class Program:
    """The common part of servers and agents."""

    name: str
    files: PkiFiles
    kind: str = ""
    command: list[str] = field(default_factory=list)
    admin_port: int = 0
    child: Child = field(init=False)

    @property
    def admin(self) -> AdminClient:
        """A client of its administrative port."""
        return AdminClient(f"http://{LOOPBACK}:{self.admin_port}", timeout_s=20.0)

    def snapshot(self) -> dict[str, Any]:
        """Its snapshot, without tunnels.

        Raises:
            BenchError: it has ended; SilentError if it does not answer.
        """
        self.child.check_alive()
        try:
            return self.admin.get("/snapshot?limit=0")
        except AdminError as exc:
            raise SilentError(f"{self.name}: {exc}") from exc

    def peers(self) -> list[str]:
        """The peers of links that accept dials, one entry per link."""
        links = self.snapshot()["links"]
        return sorted(
            link["peerId"] for link in links if link["state"] not in ("greeting", "draining")
        )

    def tunnels(self) -> int:
        """The number of its tunnels."""
        return _tunnels(self.snapshot())

    def counts(self) -> Counts:
        """The present counts; the query itself always costs the same."""
        seen = self.snapshot()
        tasks = self.admin.text("/debug/pprof/goroutine?debug=2")
        time.sleep(0.05)  # let it close the connections of the query
        return Counts(
            descriptors=len(os.listdir(f"/proc/{self.child.pid}/fd")),
            tasks=sum(line.startswith("task ") for line in tasks.splitlines()),
            streams=sum(link["streams"] for link in seen["links"]),
            tunnels=_tunnels(seen),
        )

    def memory_mb(self) -> float:
        """Its resident memory."""
        return rss_kb([self.child.pid]) / 1024

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still running."""
        if self.child.process.poll() is None:
            self.child.process.send_signal(number)


def _tunnels(snapshot: dict[str, Any]) -> int:
    return int(snapshot["truncated"]) + len(snapshot["tunnels"])


@dataclass(slots=True, kw_only=True)
class Server(Program):
    """A server with both frontends."""

    host: str
    agent_port: int
    ports: tuple[int, ...]
    directory: Path
    kind: str = "server"

    def __post_init__(self) -> None:
        self.admin_port = self.ports[3]

    def passing(self) -> int:
        """The number of agents' connections to other servers that pass through it."""
        name = "isthmus_server_agent_connections_passing "
        lines = self.admin.text("/metrics").splitlines()
        return next((int(float(line.split()[1])) for line in lines if line.startswith(name)), 0)

    def uds(self, frontend: str) -> str:
        """The UNIX socket of a frontend."""
        return str(self.directory / f"{self.name}-{frontend}.sock")

    def flags(self, more: Sequence[str]) -> list[str]:
        """Its command line."""
        grpc, connect, health, admin = self.ports
        files = self.files
        return [
            f"--server-id={self.name}", "--mode=grpc,http-connect",
            f"--uds-name={self.uds('grpc')}", f"--http-connect-uds-name={self.uds('connect')}",
            f"--server-port={grpc}", f"--http-connect-port={connect}",
            f"--server-bind-address={LOOPBACK}",
            f"--server-cert={files.server_cert}", f"--server-key={files.server_key}",
            f"--server-ca-cert={files.client_ca_cert}",
            f"--agent-port={self.agent_port}", f"--agent-bind-address={self.host}",
            f"--cluster-cert={files.server_cert}", f"--cluster-key={files.server_key}",
            f"--cluster-ca-cert={files.ca_cert}",
            f"--health-port={health}", f"--health-bind-address={LOOPBACK}",
            f"--admin-port={admin}", "--enable-profiling", *more,
        ]  # fmt: skip

    def door(self, frontend: str, carrier: str = "uds") -> NetworkConnection:
        """A connection for clients: ``connect`` or ``grpc``, by ``uds`` or ``tls``."""
        protocol = NetworkProtocol.HTTP_CONNECT if frontend == "connect" else NetworkProtocol.PACKET
        if carrier == "uds":
            return NetworkConnection(protocol=protocol, uds=self.uds(frontend))
        port = self.ports[1 if frontend == "connect" else 0]
        files = self.files
        tls = ClientTls(
            ca_bundle=str(files.ca_cert),
            client_cert=str(files.client_cert),
            client_key=str(files.client_key),
        )
        return NetworkConnection(protocol=protocol, tcp=HostPort("localhost", port), tls=tls)

    def has(self, agent: str) -> bool:
        """Whether dials may go to an agent: it has an open link that is not stalled."""
        return any(
            link["peerId"] == agent and link["state"] == "open" for link in self.snapshot()["links"]
        )


@dataclass(slots=True, kw_only=True)
class Agent(Program):
    """An agent."""

    ports: tuple[int, int]
    kind: str = "agent"

    def __post_init__(self) -> None:
        self.admin_port = self.ports[1]

    def flags(self, server: Server, link: str, more: Sequence[str]) -> list[str]:
        """Its command line."""
        files = self.files
        hosts = [] if any(flag.startswith("--proxy-server-host") for flag in more) else [
            f"--proxy-server-host={server.host}"
        ]  # fmt: skip
        return [
            f"--agent-id={self.name}", *hosts, f"--proxy-server-port={server.agent_port}",
            f"--ca-cert={files.ca_cert}", f"--agent-cert={files.agent_cert}",
            f"--agent-key={files.agent_key}", f"--link={link}",
            f"--health-server-host={LOOPBACK}", f"--health-server-port={self.ports[0]}",
            f"--admin-server-port={self.ports[1]}", "--enable-profiling", *more,
        ]  # fmt: skip
