"""Clients of the servers, in this process: a dialer for every path, and operations on tunnels.

They are isthmus.client's: HTTP CONNECT with a connection per tunnel, konnectivity's gRPC with one
connection for all. Every wait has a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import uvloop
from processes import BenchError

from hold.patterns import PIECE_BYTES, TRAILER_BYTES, Tally, pieces, trailer_of
from hold.programs import SilentError
from isthmus.client.dialer import Dialer
from isthmus.client.service import ConnectivityService
from isthmus.client.stream import Connection
from isthmus.dial.rules_connectivity import ConnectivityConfig, NetworkConfig
from isthmus.dial.rules_connectivity import NetworkConnection as Door

T = TypeVar("T")

FRONTENDS = ("connect", "grpc")
LINKS = ("mux", "grpc")
LIMIT_S = 60.0
MESSAGE = b"0123456789abcdef" * 4


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a scenario's coroutine in a loop like the programs'; Ctrl-C cancels it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def service(doors: Mapping[str, Door]) -> ConnectivityService:
    """A service with a network for each door, under its name."""
    networks = {name: NetworkConfig(name=name, connection=door) for name, door in doors.items()}
    return ConnectivityService.from_config(ConnectivityConfig(networks=networks))


async def until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """Poll a condition in a thread until it holds; returns how long that took.

    A program that does not answer yet is polled again.

    Raises:
        BenchError: the time is over, or a program has ended.
    """

    def look() -> bool:
        try:
            return holds()
        except SilentError:
            return False

    began = time.monotonic()
    while not await asyncio.to_thread(look):
        if time.monotonic() - began > limit_s:
            raise BenchError(f"timed out after {limit_s:.0f} s waiting until {what}")
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def opened(dialer: Dialer, address: str, line: str, timeout_s: float = LIMIT_S) -> Connection:
    """Open a tunnel and send the job's line to the target."""
    connection = await dialer.dial("tcp", address, timeout_s=timeout_s)
    connection.write(line.encode() + b"\n")
    return connection


async def exactly(connection: Connection, size: int, timeout_s: float = LIMIT_S) -> bytes:
    """Read exactly this many bytes.

    Raises:
        EOFError: the stream ended first.
    """
    got = bytearray()
    while len(got) < size:
        data = await connection.read(size - len(got), timeout_s=timeout_s)
        if not data:
            raise EOFError(f"stream ended after {len(got)} of {size} bytes")
        got += data
    return bytes(got)


async def ask(connection: Connection, message: bytes = MESSAGE) -> float:
    """Send one request to an echo and read the answer; returns the time it took.

    Raises:
        BenchError: the answer is wrong.
    """
    began = time.monotonic()
    connection.write(message)
    if await exactly(connection, len(message)) != message:
        raise BenchError("wrong answer")
    return time.monotonic() - began


async def once(dialer: Dialer, address: str, timeout_s: float = LIMIT_S) -> float:
    """Dial, request, close; returns the time until the answer."""
    began = time.monotonic()
    connection = await opened(dialer, address, "echo", timeout_s)
    try:
        await ask(connection)
        took = time.monotonic() - began
        connection.write_eof()
        if await connection.read(timeout_s=LIMIT_S):
            raise BenchError("more bytes than were sent")
    except BaseException:
        connection.abort()
        raise
    await connection.close()
    return took


async def send(connection: Connection, seed: int, total: int) -> None:
    """Send the stream of a seed, as fast as it is accepted."""
    for piece in pieces(seed, total):
        connection.write(piece)
        await connection.drain(timeout_s=LIMIT_S)


async def swap(
    dialer: Dialer, address: str, *, seed: int, up: int, down: int, idle_s: float = 0.0
) -> None:
    """Send and half-close, while reading the other direction; the trailer tells what arrived.

    Sending starts after ``idle_s``.

    Raises:
        BenchError: bytes are missing, wrong or extra, in either direction.
    """
    connection = await opened(dialer, address, f"swap {seed + 1} {down}")
    try:
        async with asyncio.TaskGroup() as both:
            reading = both.create_task(_read_swap(connection, seed + 1, down))
            await asyncio.sleep(idle_s)
            await send(connection, seed, up)
            connection.write_eof()
        if reading.result() != trailer_of(seed, up):
            raise BenchError("the target received other bytes than were sent")
    except BaseException:
        connection.abort()
        raise
    await connection.close()


async def _read_swap(connection: Connection, seed: int, down: int) -> bytes:
    tally, left = Tally(), down
    while left:
        data = await connection.read(min(left, PIECE_BYTES), timeout_s=LIMIT_S)
        if not data:
            raise BenchError(f"stream ended {left} bytes early")
        tally.add(data)
        left -= len(data)
    if tally.trailer() != trailer_of(seed, down):
        raise BenchError("received other bytes than were sent")
    trailer = await exactly(connection, TRAILER_BYTES)
    if await connection.read(timeout_s=LIMIT_S):
        raise BenchError("received more bytes than were sent")
    return trailer
