"""A server with two workers and an agent, as processes, and what can be asked of them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, NamedTuple

from clients import LIMIT_S, Client, TlsClient, connect_uds
from programs import Program, Programs
from stack import client_context, http_get, metric, wait_until

WORKERS = 2
#: Three processes start, of which two one after the other.
START_S = 3 * LIMIT_S
HANDED = "isthmus_workers_connections_handed_total"


def serving(programs: Programs, *args: str) -> Program:
    """Start a program with workers, and wait until it serves."""
    program = programs.start(*args)
    wait_until(
        lambda: "serving " in program.log or program.process.poll() is not None,
        "it serves",
        START_S,
    )
    assert "serving " in program.log, program.log
    return program


def wait_workers(program: Program) -> None:
    """Wait until every worker of a forwarder is ready: until then the others get connections."""

    def are_ready() -> bool:
        workers = json.loads(http_get(program.port("admin_port"), "/workers")[1])["workers"]
        return all(it["ready"] for it in workers)

    wait_until(are_ready, "every worker is ready")


class Bed(NamedTuple):
    """The programs of a test; ``programs`` ends them."""

    programs: Programs
    server: Program

    @classmethod
    def start(cls, programs: Programs, *more: str, audited: bool = False) -> Bed:
        """Start a server with two workers that serves both protocols."""
        if audited:
            more = (f"--audit-log-path={_audit_log(programs)}", *more)
        server = serving(
            programs,
            "server",
            *programs.server_flags(),
            f"--workers={WORKERS}", "--mode=grpc,http-connect", "--http-connect-port=0",
            f"--http-connect-uds-name={programs.uds}.http", "--server-id=one", *more,
        )  # fmt: skip
        return cls(programs, server)

    def agent(self, *more: str) -> Program:
        """Start an agent, and wait until it is linked to every worker."""
        flags = self.programs.agent_flags(self.server.port("agent_port"))
        agent = self.programs.start("agent", *flags, *more)
        self.wait_linked()
        return agent

    def wait_linked(self, agents: int = 1) -> None:
        """Wait until every worker has so many agents."""
        wait_until(
            lambda: [self.links_of(index) for index in range(WORKERS)] == [agents] * WORKERS,
            "every worker has the agents",
            START_S,
        )
        wait_until(lambda: all(it["ready"] for it in self.workers), "every worker says so")

    @property
    def audit_log(self) -> Path:
        """The file that all records are in, of a server that is audited."""
        return _audit_log(self.programs)

    def links_of(self, index: int) -> int:
        """How many links a worker has."""
        status, text = self.get(f"/metrics?worker={index}")
        return int(metric(text, "isthmus_server_links")) if status == 200 else -1

    def get(self, path: str) -> tuple[int, str]:
        """Ask the admin port."""
        return http_get(self.server.port("admin_port"), path)

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What the parent says about its workers."""
        return list(json.loads(self.get("/workers")[1])["workers"])

    @property
    def snapshot(self) -> dict[str, Any]:
        """What all of them have open."""
        found: dict[str, Any] = json.loads(self.get("/snapshot")[1])
        return found

    def client(self, kind: str) -> Client:
        """Connect to a frontend: ``uds`` or ``tcp`` of http-connect, ``grpc-uds``, ``grpc-tcp``."""
        if kind.endswith("uds"):
            return connect_uds(f"{self.programs.uds}{'' if kind == 'grpc-uds' else '.http'}")
        name = "frontend_port" if kind == "grpc-tcp" else "http_connect_port"
        sock = socket.create_connection(("127.0.0.1", self.server.port(name)), LIMIT_S)
        return TlsClient(sock, client_context(self.programs.files), "localhost")

    def worker_of(self, tunnel: dict[str, Any]) -> int:
        """Which worker has a tunnel of the snapshot."""
        return int(tunnel["id"]) % 100


def _audit_log(programs: Programs) -> Path:
    return Path(programs.uds).with_name("audit.log")


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still are."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(text) for text in found]


def is_running(pid: int) -> bool:
    """Tell whether there is such a process, and it is more than its entry."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")
