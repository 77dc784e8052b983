"""The measured paths from client to target: direct, a haproxy pair, a tunnel.

Each start function starts fresh processes, waits until a dial would succeed, and returns how the
load program reaches the target through them.
"""

from __future__ import annotations

import http.client
import shlex
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import handshake
from certs import Certs
from figures import CURL, Load
from processes import BenchError, Child, Workspace, process_tree

HERE = Path(__file__).resolve().parent
READY_TIMEOUT_S = 20.0
_LINKS = "konnectivity_network_proxy_agent_open_server_connections "


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A running path to the target. ``processes`` are the proxies, never client or target.

    ``load`` is a load program that supports ``via``, if the usual one does not. ``at`` is the
    address to connect to instead of the target, for a proxy with one fixed target. ``curl`` are
    curl's options, if curl is the load program.
    """

    name: str
    via: str
    uds: Path | None = None
    processes: tuple[Child, ...] = ()
    load: Path | None = None
    only: frozenset[str] | None = None
    at: str = ""
    curl: tuple[str, ...] = ()

    def measures(self, load: Load) -> bool:
        """Whether the path is part of a measurement; ``only`` restricts it to some."""
        if bool(self.curl) != (load.group == CURL):
            return False
        return self.only is None or load.name in self.only

    def pids(self) -> list[int]:
        """The proxies with all their workers."""
        for child in self.processes:
            child.check_alive()
        return process_tree([child.pid for child in self.processes])

    def stop(self, space: Workspace) -> None:
        """End its processes."""
        for child in self.processes:
            space.stop(child)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The commands of server and agent; empty means Isthmus in ``tree``."""

    server: str = ""
    agent: str = ""
    profiler: str = ""
    profile_dir: Path = field(default_factory=Path)
    tree: Path = HERE.parent

    def words(self, role: str, flags: list[str]) -> list[str]:
        """The command line of one role: the flags are appended to another implementation's too."""
        override = {"server": self.server, "agent": self.agent}.get(role)
        if override:
            return [*shlex.split(override), *flags]
        command = [sys.executable, str(self.tree / "bench" / "launch.py")]
        if self.profiler == "cprofile":
            command.append(f"--cprofile={self.profile_dir / role}.pstats")
        return [*command, role, *flags]


def start_direct(space: Workspace, target: str) -> Topology:
    """No proxy at all."""
    return Topology(name="direct", via="tcp")


def start_stub(space: Workspace, load: Path, target: str) -> Topology:
    """The load program's own CONNECT proxy without TLS: the cost of the harness itself."""
    uds = space.path("stub.sock")
    child = space.start("stub", [str(load), "connect-stub", f"--uds={uds}"], speaks=True)
    child.read_line(READY_TIMEOUT_S)
    return Topology(name="stub", via="connect", uds=uds, processes=(child,))


def _haproxy(space: Workspace, half: str, **values: object) -> Child:
    config = space.path(f"{half}.cfg")
    config.write_text((HERE / "haproxy" / f"{half}.cfg").read_text().format(**values))
    env = {"OPENSSL_CONF": str(HERE / "haproxy" / "openssl.cnf")}
    return space.start(f"haproxy-{half}", ["haproxy", "-db", "-f", str(config)], env=env)


def start_haproxy(
    space: Workspace, certs: Certs, target: str, *, relay: tuple[int, int] | None = None
) -> Topology:
    """Start the pair of haproxies.

    With ``relay`` the first one dials the first of these ports, where a relay passes data on to the
    second port, on which the other haproxy then listens.
    """
    uds = space.path("haproxy.sock")
    dialed, tls_port = relay or (space.free_port(),) * 2
    leaving = _haproxy(
        space, "exit", tls_port=tls_port, server_pem=certs.server_pem, ca=certs.ca, target=target
    )
    entering = _haproxy(
        space,
        "entry",
        uds=uds,
        tls_port=dialed,
        client_pem=certs.client_pem,
        ca=certs.ca,
    )
    wait_until(lambda: _accepts(tls_port), (leaving,), "haproxy's TLS port")
    # haproxy binds under another name and renames the socket: once it exists, it works.
    wait_until(uds.exists, (entering,), "haproxy's UNIX socket")
    return Topology(name="haproxy", via="unix", uds=uds, processes=(entering, leaving))


def start_haproxy_tcp(space: Workspace, only: frozenset[str], target: str) -> Topology:
    """One haproxy that forwards plain TCP."""
    port = space.free_port()
    child = _haproxy(space, "forward", port=port, target=target)
    wait_until(lambda: _accepts(port), (child,), "haproxy's port")
    at = f"127.0.0.1:{port}"
    return Topology(name="haproxy-tcp", via="tcp", processes=(child,), only=only, at=at)


def start_apiserver_proxy(
    space: Workspace, commands: Commands, only: frozenset[str], target: str
) -> Topology:
    """The same with ``isthmus apiserver-proxy``."""
    port, health_port, admin_port = (space.free_port() for _ in range(3))
    flags = [
        f"--listen=127.0.0.1:{port}",
        f"--upstream={target}",
        "--health-check=tcp",
        f"--health-port={health_port}",
        f"--admin-port={admin_port}",
    ]
    child = space.start("apiserver-proxy", commands.words("apiserver-proxy", flags))
    wait_until(
        lambda: http_answers(health_port, "/readyz"), (child,), "the apiserver proxy's readiness"
    )
    at = f"127.0.0.1:{port}"
    return Topology(name="apiserver-proxy", via="tcp", processes=(child,), only=only, at=at)


def check_haproxy(space: Workspace, certs: Certs, target: str) -> None:
    """Record handshakes of an equal pair, and raise an error if they deviate.

    Several connections: each of haproxy's threads would resume its own session if it could.
    """
    relay_port, tls_port = space.free_port(), space.free_port()
    with socket.create_server(("127.0.0.1", relay_port)) as listener:
        pair = start_haproxy(space, certs, target, relay=(relay_port, tls_port))
        for _ in range(6):
            up, down = handshake.record(listener, tls_port, lambda: _ask_one(pair.uds))
            wrong = handshake.faults(up, down)
            if wrong:
                raise BenchError("the haproxy pair deviates: " + "; ".join(wrong))
        pair.stop(space)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A tunnel that differs from the usual one by its frontend or its link."""

    mode: str = "http-connect"
    via: str = "connect"
    server_flags: tuple[str, ...] = ()
    agent_flags: tuple[str, ...] = ()
    load: Path | None = None
    only: frozenset[str] | None = None
    links: int = 1


def start_tunnel(
    space: Workspace,
    certs: Certs,
    commands: Commands,
    label: str = "isthmus",
    shape: Shape | None = None,
) -> Topology:
    """A server and an agent joined by mutual TLS; by default CONNECT over a UNIX socket."""
    shape = shape or Shape()
    uds = space.path("tunnel.sock")
    agent_port, health_port, admin_port = (space.free_port() for _ in range(3))
    server = space.start(
        f"{label}-server",
        commands.words(
            "server",
            [
                f"--mode={shape.mode}",
                f"--uds-name={uds}",
                f"--agent-port={agent_port}",
                "--agent-bind-address=127.0.0.1",
                f"--cluster-cert={certs.server_cert}",
                f"--cluster-key={certs.server_key}",
                f"--cluster-ca-cert={certs.ca}",
                f"--health-port={health_port}",
                "--health-bind-address=127.0.0.1",
                f"--admin-port={admin_port}",
                *shape.server_flags,
            ],
        ),
    )
    wait_until(lambda: http_answers(health_port, "/healthz"), (server,), "the server's health port")
    agent_health, agent_admin = space.free_port(), space.free_port()
    agent = space.start(
        f"{label}-agent",
        commands.words(
            "agent",
            [
                f"--ca-cert={certs.ca}",
                f"--agent-cert={certs.client_cert}",
                f"--agent-key={certs.client_key}",
                "--proxy-server-host=127.0.0.1",
                f"--proxy-server-port={agent_port}",
                "--health-server-host=127.0.0.1",
                f"--health-server-port={agent_health}",
                f"--admin-server-port={agent_admin}",
                *shape.agent_flags,
            ],
        ),
    )
    wait_until(
        lambda: http_answers(health_port, "/readyz"), (server, agent), "the server's readiness"
    )
    if shape.links > 1:
        wait_until(
            lambda: _links_of(agent_health) == shape.links, (server, agent), "a link to each worker"
        )
    return Topology(
        name=label,
        via=shape.via,
        uds=uds,
        processes=(server, agent),
        load=shape.load,
        only=shape.only,
    )


def wait_until(done: Callable[[], bool], children: tuple[Child, ...], what: str) -> None:
    """Poll until done, while the children live, for a bounded time."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not done():
        for child in children:
            child.check_alive()
        if time.monotonic() > deadline:
            tails = "\n".join(f"{child.name}:\n{child.log_tail()}" for child in children)
            raise BenchError(f"waited {READY_TIMEOUT_S:.0f} s for {what}\n{tails}")
        time.sleep(0.02)


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def http_answers(port: int, path: str) -> bool:
    """Whether a loopback port answers 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _links_of(agent_health: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{agent_health}/metrics", timeout=2) as answer:
        text = answer.read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith(_LINKS))
    return int(float(line.rsplit(" ", 1)[1]))


def _ask_one(uds: Path | None) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(uds))
    client.sendall(b"1")
    return client
