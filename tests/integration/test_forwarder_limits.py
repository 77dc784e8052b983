"""Places by source at the sidecars and the apiserver proxy, and that their own machine has no such.

Addresses that are not loopback's are put on a network of the test's own.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from clients import LIMIT_S, Client, Target, echo_target, head_for, status_of
from own_network import needs_root, own_network
from programs import Program, Programs
from stack import Stack, http_get, metric, wait_until
from workers_bed import serving, wait_workers

from isthmus.wire import socks5

#: Where the programs listen, and two machines.
AT, FLOODER, OTHER = "10.66.0.1", "10.66.0.2", "10.66.0.3"
PORTS = ("--health-bind-address=127.0.0.1", "--health-port=0", "--admin-port=0")
NAMES = ("socks5-proxy", "https-proxy", "apiserver-proxy")

pytestmark = needs_root


class Refused(Exception):
    """A client was told no in its protocol."""


class Forwarder(NamedTuple):
    """A program that listens on all addresses, and what it joins everybody to."""

    name: str
    program: Program
    target: Target

    @property
    def metrics(self) -> str:
        """What it has counted."""
        return http_get(self.program.port("admin_port"), "/metrics")[1]

    def refused(self, reason: str) -> float:
        """How many it did not serve for this reason."""
        what = "connections_refused" if self.name == "apiserver-proxy" else "clients_unserved"
        program = self.name.replace("-", "_")
        return metric(self.metrics, f'isthmus_{program}_{what}_total{{reason="{reason}"}}')

    def connect(self, source: str, at: str = AT) -> Client:
        """Connect from this address, and say nothing yet."""
        where = at, self.program.port("port")
        sock = socket.create_connection(where, LIMIT_S, source_address=(source, 0))
        return Client(sock)

    def join(self, source: str, at: str = AT) -> Client:
        """Connect, and have something echoed."""
        client = self.connect(source, at)
        try:
            self._ask(client)
        except BaseException:
            client.close()
            raise
        return client

    def _ask(self, client: Client) -> None:
        if self.name == "https-proxy":
            client.send(head_for(self.target.name))
            if status_of(client.read_head()) != 200:
                raise Refused
        elif self.name == "socks5-proxy":
            client.send(b"\x05\x01\x00")
            assert client.read_exactly(2) == b"\x05\x00"
            client.send(socks5.Request(1, "127.0.0.1", self.target.port).to_bytes())
            assert client.read_exactly(10)[:2] == b"\x05\x00"
        client.send(b"hello")
        assert client.read_exactly(5) == b"hello"

    def serves(self, source: str) -> bool:
        """Whether one more is let in."""
        try:
            self.join(source).close()
        except (ConnectionError, Refused):
            return False
        return True

    def is_refused(self, source: str, at: str = AT) -> bool:
        """Whether one more is told so in its protocol."""
        try:
            with self.connect(source, at) as client:
                if self.name == "https-proxy":
                    client.send(head_for(self.target.name))
                    head = client.read_head()
                    assert status_of(head) == 503, head
                    return b"--max-connections" in client.read_to_end()
                client.recv()
        except ConnectionResetError:
            return self.name != "https-proxy"
        return False


@pytest.fixture
def elsewhere(stack: Stack) -> Iterator[tuple[Stack, Target]]:
    """A server, an agent and a target, and then another network, with addresses."""
    with echo_target() as target, own_network():
        for address in (AT, FLOODER, OTHER):
            subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
        yield stack, target


@contextlib.contextmanager
def started(
    name: str, programs: Programs, elsewhere: tuple[Stack, Target], *more: str
) -> Iterator[Forwarder]:
    stack, target = elsewhere
    with contextlib.ExitStack() as opened:
        if name == "apiserver-proxy":  # which dials in its own network
            target = opened.enter_context(echo_target())
            flags = [
                f"--upstream={target.name}", "--listen=0.0.0.0:0", "--health-check=tcp",
                "--manage-address=false",
            ]  # fmt: skip
        else:
            flags = [
                "--serving-address=0.0.0.0", "--serving-port=0", "--allow-unauthenticated",
                f"--konnectivity-uds={stack.server.settings.uds_name}",
                f"--kubeconfig={kubeconfig(programs)}",
            ]  # fmt: skip
        program = serving(programs, name, *flags, *PORTS, *more)
        yield Forwarder(name, program, target)


def kubeconfig(programs: Programs) -> str:
    """One that is there, and nobody asks: targets are addresses."""
    path = f"{programs.uds}.kubeconfig"
    with open(path, "w") as file:
        file.write(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
            "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
            "clusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\n"
            "users: [{name: x, user: {token: t}}]\n"
        )
    return path


@pytest.mark.parametrize("workers", [1, 2], ids=["one process", "workers"])
@pytest.mark.parametrize("name", NAMES)
def test_one_machine_cannot_take_every_place(
    name: str, workers: int, programs: Programs, elsewhere: tuple[Stack, Target]
) -> None:
    most = ("--max-connections=16", f"--workers={workers}")  # of which one source has 12
    with (
        started(name, programs, elsewhere, *most) as forwarder,
        contextlib.ExitStack() as opened,
    ):
        if workers > 1:
            wait_workers(forwarder.program)
        taken = 0
        for _ in range(20):
            with contextlib.suppress(ConnectionError, Refused):
                opened.enter_context(forwarder.join(FLOODER))
                taken += 1
        # Each worker has its part of the places, and they are handed about as many each.
        assert taken == 12 if workers == 1 else 8 <= taken <= 12
        assert forwarder.refused("too_many_of_source") == 20 - taken
        assert forwarder.is_refused(FLOODER)
        opened.enter_context(forwarder.join(OTHER))
        opened.enter_context(forwarder.join("127.0.0.1", "127.0.0.1"))
        opened.enter_context(forwarder.join(AT))
        opened.close()
        wait_until(lambda: forwarder.serves(FLOODER), "the places are back")


@pytest.mark.parametrize("name", NAMES)
def test_the_own_machine_may_take_all(
    name: str, programs: Programs, elsewhere: tuple[Stack, Target]
) -> None:
    """Everybody on it comes from one address, whoever they are."""
    most = ("--max-connections=6", "--max-connections-per-source=1")
    with (
        started(name, programs, elsewhere, *most) as forwarder,
        contextlib.ExitStack() as opened,
    ):
        opened.enter_context(forwarder.join(OTHER))
        assert forwarder.is_refused(OTHER)
        for source, at in (("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "127.0.0.1"), (AT, AT)):
            opened.enter_context(forwarder.join(source, at))
        for _ in range(2):
            opened.enter_context(forwarder.join(AT))
        assert forwarder.is_refused(AT)
        assert forwarder.refused("too_many") == 1
        assert forwarder.refused("too_many_of_source") == 1


@pytest.mark.parametrize("name", ["socks5-proxy", "https-proxy"])
def test_who_says_nothing_pushes_out_only_its_own(
    name: str, programs: Programs, elsewhere: tuple[Stack, Target]
) -> None:
    with (
        started(name, programs, elsewhere, "--max-handshakes=4") as forwarder,
        contextlib.ExitStack() as opened,
    ):
        slow = opened.enter_context(forwarder.connect(OTHER))
        if name == "socks5-proxy":
            slow.send(b"\x05")
        else:
            slow.send(b"CONNECT ")
        for _ in range(20):
            opened.enter_context(forwarder.connect(FLOODER))
        wait_until(lambda: forwarder.refused("crowded") == 17, "its oldest had to go")
        if name == "socks5-proxy":
            slow.send(b"\x01\x00")
            assert slow.read_exactly(2) == b"\x05\x00"
        else:
            slow.send(head_for(forwarder.target.name).removeprefix(b"CONNECT "))
            assert status_of(slow.read_head()) == 200
