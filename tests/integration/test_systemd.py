"""Programs under a manager: what it hears, sockets that it holds, restarts that nobody notices.

The units that run them so are tests/unit/manifests/test_units.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, Client, ask, connect_uds, echo_target, free_port, head_for, tunnel
from programs import COMMAND, Programs
from stack import http_get, wait_until
from systemd_bed import Manager, Unit, listening

#: Half of it is how often a program looks at itself.
WATCHDOG_S = 0.4
RESTARTS = 3
PORTS = ["--health-port=0", "--admin-port=0"]
ROUTES = Path(__file__).parents[2] / "examples" / "sni-router" / "routes.yaml"
OTHERS = {
    "sni-router": [f"--config={ROUTES}", "--listen=127.0.0.1:0", *PORTS],
    "socks5-proxy": ["--konnectivity-uds=/x", "--disable-resolver", "--serving-port=0", *PORTS],
}
SOCKET_ACTIVATE = shutil.which("systemd-socket-activate") or ""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place whose name is short enough for a UNIX socket."""
    made = tempfile.mkdtemp(prefix="isthmus-")
    yield Path(made)
    shutil.rmtree(made)


@pytest.fixture
def manager(directory: Path) -> Iterator[Manager]:
    with Manager(directory) as started:
        yield started


@pytest.fixture
def uds(programs: Programs) -> Iterator[socket.socket]:
    """The socket of a server's clients, which is the manager's."""
    with listening(Path(programs.uds)) as sock:
        yield sock


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with local() as sock:
        yield sock


def local() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def said(unit: Unit, name: str) -> int:
    """A port that a program said it serves."""
    return int(unit.log.partition(f"{name}=")[2].split()[0])


# What it hears.


def test_a_server_says_how_it_is_until_it_is_gone(manager: Manager, programs: Programs) -> None:
    server = manager.start("server", *programs.server_flags(), watchdog_s=WATCHDOG_S)
    manager.wait_heard("READY=1", server)
    assert manager.hear()[:2] == ["READY=1", "STATUS=0 agents, 0 tunnels"]
    assert "serving" in server.log
    manager.wait_heard("WATCHDOG=1", server)
    agent = programs.start("agent", *programs.agent_flags(said(server, "agent_port")))
    agent.wait_log("linked ")
    manager.wait_heard("STATUS=1 agent, 0 tunnels", server)
    with echo_target() as target, tunnel(programs.connect_uds(), target.name) as client:
        manager.wait_heard("STATUS=1 agent, 1 tunnel", server)
        manager.forget()
        server.process.send_signal(signal.SIGTERM)
        manager.wait_heard("STOPPING=1", server)
        # However long systemd would wait, it waits on while tunnels are open.
        manager.wait_heard("EXTEND_TIMEOUT_USEC=30000000", server)
        manager.wait_heard("STATUS=draining: 1 agent, 1 tunnel", server)
        client.send(b"still")
        assert client.read_exactly(5) == b"still"
    assert server.wait_exit() == 0


def test_an_agent_is_ready_before_it_is_linked(manager: Manager, programs: Programs) -> None:
    flags = programs.agent_flags(free_port())
    lonely = manager.start("agent", *flags, watchdog_s=WATCHDOG_S)
    manager.wait_heard("READY=1", lonely)
    manager.wait_heard("STATUS=linked to no server", lonely)
    lonely.stop()
    manager.forget()
    flags = programs.agent_flags(programs.server().port("agent_port"))
    agent = manager.start("agent", *flags, watchdog_s=WATCHDOG_S)
    manager.wait_heard("STATUS=linked to 1 of 1 server, 0 tunnels", agent)
    agent.stop()
    assert "STOPPING=1" in manager.hear()


def test_the_watchdog_hears_nothing_of_who_is_not_well(
    manager: Manager, programs: Programs
) -> None:
    server = manager.start("server", *programs.server_flags(), watchdog_s=WATCHDOG_S)
    manager.wait_heard("WATCHDOG=1", server)
    os.unlink(programs.uds)
    trouble = f"STATUS=unhealthy: listener:{programs.uds}: its file was removed or replaced"
    manager.wait_heard(trouble, server)
    since = manager.hear().index(trouble)
    looks = said(server, "health_port")
    wait_until(lambda: http_get(looks, "/livez")[0] == 500, "the probe fails too")
    assert "WATCHDOG=1" not in manager.hear()[since:]
    server.stop()


def test_without_a_watchdog_nobody_is_petted(manager: Manager, programs: Programs) -> None:
    server = manager.start("server", *programs.server_flags())
    manager.wait_heard("READY=1", server)
    server.stop()
    assert [it.partition("=")[0] for it in manager.hear()] == [
        "READY", "STATUS", "STOPPING", "STATUS", "EXTEND_TIMEOUT_USEC",
    ]  # fmt: skip


# Sockets that it holds.


def test_every_port_of_a_server_by_name(
    manager: Manager, programs: Programs, uds: socket.socket
) -> None:
    with local() as agents, local() as health, local() as admin, local() as tls:
        server = manager.start(
            "server", *programs.server_flags(), sockets=[uds, agents, health, admin, tls],
            names=["frontend", "agents", "health", "admin", "frontend"],
        )  # fmt: skip
        manager.wait_heard("READY=1", server)
        assert said(server, "agent_port") == port_of(agents)
        assert said(server, "frontend_port") == port_of(tls)
        assert http_get(port_of(health), "/livez")[0] == 200
        assert http_get(port_of(admin), "/snapshot")[0] == 200
        programs.start("agent", *programs.agent_flags(port_of(agents))).wait_log("linked ")
        with echo_target() as target, tunnel(programs.connect_uds(), target.name) as client:
            client.send(b"through")
            assert client.read_exactly(7) == b"through"
        server.stop()
        # They belong to the manager, file and all: who comes now waits for the next program.
        with connect_uds(programs.uds):
            pass


def test_by_address_and_a_mode_that_lets_everybody_in(
    manager: Manager, programs: Programs, uds: socket.socket, tcp: socket.socket
) -> None:
    os.chmod(programs.uds, 0o666)
    server = manager.start(
        "server", *programs.server_flags(), f"--agent-port={port_of(tcp)}",
        sockets=[tcp, uds], names=["isthmus-server.socket"] * 2,
    )  # fmt: skip
    manager.wait_heard("READY=1", server)
    assert said(server, "agent_port") == port_of(tcp)
    assert "every user may connect (mode 0666)" in server.log
    server.stop()
    assert Path(programs.uds).is_socket()


@pytest.mark.parametrize("program", OTHERS)
def test_other_programs_by_name(program: str, manager: Manager, tcp: socket.socket) -> None:
    with local() as health:
        unit = manager.start(
            program, *OTHERS[program], sockets=[health, tcp], names=["health", "frontend"]
        )
        manager.wait_heard("READY=1", unit)
        assert "STATUS=0 connections" in manager.hear()
        assert said(unit, " port") == port_of(tcp)
        assert said(unit, "health_port") == port_of(health)
        unit.stop()


def refused(manager: Manager, *args: str, sockets: list[socket.socket], name: str) -> str:
    unit = manager.start(*args, sockets=sockets, names=[name])
    assert unit.wait_exit() == 2
    assert "READY=1" not in manager.hear()
    (line,) = [it for it in unit.log.splitlines() if it.startswith("isthmus: ")]
    assert "Traceback" not in unit.log
    return line


def test_a_socket_that_nobody_takes(
    manager: Manager, programs: Programs, tcp: socket.socket
) -> None:
    flags = programs.server_flags()
    line = refused(manager, "server", *flags, sockets=[tcp], name="http-connect")
    assert line == (
        f"isthmus: systemd passed a socket named http-connect at 127.0.0.1:{port_of(tcp)}, and no"
        " flag of this program has this address (--http-connect-port or --http-connect-uds-name):"
        " it would not be served"
    )


def test_an_admin_port_stays_on_loopback(manager: Manager, programs: Programs) -> None:
    with socket.create_server(("0.0.0.0", 0)) as wide:
        line = refused(manager, "server", *programs.server_flags(), sockets=[wide], name="admin")
    assert "0.0.0.0 is not loopback" in line


def test_a_sidecar_serves_nobody_unknown_from_afar(manager: Manager) -> None:
    with socket.create_server(("0.0.0.0", 0)) as wide:
        flags = OTHERS["socks5-proxy"]
        line = refused(manager, "socks5-proxy", *flags, sockets=[wide], name="frontend")
    assert "--serving-address 0.0.0.0 " in line


def test_a_frontend_without_certificates_stays_on_loopback(
    manager: Manager, programs: Programs
) -> None:
    files = programs.files
    flags = [
        "--mode=http-connect", "--server-port=0", "--server-bind-address=127.0.0.1",
        "--server-auth=none-on-loopback", f"--server-cert={files.server_cert}",
        f"--server-key={files.server_key}", f"--cluster-cert={files.server_cert}",
        f"--cluster-key={files.server_key}", f"--cluster-ca-cert={files.ca_cert}",
        "--agent-port=0", *PORTS,
    ]  # fmt: skip
    for address, family in (("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)):
        with socket.create_server((address, 0), family=family) as wide:
            line = refused(manager, "server", *flags, sockets=[wide], name="frontend")
        assert (
            f"needs a --server-bind-address on loopback, such as 127.0.0.1, not {address}" in line
        )


def test_a_wrong_kind(manager: Manager, programs: Programs) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wrong:
        wrong.bind(("127.0.0.1", 0))
        line = refused(manager, "agent", *programs.agent_flags(1), sockets=[wrong], name="health")
    assert line == (
        "isthmus: descriptor 3 of systemd (health) is a datagram socket: its unit needs"
        " ListenStream="
    )


# Restarts.


class Visitors:
    """Clients that come one after another, in threads, until told to stop; every failure counts."""

    def __init__(self, visit: Callable[[], None], count: int = 4) -> None:
        self.done = 0
        self.failures: list[str] = []
        self._visit = visit
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._come, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _come(self) -> None:
        while not self._stop.is_set():
            try:
                self._visit()
            except (OSError, AssertionError) as error:
                self.failures.append(repr(error))
            with self._lock:
                self.done += 1

    def more(self, number: int) -> None:
        """Wait for so many more."""
        until = self.done + number
        wait_until(lambda: self.done >= until, f"{until} visits")

    def stop(self) -> None:
        """Let the last ones finish."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def restart_again_and_again(
    manager: Manager, start: Callable[[], Unit], visit: Callable[[], None]
) -> Visitors:
    unit = start()
    manager.wait_heard("READY=1", unit)
    visitors = Visitors(visit)
    for _ in range(RESTARTS):
        visitors.more(30)
        manager.forget()
        unit.stop()
        unit = start()
        manager.wait_heard("READY=1", unit)
    visitors.more(30)
    visitors.stop()
    unit.stop()
    return visitors


def test_a_restarted_server_answers_whoever_came_meanwhile(
    manager: Manager, programs: Programs, uds: socket.socket
) -> None:
    head = head_for("127.0.0.1:9")

    def visit() -> None:
        with connect_uds(programs.uds) as client:
            assert ask(client, head).status == 503  # there is no agent, and it says so

    visitors = restart_again_and_again(
        manager,
        lambda: manager.start(
            "server", *programs.server_flags(), sockets=[uds], names=["frontend"]
        ),
        visit,
    )
    assert visitors.failures == []


def test_who_was_let_in_is_answered_by_a_server_that_leaves(
    manager: Manager, programs: Programs, uds: socket.socket
) -> None:
    server = manager.start("server", *programs.server_flags(), sockets=[uds], names=["frontend"])
    manager.wait_heard("READY=1", server)
    head = head_for("127.0.0.1:9")
    with connect_uds(programs.uds) as first:
        with connect_uds(programs.uds) as second:  # once it is answered, the first is in as well
            assert ask(second, head).status == 503
        server.process.send_signal(signal.SIGTERM)
        manager.wait_heard("STOPPING=1", server)
        assert ask(first, head).status == 503
    assert server.wait_exit() == 0


def test_a_restarted_apiserver_proxy_forwards_whoever_came_meanwhile(
    manager: Manager, tcp: socket.socket
) -> None:
    with echo_target() as target:

        def visit() -> None:
            with Client(socket.create_connection(("127.0.0.1", port_of(tcp)), LIMIT_S)) as client:
                client.send(b"ping")
                assert client.read_exactly(4) == b"ping"
                client.half_close()
                assert client.read_to_end() == b""

        flags = [
            f"--listen=127.0.0.1:{port_of(tcp)}", f"--upstream={target.name}",
            "--health-check=none", "--manage-address=false", "--health-port=0", "--admin-port=0",
        ]  # fmt: skip
        visitors = restart_again_and_again(
            manager, lambda: manager.start("apiserver-proxy", *flags, sockets=[tcp]), visit
        )
    assert visitors.failures == []


# The real thing.


@pytest.mark.skipif(not SOCKET_ACTIVATE, reason="there is no systemd-socket-activate")
def test_started_by_the_first_who_comes(manager: Manager, programs: Programs) -> None:
    port = free_port()
    keep = [f"-E{name}" for name in ("PYTHONPATH", "NOTIFY_SOCKET")]
    listens = [f"--listen={programs.uds}", f"--listen=127.0.0.1:{port}"]
    unit = manager.start(
        *keep, *listens, "--fdname=frontend:agents", *COMMAND, "server", *programs.server_flags(),
        command=[SOCKET_ACTIVATE],
    )  # fmt: skip
    unit.wait_log("Listening on")
    wait_until(lambda: Path(programs.uds).is_socket(), "systemd-socket-activate listens")
    assert "serving" not in unit.log
    with connect_uds(programs.uds) as client:
        assert ask(client, head_for("127.0.0.1:9")).status == 503
    manager.wait_heard("READY=1", unit)
    assert said(unit, "agent_port") == port
    programs.start("agent", *programs.agent_flags(port)).wait_log("linked ")
    with echo_target() as target, tunnel(programs.connect_uds(), target.name) as client:
        client.send(b"through")
        assert client.read_exactly(7) == b"through"
    unit.stop()
    assert Path(programs.uds).is_socket()


@pytest.mark.skipif(not SOCKET_ACTIVATE, reason="there is no systemd-socket-activate")
def test_a_datagram_socket_of_the_real_thing(manager: Manager, programs: Programs) -> None:
    port = free_port()
    unit = manager.start(
        "--datagram", "-EPYTHONPATH", f"--listen=127.0.0.1:{port}", *COMMAND,
        "agent", *programs.agent_flags(1), command=[SOCKET_ACTIVATE],
    )  # fmt: skip
    unit.wait_log("Listening on")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"wake up", ("127.0.0.1", port))
    assert unit.wait_exit() == 2
    assert "is a datagram socket: its unit needs ListenStream=" in unit.log
