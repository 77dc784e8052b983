"""The relay alone: two namespaces, a TAP in each, and a bad line between them."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
from pyroute2 import IPRoute, netns

from isthmus.errors import ConfigError
from isthmus.lab import relay
from isthmus.lab.namespaces import in_namespace, inside, remove
from isthmus.lab.topology import LineShape

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

NEAR_ADDRESS, FAR_ADDRESS = "10.99.0.1", "10.99.0.2"
NEAR, FAR = "near0", "far0"
DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Bed:
    """Two namespaces with a TAP each; nothing is between them before a relay runs."""

    near: str
    far: str

    @contextlib.contextmanager
    def relay(self, shape: LineShape, seed: int = 1) -> Iterator[subprocess.Popen[str]]:
        argv = relay.command(namespace=self.near, near=NEAR, far=FAR, shape=shape, seed=seed)
        with subprocess.Popen(
            in_namespace(self.far, argv),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == f"{relay.READY}\n"
                yield process
            finally:
                process.kill()

    def connection(self, kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
        """A socket near, connected to one that is far."""
        there = inside(self.far, partial(_bound, kind))
        here = inside(self.near, partial(_connected, kind, there.getsockname()))
        if kind is socket.SOCK_DGRAM:
            return here, there
        with there:
            accepted, _ = there.accept()
        accepted.settimeout(DEADLINE_S)
        return here, accepted


def _bound(kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.settimeout(DEADLINE_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
    sock.bind((FAR_ADDRESS, 0))
    if kind is socket.SOCK_STREAM:
        sock.listen()
    return sock


def _connected(kind: socket.SocketKind, target: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.settimeout(DEADLINE_S)
    sock.connect(target)
    return sock


def set_up(namespace: str, link: str, address: str) -> None:
    inside(namespace, partial(relay.make_tap, link))
    with IPRoute(netns=namespace) as ip:
        (index,) = ip.link_lookup(ifname=link)
        ip.addr("add", index=index, address=address, prefixlen=24)
        ip.link("set", index=index, state="up")


def links(namespace: str) -> set[str]:
    return {name for _, name in inside(namespace, socket.if_nameindex)}


@pytest.fixture
def bed() -> Iterator[Bed]:
    token = secrets.token_hex(3)
    made = Bed(f"relay-test-{token}-near", f"relay-test-{token}-far")
    try:
        for namespace, link, address in (
            (made.near, NEAR, NEAR_ADDRESS),
            (made.far, FAR, FAR_ADDRESS),
        ):
            netns.create(namespace)
            set_up(namespace, link, address)
        yield made
    finally:
        remove(made.near)
        remove(made.far)
    assert not {made.near, made.far} & set(netns.listnetns())


def stopped(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    """End the relay; gives what it says at the end."""
    process.send_signal(number)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    return said


def round_trip_s(here: socket.socket, there: socket.socket) -> float:
    began = time.monotonic()
    here.sendall(b"?")
    assert there.recv(1) == b"?"
    there.sendall(b"!")
    assert here.recv(1) == b"!"
    return time.monotonic() - began


def move(here: socket.socket, there: socket.socket, data: bytes) -> bytes:
    """Send it and close; gives all that came."""

    def send() -> None:
        here.sendall(data)
        here.shutdown(socket.SHUT_WR)

    got = bytearray()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        while piece := there.recv(1 << 20):
            got += piece
        sending.result()
    return bytes(got)


# What it carries.


def test_a_round_trip_takes_the_delay_twice(bed: Bed) -> None:
    with bed.relay(LineShape(delay_ms=20)) as process:
        here, there = bed.connection(socket.SOCK_STREAM)
        with here, there:
            took = [round_trip_s(here, there) for _ in range(5)]
        print(f"round trips over 2 × 20 ms: {[f'{1e3 * one:.2f} ms' for one in took]}")
        assert min(took) >= 0.040
        assert stopped(process) == (
            "relay: from the host: 0 lost, 0 dropped; to the host: 0 lost, 0 dropped\n"
        )


@pytest.mark.parametrize("near_sends", [True, False])
def test_everything_comes_in_order_at_no_more_than_the_rate(bed: Bed, near_sends: bool) -> None:
    data, mbit = os.urandom(1_500_000), 20.0
    with bed.relay(LineShape(delay_ms=5, rate_mbit=mbit)) as process:
        here, there = bed.connection(socket.SOCK_STREAM)
        with here, there:
            began = time.monotonic()
            ways = (here, there) if near_sends else (there, here)
            assert move(*ways, data) == data
            took_s = time.monotonic() - began
        seen = len(data) * 8 / 1e6 / took_s
        print(f"{seen:.1f} of {mbit:g} Mbit/s, {stopped(process)}")
        assert seen <= mbit


def test_without_a_rate_it_is_no_bottleneck(bed: Bed) -> None:
    data = bytes(20_000_000)
    with bed.relay(LineShape()):
        here, there = bed.connection(socket.SOCK_STREAM)
        with here, there:
            began = time.monotonic()
            assert len(move(here, there, data)) == len(data)
            took_s = time.monotonic() - began
    print(f"{len(data) * 8 / 1e6 / took_s:.0f} Mbit/s without a rate")


def test_some_datagrams_are_lost_and_the_rest_keeps_its_order(bed: Bed) -> None:
    sent = 500
    with bed.relay(LineShape(delay_ms=5, loss=0.2)) as process:
        here, there = bed.connection(socket.SOCK_DGRAM)
        with here, there:
            numbers = itertools.count()
            until_one_comes(here, there, numbers)  # and the addresses are resolved
            first = next(numbers)
            for number in range(first, first + sent):
                here.send(number.to_bytes(4, "big"))
            got = until_one_comes(here, there, itertools.count(first + sent))
        lost = sent - sum(first <= number < first + sent for number in got)
        print(f"{lost} of {sent} lost, {stopped(process)}")
    assert got == sorted(set(got))
    assert 20 <= lost <= 300  # 100 is expected, and nine more or less are usual


def until_one_comes(here: socket.socket, there: socket.socket, numbers: Iterator[int]) -> list[int]:
    """Send numbers until one of them has come; gives all that came, in order."""
    ours: set[int] = set()
    got: list[int] = []
    there.settimeout(0.2)
    for number in itertools.islice(numbers, 100):
        ours.add(number)
        here.send(number.to_bytes(4, "big"))
        with contextlib.suppress(TimeoutError):
            while not ours.intersection(got[-1:]):
                got.append(int.from_bytes(there.recv(16), "big"))
            return got
    raise AssertionError("nothing comes through")


# How it ends.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_by_a_signal_and_leaves_the_interfaces(bed: Bed, number: int) -> None:
    before = links(bed.near), links(bed.far)
    assert NEAR in before[0] and FAR in before[1]
    with bed.relay(LineShape()) as process:
        stopped(process, number)
    assert (links(bed.near), links(bed.far)) == before
    with bed.relay(LineShape()) as process:  # nobody has them any more
        here, there = bed.connection(socket.SOCK_STREAM)
        with here, there:
            assert round_trip_s(here, there) > 0


def test_it_ends_when_an_interface_goes(bed: Bed) -> None:
    with bed.relay(LineShape()) as process:
        with IPRoute(netns=bed.near) as ip:
            ip.link("del", index=ip.link_lookup(ifname=NEAR)[0])
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert said.startswith("relay: an interface is gone: ") and said.count("\n") == 1


def test_an_interface_that_is_down_takes_nothing_and_ends_nothing(bed: Bed) -> None:
    with bed.relay(LineShape()) as process, IPRoute(netns=bed.near) as ip:
        here, there = bed.connection(socket.SOCK_DGRAM)
        with here, there:
            (index,) = ip.link_lookup(ifname=NEAR)
            here.send(b"1")
            assert there.recv(16) == b"1"
            ip.link("set", index=index, state="down")
            there.sendto(b"nobody hears it", (NEAR_ADDRESS, 9))
            ip.link("set", index=index, state="up")
            here.send(b"2")
            assert there.recv(16) == b"2"
        stopped(process)


# What it refuses.


def refused(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_an_interface_that_somebody_has_is_refused(bed: Bed) -> None:
    argv = relay.command(namespace=bed.near, near=NEAR, far=FAR, shape=LineShape())
    with bed.relay(LineShape()):
        said = refused(in_namespace(bed.far, argv))
    assert said == f"relay: cannot open the interface {FAR}: Device or resource busy\n"


def test_what_is_not_there_is_refused_and_not_made(bed: Bed) -> None:
    before = links(bed.near), links(bed.far)
    for namespace, near, far, sentence in (
        (f"{bed.near}-not", NEAR, FAR, f"no namespace '{bed.near}-not'"),
        (bed.near, "not", FAR, "no interface 'not'"),
        (bed.near, NEAR, "not", "no interface 'not'"),
    ):
        argv = relay.command(namespace=namespace, near=near, far=far, shape=LineShape())
        assert refused(in_namespace(bed.far, argv)) == f"relay: {sentence}\n"
    assert f"{bed.near}-not" not in netns.listnetns()
    assert (links(bed.near), links(bed.far)) == before


def test_without_tun_it_says_so() -> None:
    argv = relay.command(namespace="none", near=NEAR, far="lo", shape=LineShape())
    hide = 'mount -t tmpfs none /dev/net && exec "$@"'
    said = refused(["unshare", "--mount", "--net", "sh", "-c", hide, "sh", *argv])
    assert said == "relay: a bad line needs /dev/net/tun: No such file or directory\n"


@pytest.mark.parametrize("name", ["", "sixteen-letters-", "a/b", "tap%d"])
def test_what_is_no_name_makes_no_interface(bed: Bed, name: str) -> None:
    before = links(bed.near)
    with pytest.raises(ConfigError, match="invalid interface name"):
        inside(bed.near, partial(relay.make_tap, name))
    assert links(bed.near) == before
