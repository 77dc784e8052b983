"""Users who occupy node ports on localhost: they lock out only themselves."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, Client
from node_proxy_bed import NODE, LocalhostProxy, metric, web
from own_network import needs_root, own_network
from stack import wait_until

pytestmark = [
    needs_root,
    pytest.mark.skipif(not shutil.which("nft"), reason="needs nft"),
]
A, PORT = "10.1.0.7", 30080
#: At most 40 are carried, and of one user three quarters.
BOUNDS = ("--max-connections=40", "--graceful-shutdown-timeout=0s", "--memory-budget=8Mi")
MOST_OF_ONE = 30
HOLD = """
import contextlib, os, socket, sys
socket.getaddrinfo("127.0.0.1", 30080)  # imports what another user may not read
os.setuid(12345)
held = []
for _ in range(100):
    with contextlib.suppress(ConnectionResetError):  # refused already
        sock = socket.create_connection(("127.0.0.1", 30080), 20)
        held.append(sock) if sys.argv[1] == "keep" else sock.close()
print("held", flush=True)
sys.stdin.read()
"""
REFUSED = 'isthmus_node_proxy_localhost_connections_refused_total{reason="%s"}'
ACCEPTED = "isthmus_node_proxy_localhost_connections_accepted_total"
OPEN = "isthmus_node_proxy_localhost_connections "


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[LocalhostProxy]:
    with own_network(), LocalhostProxy.made(tmp_path) as made:
        yield made


@pytest.fixture
def target(proxy: LocalhostProxy) -> Iterator[socket.socket]:
    """What a node port leads to: it takes every connection, and says and ends nothing itself."""
    with contextlib.ExitStack() as stack:
        for address in (A, "192.0.2.1"):
            subprocess.run(
                ["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True, timeout=LIMIT_S
            )
        listener = stack.enter_context(socket.create_server((A, 8080), backlog=4096))
        listener.settimeout(LIMIT_S)
        proxy.write(node=NODE, web=web("10.96.0.10", PORT, [A]))
        proxy.start(*BOUNDS)
        wait_until(lambda: metric("isthmus_node_proxy_localhost_ports ") == 1, "the port")
        yield listener


@contextlib.contextmanager
def greedy(how: str) -> Iterator[None]:
    """A user who opens a hundred connections, and keeps them or closes them at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield


def served(target: socket.socket) -> bool:
    """Whether another user's connection reaches the endpoint, behind those of the greedy one."""
    with Client(socket.create_connection(("127.0.0.1", PORT), LIMIT_S)) as client:
        client.send(b"root")
        with contextlib.ExitStack() as held:
            waiting = [target]
            while ready := select.select(waiting, [], [], LIMIT_S)[0]:
                for each in ready:
                    if each is target:
                        waiting.append(held.enter_context(target.accept()[0]))
                    elif each.recv(4) == b"root":
                        return True
                    else:  # the greedy user has closed it
                        waiting.remove(each)
    return False


def test_one_user_cannot_take_every_place(target: socket.socket) -> None:
    with greedy("keep"):
        wait_until(lambda: metric(REFUSED % "too_many_of_source") == 100 - MOST_OF_ONE, "refused")
        assert metric(OPEN) == MOST_OF_ONE
        assert served(target)
    wait_until(lambda: metric(REFUSED % "too_many_of_source") == 100 - MOST_OF_ONE, "the same")


def test_sockets_that_are_closed_at_once_are_not_counted_for_another_user(
    target: socket.socket,
) -> None:
    # Their half-closed connections live on at the endpoint, and their sockets are nobody's.
    with greedy("close"):
        wait_until(lambda: metric(ACCEPTED) >= 100, "accepted")
        assert served(target)


def test_one_user_cannot_have_the_places_of_closed_sockets_as_well(
    proxy: LocalhostProxy, target: socket.socket
) -> None:
    with proxy.frozen(), greedy("close"):
        pass  # all of them are nobody's by now
    wait_until(lambda: metric(ACCEPTED) >= 100, "accepted")
    with greedy("keep"):
        wait_until(lambda: metric(ACCEPTED) >= 200, "accepted")
        assert MOST_OF_ONE < metric(OPEN) < 40
        assert served(target)


def test_who_is_not_on_loopback_is_reset(target: socket.socket) -> None:
    with socket.socket() as sock:
        sock.settimeout(LIMIT_S)
        sock.bind(("192.0.2.1", 0))
        sock.connect(("127.0.0.1", PORT))
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert metric(REFUSED % "outside") == 1
