"""Every frame that kills a session: what Go's yamux does with it, and that ours raises on it.

The same bytes go to both, as a client's towards a server. Where the two differ, ours is stricter.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from gopeer import PATIENCE_S, go_process, run

from isthmus.errors import ProtocolError
from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.tunnel.end import join
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.wire.yamux import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    INITIAL_WINDOW,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    pack,
)

pytestmark = pytest.mark.interop

OPEN = pack(0, WINDOW_UPDATE, SYN, 1, 0)
FINISH = pack(0, DATA, FIN, 1, 0)
HALF = INITIAL_WINDOW // 2

KILL_BOTH = {
    "duplicate SYN": OPEN + OPEN,
    "duplicate SYN on data": OPEN + pack(0, DATA, SYN, 1, 0),
    "second FIN": OPEN + FINISH + FINISH,
    "second FIN on an update": OPEN + FINISH + pack(0, WINDOW_UPDATE, FIN, 1, 0),
    "one byte beyond the window": OPEN
    + pack(0, DATA, 0, 1, HALF)
    + bytes(HALF)
    + pack(0, DATA, 0, 1, HALF + 1)
    + bytes(HALF + 1),
    "a frame larger than the window": OPEN + pack(0, DATA, 0, 1, INITIAL_WINDOW + 1),
    "unknown go-away code": pack(0, GO_AWAY, 0, 0, 3),
    "go-away: protocol error": pack(0, GO_AWAY, 0, 0, 1),
    "go-away: internal error": pack(0, GO_AWAY, 0, 0, 2),
    "bad version": pack(1, PING, SYN, 0, 7),
    "bad type": pack(0, 4, 0, 0, 0),
}
KILL_ONLY_OURS = {
    "an id of our own parity": pack(0, WINDOW_UPDATE, SYN, 2, 0),
    "stream 0": pack(0, WINDOW_UPDATE, SYN, 0, 0),
    "unknown flags": OPEN + pack(0, WINDOW_UPDATE, 16, 1, 0),
}
KILL_NEITHER = {
    "data for an unknown stream": pack(0, DATA, 0, 99, 5) + b"hello",
    "FIN for an unknown stream": pack(0, DATA, FIN, 99, 0),
    "RST for an unknown stream": pack(0, WINDOW_UPDATE, RST, 99, 0),
    "an update for an unknown stream": pack(0, WINDOW_UPDATE, 0, 99, 5),
    "RST, then more": OPEN + pack(0, WINDOW_UPDATE, RST, 1, 0) + FINISH + FINISH,
    "an answer to no ping": pack(0, PING, ACK, 0, 12345),
    "exactly the window": OPEN + pack(0, DATA, 0, 1, INITIAL_WINDOW) + bytes(INITIAL_WINDOW),
    "data with SYN and FIN": pack(0, DATA, SYN | FIN, 1, 2) + b"hi",
}
PROBE = pack(0, PING, SYN, 0, 0xBEEF)
ANSWER = pack(0, PING, ACK, 0, 0xBEEF)


def cases(*tables: dict[str, bytes]) -> pytest.MarkDecorator:
    both = {name: raw for table in tables for name, raw in table.items()}
    return pytest.mark.parametrize("raw", both.values(), ids=both.keys())


async def read_until(sock: socket.socket, wanted: bytes | None) -> bytes:
    """Read until these bytes, or to the end when there are none or it comes first."""
    loop = asyncio.get_running_loop()
    got = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted is None or wanted not in got:
            try:
                data = await loop.sock_recv(sock, 65536)
            except ConnectionResetError:
                break
            if not data:
                break
            got += data
    return got


@cases(KILL_BOTH)
def test_go_closes_the_session(yamuxpeer: Path, raw: bytes) -> None:
    async def main() -> None:
        async with go_process(yamuxpeer, "-accept=false") as (go, sock):
            with sock:
                await asyncio.get_running_loop().sock_sendall(sock, raw)
                await go.event("closed")
                await read_until(sock, None)

    run(main())


@cases(KILL_ONLY_OURS, KILL_NEITHER)
def test_go_goes_on(yamuxpeer: Path, raw: bytes) -> None:
    async def main() -> None:
        async with go_process(yamuxpeer, "-accept=false") as (_, sock):
            with sock:
                await asyncio.get_running_loop().sock_sendall(sock, raw + PROBE)
                assert ANSWER in await read_until(sock, ANSWER)

    run(main())


def feed_ours(raw: bytes) -> MemoryCarrier:
    """Give the bytes to a session of ours, a server whose streams all have a full sink."""

    def full_sink(stream: Stream) -> None:
        end = MemoryEnd()
        end.fill()
        join(stream, end)

    carrier = MemoryCarrier()
    session = carrier.session = Session(
        carrier, client=False, clock=ManualClock(), on_stream=full_sink
    )
    session.receive(memoryview(raw))
    return carrier


@cases(KILL_BOTH, KILL_ONLY_OURS)
def test_ours_raises(raw: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^yamux: "):
        feed_ours(raw + PROBE)


@cases(KILL_NEITHER)
def test_ours_goes_on(raw: bytes) -> None:
    carrier = feed_ours(raw + PROBE)
    carrier.flush()
    assert carrier.take().endswith(ANSWER)
