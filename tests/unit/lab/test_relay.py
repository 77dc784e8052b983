"""The relay without its interfaces: its flags, and frames through pairs of sockets."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from isthmus.errors import ConfigError
from isthmus.lab.relay import MOST_KEPT_BYTES, BadLine, Direction, carry, command, main, parse
from isthmus.lab.topology import LineShape


def never() -> float:
    """The chance that takes no frame."""
    return 0.999


class Pair:
    """A way through a direction: what goes into ``near`` comes out of ``far``, frame by frame."""

    def __init__(self, shape: LineShape, chance: Callable[[], float] = never) -> None:
        # As a TAP does, a socket of this kind gives one frame a read.
        self.near, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sink, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.inner = (source, sink)
        for sock in (source, sink, self.far):
            sock.setblocking(False)
        self.way = Direction(source.fileno(), sink.fileno(), BadLine(shape), chance)

    def arrived(self) -> list[bytes]:
        got = []
        with contextlib.suppress(BlockingIOError):
            while True:
                got.append(self.far.recv(65536))
        return got

    def close(self) -> None:
        for sock in (self.near, self.far, *self.inner):
            sock.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Pair]]:
    with contextlib.ExitStack() as stack:

        def one(shape: LineShape, chance: Callable[[], float] = never) -> Pair:
            pair = Pair(shape, chance)
            stack.callback(pair.close)
            return pair

        yield one


def test_a_frame_waits_until_it_is_due(make: Callable[..., Pair]) -> None:
    pair = make(LineShape(delay_ms=500))
    pair.near.send(b"one")
    pair.way.take_in(10.0)
    pair.near.send(b"two")
    pair.way.take_in(10.25)
    assert pair.way.next_due == 10.5
    pair.way.give_out(10.49)
    assert pair.arrived() == []
    pair.way.give_out(10.5)
    assert (pair.arrived(), pair.way.next_due) == ([b"one"], 10.75)
    pair.way.give_out(99.0)
    assert pair.arrived() == [b"two"]
    assert not pair.way.next_due


def test_without_a_delay_frames_go_straight_through(make: Callable[..., Pair]) -> None:
    pair = make(LineShape())
    for text in (b"one", b"two"):
        pair.near.send(text)
    pair.way.take_in(1.0)
    assert (pair.arrived(), pair.way.next_due) == ([b"one", b"two"], None)


def test_the_same_seed_loses_the_same_frames(make: Callable[..., Pair]) -> None:
    def through(seed: int) -> list[bytes]:
        pair = make(LineShape(loss=0.5), random.Random(seed).random)
        for number in range(60):
            pair.near.send(bytes([number]))
        pair.way.take_in(0.0)
        got = pair.arrived()
        assert str(pair.way) == f"{60 - len(got)} lost, 0 dropped"
        return got

    first = through(1)
    assert through(1) == first != through(2)


def test_memory_is_bounded_whatever_comes(make: Callable[..., Pair]) -> None:
    pair = make(LineShape(delay_ms=60_000))
    frame, sent = bytes(60_000), 600
    for _ in range(sent):
        pair.near.send(frame)
        pair.way.take_in(0.0)
    assert pair.way.overflowed == sent - (MOST_KEPT_BYTES // (60_000 + 150) + 1)
    for due in range(60, 70):  # the sink holds a few at a time
        with contextlib.suppress(BlockingIOError):
            pair.way.give_out(due)
        assert set(pair.arrived()) == {frame}
    before = pair.way.overflowed
    pair.near.send(frame)
    pair.way.take_in(70.0)
    assert pair.way.overflowed == before  # there is room again


def test_frames_are_carried_both_ways_until_told_to_stop() -> None:
    out, back = Pair(LineShape(delay_ms=1)), Pair(LineShape(delay_ms=1))
    stop, stopping = os.pipe()
    with contextlib.ExitStack() as stack:
        for close in (out.close, back.close):
            stack.callback(close)
        stack.callback(os.close, stop)
        stack.callback(os.close, stopping)
        for pair in (out, back):
            pair.far.settimeout(10)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(carry, out.way, back.way, stop)
            try:
                for number, pair in itertools.product(range(100), (out, back)):
                    pair.near.send(bytes([number]))
                for number, pair in itertools.product(range(100), (out, back)):
                    assert pair.far.recv(10) == bytes([number])
            finally:
                os.write(stopping, b".")
            running.result(timeout=10)


# Flags.


def test_the_command_is_read_as_it_was_meant() -> None:
    shape = LineShape(delay_ms=12.3456789, loss=1e-7, rate_mbit=2.5e9)
    argv = command(namespace="lab-host", near="control", far="host-control", shape=shape, seed=7)
    assert argv[1:4] == ["-P", "-m", "isthmus.lab.relay"]
    flags = parse(argv[4:])
    assert (flags.namespace, flags.near, flags.far) == ("lab-host", "control", "host-control")
    assert (flags.shape, flags.seed) == (shape, 7)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--loss=2"], "a line's loss must be between 0 and 1, not 2.0"),
        (["--delay-ms=-1"], "a line's delay must be a number ≥ 0, not -1.0"),
        (["--rate-mbit=fast"], "argument --rate-mbit: invalid float value: 'fast'"),
        (["--colour=red"], "unrecognized arguments: --colour=red"),
    ],
)
def test_bad_flags_are_one_sentence_and_exit_code_2(
    more: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--namespace=none", "--near=near", "--far=far", *more]
    with pytest.raises(ConfigError):
        parse(argv)
    assert main(argv) == 2
    assert capfd.readouterr() == ("", f"relay: {sentence}\n")


def test_a_missing_flag_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--namespace=none", "--near=near"]) == 2
    assert capfd.readouterr().err == "relay: the following arguments are required: --far\n"
