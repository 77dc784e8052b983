"""A bad line between a host and its network: a program that carries frames between two TAPs.

The kernel's own netem is a module that many machines lack; a TAP is everywhere. One TAP, *near*,
is the host's interface; the other, *far*, is a port of the network's bridge in the namespace where
the program runs. What the line does to frames is decided by ``BadLine``, which takes time and
chance as arguments: a frame waits in a bounded queue, takes its time at the rate, and then travels
for the delay. Run as ``python -m isthmus.lab.relay``, see command().
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import math
import os
import random
import re
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from isthmus.errors import ConfigError
from isthmus.lab.python import module
from isthmus.lab.topology import LineShape

READY = "relay: ready"

_STDOUT, _STDERR = 1, 2
_TUN = "/dev/net/tun"
# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_TUNSETPERSIST = 0x400454CB
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_INTERFACE = re.compile(r"[A-Za-z0-9_.-]{1,15}")

#: The largest frame that a TAP gives: an Ethernet header, a VLAN tag and the largest packet.
_MOST_FRAME_BYTES = 18 + 65535
#: Frames read from one side before the other side and what is due have their turn.
_BATCH = 64
#: What may be on the way in one direction, with what Python needs to keep a frame: a line without
#: a rate, or one that is long and fast, would otherwise keep whatever is sent into it.
MOST_KEPT_BYTES = 32 * 1024 * 1024
_KEEPING_BYTES = 150

LEAST_QUEUE_BYTES = 64 * 1024
#: What the queue holds above a round trip, so that a sender's bursts fit.
QUEUE_MARGIN_S = 0.05


class BadLine:
    """One direction of a line; frames leave it in the order they came.

    ``lost`` counts the frames that chance took, ``dropped`` those that found the queue full.

    Raises:
        ValueError: there is no such line; the message is one sentence.
    """

    __slots__ = ("_bytes_per_s", "_delay_s", "_free_at", "_loss", "dropped", "lost", "queue_bytes")

    def __init__(self, shape: LineShape) -> None:
        _check(shape)
        self._delay_s = shape.delay_ms / 1e3
        self._loss = shape.loss
        self._bytes_per_s = shape.rate_mbit * 1e6 / 8
        self.queue_bytes = queue_bytes(shape)
        self._free_at = 0.0
        self.lost = 0
        self.dropped = 0

    def take(self, size: int, now: float, chance: float) -> float | None:
        """Take a frame that came ``now``; say when it leaves, or None if it never does.

        ``now`` never goes back; ``chance`` is a number from 0 up to 1, below the loss it is bad.
        """
        rate = self._bytes_per_s
        leaves = now
        if rate:
            begins = self._free_at if self._free_at > now else now
            if (begins - now) * rate + size > self.queue_bytes:
                self.dropped += 1
                return None
            # The line is busy with what gets lost on it, too.
            leaves = self._free_at = begins + size / rate
        if chance < self._loss:
            self.lost += 1
            return None
        return leaves + self._delay_s

    def waiting_bytes(self, now: float) -> float:
        """How much of what it took is not sent yet at the rate; 0 without a rate."""
        return max(0.0, self._free_at - now) * self._bytes_per_s


def queue_bytes(shape: LineShape) -> int:
    """How much may wait for the rate: what is on the way in a round trip, and some.

    With less, a single connection could not fill the line; 0 where there is no rate to wait for.
    """
    if not shape.rate_mbit:
        return 0
    round_trip_s = 2 * shape.delay_ms / 1e3
    product = shape.rate_mbit * 1e6 / 8 * (round_trip_s + QUEUE_MARGIN_S)
    return max(LEAST_QUEUE_BYTES, round(product))


def _check(shape: LineShape) -> None:
    for name, value in (("delay", shape.delay_ms), ("rate", shape.rate_mbit)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"a line's {name} is a number from 0 on, not {value}")
    if not 0 <= shape.loss <= 1:
        raise ValueError(f"a line's loss is a share between 0 and 1, not {shape.loss}")


def make_tap(name: str) -> None:
    """Make a TAP interface in this thread's namespace, which stays until the namespace goes.

    It has no carrier, so nothing goes through it, before a relay has it open.

    Raises:
        ConfigError: the kernel does not allow it.
    """
    tap = open_tap(name)
    try:
        fcntl.ioctl(tap, _TUNSETPERSIST, 1)
    finally:
        os.close(tap)


def open_tap(name: str) -> int:
    """Open a TAP interface in this thread's namespace; gives a descriptor that never blocks.

    Raises:
        ConfigError: the kernel does not allow it, or another program has it open.
    """
    if not _INTERFACE.fullmatch(name):
        raise ConfigError(f"not an interface's name: {name!r}")
    try:
        tap = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise ConfigError(f"a bad line needs {_TUN}: {exc.strerror}") from exc
    request = struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
    try:
        fcntl.ioctl(tap, _TUNSETIFF, request)
    except OSError as exc:
        os.close(tap)
        raise ConfigError(f"cannot open the interface {name}: {exc.strerror}") from exc
    return tap


def command(*, namespace: str, near: str, far: str, shape: LineShape, seed: int = 0) -> list[str]:
    """Write the command that carries frames between two TAPs that are there.

    ``near`` is in ``namespace``, ``far`` in the one where the command is run. It says READY on a
    line of its own when both are attached, and ends by SIGTERM or SIGINT.
    """
    return [
        *module("isthmus.lab.relay"),
        f"--namespace={namespace}",
        f"--near={near}",
        f"--far={far}",
        f"--delay-ms={shape.delay_ms}",
        f"--loss={shape.loss}",
        f"--rate-mbit={shape.rate_mbit}",
        f"--seed={seed}",
    ]


class Direction:
    """What goes one way: read from one TAP, kept until it is due, written to the other."""

    __slots__ = ("_chance", "_due", "_kept_bytes", "_line", "_sink", "overflowed", "source")

    def __init__(self, source: int, sink: int, line: BadLine, chance: Callable[[], float]) -> None:
        self.source = source
        self._sink = sink
        self._line = line
        self._chance = chance
        self._due: deque[tuple[float, bytes]] = deque()  # in order, as the line keeps it
        self._kept_bytes = 0
        self.overflowed = 0

    @property
    def next_due(self) -> float | None:
        """When the next frame leaves; None when nothing is on the way."""
        return self._due[0][0] if self._due else None

    def take_in(self, now: float) -> None:
        """Read what is there, a batch at most."""
        take, chance, source = self._line.take, self._chance, self.source
        for _ in range(_BATCH):
            try:
                frame = os.read(source, _MOST_FRAME_BYTES)
            except BlockingIOError:
                return
            size = len(frame)
            leaves = take(size, now, chance())
            if leaves is None:
                continue
            if leaves <= now and not self._due:
                self._write(frame)
            elif self._kept_bytes > MOST_KEPT_BYTES:
                self.overflowed += 1
            else:
                self._kept_bytes += size + _KEEPING_BYTES
                self._due.append((leaves, frame))

    def give_out(self, now: float) -> None:
        due = self._due
        while due and due[0][0] <= now:
            _, frame = due.popleft()
            self._kept_bytes -= len(frame) + _KEEPING_BYTES
            self._write(frame)

    def _write(self, frame: bytes) -> None:
        try:
            os.write(self._sink, frame)
        except OSError as exc:
            if exc.errno != errno.EIO:  # which says that the interface is down: nobody is there
                raise

    def __str__(self) -> str:
        line = self._line
        return f"{line.lost} lost, {line.dropped + self.overflowed} dropped"


def carry(out: Direction, back: Direction, stop: int) -> None:
    """Carry frames both ways until ``stop`` can be read.

    Raises:
        OSError: an interface is gone.
    """
    sources = [out.source, back.source, stop]
    clock = time.monotonic
    while True:
        dues = [due for due in (out.next_due, back.next_due) if due is not None]
        wait_s = max(0.0, min(dues) - clock()) if dues else None
        # Not epoll: its time-outs are whole milliseconds here, select's are microseconds.
        ready, _, _ = select.select(sources, (), (), wait_s)
        if stop in ready:
            return
        now = clock()
        for way in (out, back):
            way.give_out(now)
            if way.source in ready:
                way.take_in(now)


def run(near: int, far: int, shape: LineShape, seed: int) -> str:
    """Carry frames until a signal says stop; gives a sentence on what was carried.

    Raises:
        OSError: an interface is gone.
    """
    stop, stopping = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # A handler alone is not enough: a signal just before select would be noticed only after it.
    signal.set_wakeup_fd(stopping)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # Each direction has its own, so that what goes one way does not decide what is lost the other.
    out = Direction(near, far, BadLine(shape), random.Random(2 * seed).random)
    back = Direction(far, near, BadLine(shape), random.Random(2 * seed + 1).random)
    _say(_STDOUT, READY)
    carry(out, back, stop)
    return f"relay: from the host: {out}; to the host: {back}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the flags; ``shape`` is the line's.

    Raises:
        ConfigError: they make no sense.
    """
    parser = _Parser(prog="relay", description="Carry frames between two TAPs, badly.")
    parser.add_argument("--namespace", required=True, help="where the near interface is")
    parser.add_argument("--near", required=True, help="the host's interface")
    parser.add_argument("--far", required=True, help="the bridge's, in here")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--loss", type=float, default=0.0, help="a share, 0 to 1")
    parser.add_argument("--rate-mbit", type=float, default=0.0, help="0 is no limit")
    parser.add_argument("--seed", type=int, default=0, help="of the chances of loss")
    flags = parser.parse_args(argv)
    flags.shape = LineShape(delay_ms=flags.delay_ms, loss=flags.loss, rate_mbit=flags.rate_mbit)
    try:
        BadLine(flags.shape)
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    return flags


def _attach(name: str) -> int:
    """Open a TAP that is there: opening makes one that is not, which nobody would talk to."""
    if name not in {known for _, known in socket.if_nameindex()}:
        raise ConfigError(f"there is no interface {name!r}")
    return open_tap(name)


def _attach_in(namespace: str, name: str) -> int:
    from pyroute2 import netns  # takes its time, and is not needed to say that a flag is wrong

    from isthmus.lab.namespaces import inside

    if namespace not in netns.listnetns():  # entering would make it
        raise ConfigError(f"there is no namespace {namespace!r}")
    try:
        return inside(namespace, partial(_attach, name))
    except OSError as exc:
        raise ConfigError(f"cannot enter the namespace {namespace}: {exc.strerror}") from exc


def _say(to: int, text: str) -> None:
    with contextlib.suppress(OSError):  # whoever started it may be gone
        os.write(to, f"{text}\n".encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the relay; gives the exit code."""
    try:
        flags = parse(sys.argv[1:] if argv is None else argv)
        far = _attach(flags.far)
        near = _attach_in(flags.namespace, flags.near)
    except ConfigError as exc:
        _say(_STDERR, f"relay: {exc}")
        return 2
    try:
        said = run(near, far, flags.shape, flags.seed)
    except OSError as exc:
        _say(_STDERR, f"relay: an interface is gone: {exc.strerror}")
        return 1
    _say(_STDOUT, said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
