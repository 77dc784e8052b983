"""A bad line between a host and its network: a program that carries frames between two TAPs.

netem is a kernel module that many machines lack; TAPs are everywhere. One TAP, *near*, is the
host's interface; the other, *far*, is a port of the network's bridge in the namespace where the
program runs. ``BadLine`` decides what happens to frames, with time and chance as arguments: a frame
waits in a bounded queue, is sent at the line's rate, and then travels for the delay. Run as
``python -m isthmus.lab.relay``, see command().
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

#: The largest frame of a TAP: an Ethernet header, a VLAN tag and the largest packet.
_MOST_FRAME_BYTES = 18 + 65535
#: Frames read from one side before the other side and due frames get their turn.
_BATCH = 64
#: The limit of data on the way in one direction, including Python's overhead per frame: a line
#: without a rate, or one that is long and fast, would otherwise hold an unlimited amount.
MOST_KEPT_BYTES = 32 * 1024 * 1024
_KEEPING_BYTES = 150

LEAST_QUEUE_BYTES = 64 * 1024
#: The queue's room beyond a round trip, for a sender's bursts.
QUEUE_MARGIN_S = 0.05


class BadLine:
    """One direction of a line; frames leave it in order.

    ``lost`` counts frames lost by chance, ``dropped`` those that found the queue full.

    Raises:
        ValueError: the shape is invalid.
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
        """Accept a frame at ``now``; returns when it leaves, or None if it never does.

        ``now`` never decreases; ``chance`` is a number in [0, 1): the frame is lost if it is below
        the loss.
        """
        rate = self._bytes_per_s
        leaves = now
        if rate:
            begins = self._free_at if self._free_at > now else now
            if (begins - now) * rate + size > self.queue_bytes:
                self.dropped += 1
                return None
            # A lost frame occupies the line as well.
            leaves = self._free_at = begins + size / rate
        if chance < self._loss:
            self.lost += 1
            return None
        return leaves + self._delay_s

    def waiting_bytes(self, now: float) -> float:
        """The number of accepted bytes not yet sent at the rate; 0 without a rate."""
        return max(0.0, self._free_at - now) * self._bytes_per_s


def queue_bytes(shape: LineShape) -> int:
    """The size of the queue: the data on the way during a round trip, and some more.

    With less, a single connection could not fill the line; 0 without a rate.
    """
    if not shape.rate_mbit:
        return 0
    round_trip_s = 2 * shape.delay_ms / 1e3
    product = shape.rate_mbit * 1e6 / 8 * (round_trip_s + QUEUE_MARGIN_S)
    return max(LEAST_QUEUE_BYTES, round(product))


def _check(shape: LineShape) -> None:
    for name, value in (("delay", shape.delay_ms), ("rate", shape.rate_mbit)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"a line's {name} must be a number ≥ 0, not {value}")
    if not 0 <= shape.loss <= 1:
        raise ValueError(f"a line's loss must be between 0 and 1, not {shape.loss}")


def make_tap(name: str) -> None:
    """Create a TAP interface in this thread's namespace; it lives as long as the namespace.

    It has no carrier, and carries nothing, until a relay opens it.

    Raises:
        ConfigError: the kernel refused.
    """
    tap = open_tap(name)
    try:
        fcntl.ioctl(tap, _TUNSETPERSIST, 1)
    finally:
        os.close(tap)


def open_tap(name: str) -> int:
    """Open a TAP interface in this thread's namespace; returns a non-blocking descriptor.

    Raises:
        ConfigError: the kernel refused, or another program has the interface open.
    """
    if not _INTERFACE.fullmatch(name):
        raise ConfigError(f"invalid interface name: {name!r}")
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
    """The command that carries frames between two existing TAPs.

    ``near`` is in ``namespace``, ``far`` in the one where the command runs. It prints READY on a
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
    """One direction: frames are read from one TAP, kept until they are due, and written."""

    __slots__ = ("_chance", "_due", "_kept_bytes", "_line", "_sink", "overflowed", "source")

    def __init__(self, source: int, sink: int, line: BadLine, chance: Callable[[], float]) -> None:
        self.source = source
        self._sink = sink
        self._line = line
        self._chance = chance
        self._due: deque[tuple[float, bytes]] = deque()  # in order of departure
        self._kept_bytes = 0
        self.overflowed = 0

    @property
    def next_due(self) -> float | None:
        """When the next frame leaves; None if there is none."""
        return self._due[0][0] if self._due else None

    def take_in(self, now: float) -> None:
        """Read waiting frames, at most a batch."""
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
            if exc.errno != errno.EIO:  # EIO means that the interface is down
                raise

    def __str__(self) -> str:
        line = self._line
        return f"{line.lost} lost, {line.dropped + self.overflowed} dropped"


def carry(out: Direction, back: Direction, stop: int) -> None:
    """Carry frames in both directions until ``stop`` is readable.

    Raises:
        OSError: an interface is gone.
    """
    sources = [out.source, back.source, stop]
    clock = time.monotonic
    while True:
        dues = [due for due in (out.next_due, back.next_due) if due is not None]
        wait_s = max(0.0, min(dues) - clock()) if dues else None
        # Not epoll: its timeouts are whole milliseconds, those of select microseconds.
        ready, _, _ = select.select(sources, (), (), wait_s)
        if stop in ready:
            return
        now = clock()
        for way in (out, back):
            way.give_out(now)
            if way.source in ready:
                way.take_in(now)


def run(near: int, far: int, shape: LineShape, seed: int) -> str:
    """Carry frames until a signal arrives; returns a summary.

    Raises:
        OSError: an interface is gone.
    """
    stop, stopping = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # A handler alone is not enough: a signal just before select would be noticed only after it.
    signal.set_wakeup_fd(stopping)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # Separate generators, so that traffic in one direction does not affect losses in the other.
    out = Direction(near, far, BadLine(shape), random.Random(2 * seed).random)
    back = Direction(far, near, BadLine(shape), random.Random(2 * seed + 1).random)
    _say(_STDOUT, READY)
    carry(out, back, stop)
    return f"relay: from the host: {out}; to the host: {back}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the flags; ``shape`` is the line's.

    Raises:
        ConfigError: they are invalid.
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
    """Open an existing TAP: opening creates a missing one, which would have no peer."""
    if name not in {known for _, known in socket.if_nameindex()}:
        raise ConfigError(f"no interface {name!r}")
    return open_tap(name)


def _attach_in(namespace: str, name: str) -> int:
    from pyroute2 import netns  # slow to import, and not needed to reject a flag

    from isthmus.lab.namespaces import inside

    if namespace not in netns.listnetns():  # entering would create it
        raise ConfigError(f"no namespace {namespace!r}")
    try:
        return inside(namespace, partial(_attach, name))
    except OSError as exc:
        raise ConfigError(f"cannot enter the namespace {namespace}: {exc.strerror}") from exc


def _say(to: int, text: str) -> None:
    with contextlib.suppress(OSError):  # the starter may have ended
        os.write(to, f"{text}\n".encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the relay; returns the exit code."""
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
