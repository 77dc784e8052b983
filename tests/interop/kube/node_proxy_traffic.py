"""Connections to a Service, one after the other, while something happens to its rules.

The server is on the node itself; one client is there too, and one is outside, at a node port.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from kube.node_proxy_ground import NODE_IPS, Node, Nodes
from kube.node_proxy_objects import LOCAL, Objects, Port, address, cluster_ips
from kube.programs import inside, wait_until

NODE_PORT = 30080
HEALTH_PORT = 31234
NUMBER = 900
TARGET = 8080
HELLO = b"ok"
_LIMIT_S = 10.0
_BETWEEN_S = 0.002
_SYN_COUNT = 1  # retransmissions: what is lost twice fails


@dataclass(slots=True)
class Tally:
    """What became of the connections of one client."""

    worked: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Clients that connect again and again."""

    tallies: dict[str, Tally]

    def wait_more(self, count: int = 50) -> None:
        """Wait until every client has connected so many more times."""
        goals = {name: tally.worked + count for name, tally in self.tallies.items()}
        wait_until(
            lambda: all(
                self.tallies[name].worked >= goal or self.tallies[name].failed
                for name, goal in goals.items()
            ),
            "more connections",
        )

    def check(self) -> None:
        """Fail if any connection did."""
        failed = {name: tally.failed[:3] for name, tally in self.tallies.items() if tally.failed}
        assert not failed, f"connections failed: {failed}"


def objects() -> Objects:
    """The Service, one with a health check node port, and the EndpointSlices behind them."""
    made = Objects(numbers=iter([NUMBER, NUMBER + 1]))
    made.add("busy", (LOCAL,), ports=(Port(node_port=NODE_PORT, target=TARGET),), type="NodePort")
    made.add("checked", (LOCAL,), type="LoadBalancer", externalTrafficPolicy="Local",
             healthCheckNodePort=HEALTH_PORT)  # fmt: skip
    return made


@contextlib.contextmanager
def traffic(ground: Nodes, node: Node) -> Iterator[Traffic]:
    """Let clients connect for the time of the block; the rules have to be there."""
    with _server(node), contextlib.ExitStack() as stack:
        number = node.namespace.rpartition("-")[2]
        _ip(ground.namespace, "route", "add", NODE_IPS[0], "via", f"10.201.{number}.2")
        places = {
            "on the node": (node.namespace, (cluster_ips(NUMBER)["IPv4"], 80)),
            "from outside": (ground.namespace, (NODE_IPS[0], NODE_PORT)),
        }
        running = Traffic({name: Tally() for name in places})
        stop = threading.Event()
        for name, (namespace, to) in places.items():
            work = partial(_connect_on, to, running.tallies[name], stop)
            thread = threading.Thread(target=inside, args=(namespace, work), name=name)
            thread.start()
            stack.callback(thread.join, _LIMIT_S)
        stack.callback(stop.set)
        running.wait_more()
        yield running


def _connect_on(to: tuple[str, int], tally: Tally, stop: threading.Event) -> None:
    while not stop.wait(_BETWEEN_S):
        try:
            with socket.socket() as sock:
                sock.settimeout(_LIMIT_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, _SYN_COUNT)
                sock.connect(to)
                said = sock.recv(16)
            if said != HELLO:
                raise OSError(f"said {said!r}")
        except OSError as error:
            tally.failed.append(repr(error))
        else:
            tally.worked += 1


@contextlib.contextmanager
def _server(node: Node) -> Iterator[None]:
    own = address(LOCAL.number, "IPv4", local=True)
    _ip(node.namespace, "address", "add", f"{own}/32", "dev", "lo")
    listener = inside(node.namespace, partial(socket.create_server, (own, TARGET), backlog=1024))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock, contextlib.suppress(OSError):
                    sock.sendall(HELLO)

    thread = threading.Thread(target=serve, name="server")
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_LIMIT_S)


def _ip(namespace: str, *args: str) -> None:
    subprocess.run(["ip", "-n", namespace, *args], check=True, timeout=_LIMIT_S)
