"""HTTP/2 against a running server: floods, bombs and window games end their own connection.

Others go on with the right checksums, and memory stays within its bounds. What each rule says byte
by byte is tests/unit/tunnel/test_http2*.py and tests/interop/test_h2spec.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace

import hpack
import pytest
from clients import LIMIT_S, Client, TlsClient, blocks, connect_uds, echo_target
from grpc_clients import GrpcCall
from stack import Stack, agent_context, wait_until
from test_floods import connect, rss_bytes

from isthmus.tunnel import limits
from isthmus.wire.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS_ACK,
    ErrorCode,
    encode_headers,
    frame,
    read_goaway,
    settings,
    unpack_head,
    window_update,
)
from isthmus.wire.packet import dial_request

MIB = 1024 * 1024
CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/ProxyService/Proxy"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
GREETING = PREFACE + settings() + SETTINGS_ACK
BLOCK = encode_headers(CALL)
#: What a bucket holds here, and more than that. What it holds otherwise is for a faster machine
#: than one that runs tests (tests/unit/tunnel/test_http2_floods.py).
BURST, MANY = 1000, 5000


def call(stream: int, flags: int = END_HEADERS, block: bytes = BLOCK) -> bytes:
    return frame(HEADERS, flags, stream, block)


def cancel(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, int(ErrorCode.CANCEL).to_bytes(4, "big"))


def odd(count: int) -> range:
    return range(1, 2 * count, 2)


def rapid_reset() -> bytes:
    """CVE-2023-44487: each stream is cheap to open and reset, and dear to serve."""
    return b"".join(call(stream) + cancel(stream) for stream in odd(MANY))


def rapid_reset_of_dials() -> bytes:
    dial = dial_request("tcp", "127.0.0.1:9", 1)
    return b"".join(
        call(stream) + frame(DATA, 0, stream, dial) + cancel(stream) for stream in odd(MANY)
    )


def made_to_reset() -> bytes:
    """The same, but it is we who reset: a header list that may not be (CVE-2025-8671)."""
    bad = encode_headers((*CALL, (b"connection", b"close")))
    return b"".join(call(stream, block=bad) for stream in odd(MANY))


def continuation_flood() -> bytes:
    """CVE-2024-27316: a header block that never ends."""
    return call(1, 0, b"") + frame(CONTINUATION, 0, 1, b"") * MANY


def long_block() -> bytes:
    return call(1, 0, b"\0") + frame(CONTINUATION, 0, 1, b"\x01a" * 8000) * 8


def hpack_bomb() -> bytes:
    """One entry of 4 KB in the table, named ten thousand times in a block of 10 KB."""
    encoder = hpack.Encoder()
    block = encoder.encode([(b"x", b"y" * 4000)])
    return call(1, block=block + b"\xbe" * 10_000)


def table_growth() -> bytes:
    """A table larger than we said."""
    return call(1, block=b"\x3f\xff\xff\xff\x07" + BLOCK)


def ping_flood() -> bytes:
    return frame(PING, 0, 0, b"ping----") * MANY


def settings_flood() -> bytes:
    return settings((3, 100)) * MANY


def window_toggle() -> bytes:
    """Every change touches every stream."""
    opened = b"".join(map(call, odd(2000)))
    return opened + (settings((4, 0)) + settings((4, 65535))) * MANY


def connection_window_overflow() -> bytes:
    return window_update(0, 2**31 - 1)


def settings_window_overflow() -> bytes:
    return call(1) + window_update(1, 2**31 - 1 - 65535) + settings((4, 70000))


def nothing_updated() -> bytes:
    return window_update(0, 0)


def priority_flood() -> bytes:
    return frame(PRIORITY, 0, 3, b"\0\0\0\1\0") * MANY


def unknown_flood() -> bytes:
    return frame(0x77, 0, 0, b"?") * MANY


def empty_data_flood() -> bytes:
    return call(1) + frame(DATA, 0, 1) * MANY


def data_on_closed() -> bytes:
    """Behind its own end of stream."""
    opened = call(1, END_HEADERS | END_STREAM)
    return opened + frame(DATA, 0, 1, b"x") * MANY


def goaway_flood() -> bytes:
    return frame(GOAWAY, 0, 0, b"\0" * 8) * MANY


def data_on_idle() -> bytes:
    return frame(DATA, 0, 7, b"x")


def too_large_a_frame() -> bytes:
    return call(1) + frame(DATA, 0, 1, b"x" * 16_385)


CALM, PROTOCOL, FLOW = (
    ErrorCode.ENHANCE_YOUR_CALM,
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.FLOW_CONTROL_ERROR,
)
ATTACKS = {
    rapid_reset: CALM,
    rapid_reset_of_dials: CALM,
    made_to_reset: CALM,
    continuation_flood: CALM,
    long_block: CALM,
    hpack_bomb: CALM,
    table_growth: ErrorCode.COMPRESSION_ERROR,
    ping_flood: CALM,
    settings_flood: CALM,
    window_toggle: CALM,
    connection_window_overflow: FLOW,
    settings_window_overflow: FLOW,
    nothing_updated: PROTOCOL,
    priority_flood: CALM,
    unknown_flood: CALM,
    empty_data_flood: CALM,
    data_on_closed: CALM,
    goaway_flood: CALM,
    data_on_idle: PROTOCOL,
    too_large_a_frame: ErrorCode.FRAME_SIZE_ERROR,
}


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BURST", BURST)
    monkeypatch.setattr(limits, "PER_SECOND", 1)


@pytest.fixture(scope="module")
def served(certificates: object) -> Iterator[Stack]:
    with Stack(certificates) as stack:  # type: ignore[arg-type]  # a PkiFiles
        stack.add_server(mode=("grpc",))
        stack.add_agent()
        yield stack


class Honest:
    """A call that carries bytes there and back for as long as somebody attacks."""

    def __init__(self, stack: Stack, target: str) -> None:
        self.call = GrpcCall(connect_uds(stack.server.settings.uds_name))
        assert self.call.dial(target) == ""
        self._stop = threading.Event()
        self.rounds = 0
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        self.call.client.close()
        if self.failed is not None:
            raise self.failed
        assert self.rounds, "nothing came back"

    def _run(self) -> None:
        try:
            while not self._stop.is_set() or not self.rounds:
                (data,) = blocks(self.rounds, 10_000)
                self.call.send(data)
                back = self.call.read_exactly(len(data))
                assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()
                self.call.client.send(window_update(0, 10_100) + window_update(1, 10_100))
                self.rounds += 1
        except BaseException as exc:
            self.failed = exc


def ended(client: Client, attack: bytes) -> ErrorCode | None:
    """Attack and read to the end; the code of the GOAWAY, if it can still be read."""
    reader = threading.Thread(target=_send, args=(client, attack), daemon=True)
    reader.start()
    raw = bytearray()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := client.recv():
            raw += data
    reader.join(LIMIT_S)
    code = None
    while len(raw) >= 9:
        high, low, kind, _, _ = unpack_head(raw)
        end = 9 + (high << 8 | low)
        if kind == GOAWAY and len(raw) >= end:
            code = ErrorCode(read_goaway(bytes(raw[9:end]))[1])
        del raw[:end]
    return code


def _send(client: Client, attack: bytes) -> None:
    with contextlib.suppress(OSError):
        client.send(attack)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_the_offender_is_ended_and_nobody_else(served: Stack, attack: object) -> None:
    assert callable(attack)
    raw, before = GREETING + attack(), rss_bytes()
    with echo_target() as target, Honest(served, target.name):
        with connect_uds(served.server.settings.uds_name) as client:
            assert ended(client, raw) == ATTACKS[attack]
        assert rss_bytes() - before < 64 * MIB
    served.wait_idle()
    served.wait(lambda: not served.server.dialer.pending, "no dial is left")
    wait_until(lambda: no_connection(served), "its connection is gone")


def no_connection(stack: Stack) -> bool:
    grpc = stack.server.doors._grpc
    assert grpc is not None
    return stack.do(lambda: not grpc.connections)


@pytest.mark.parametrize("attack", [ping_flood, settings_flood], ids=lambda each: each.__name__)
def test_one_that_asks_but_does_not_read(served: Stack, attack: object) -> None:
    """Answers that nobody takes are bounded: it is ended, though it never hears it."""
    assert callable(attack)
    before = rss_bytes()
    raw = GREETING + attack() * 40
    with echo_target() as target, Honest(served, target.name):
        with connect_uds(served.server.settings.uds_name) as client:
            _send(client, raw)
            connection = served.server.doors._grpc
            assert connection is not None
            served.wait(lambda: len(connection.connections) == 1, "only the honest one is left")
        assert rss_bytes() - before < 64 * MIB
    wait_until(lambda: no_connection(served), "its connection is gone")


@pytest.mark.parametrize("window", [0, 1])
def test_a_reader_of_tiny_windows_stalls_only_itself(served: Stack, window: int) -> None:
    """It lets its target send next to nothing, byte by byte; in the end it has everything."""
    (data,) = blocks(7, 100_000)
    with (
        echo_target() as target,
        Honest(served, target.name) as honest,
        connect_uds(served.server.settings.uds_name) as client,
    ):
        slow = GrpcCall(client)
        assert slow.dial(target.name) == ""
        client.send(settings((4, window)))
        for at in range(0, len(data), 10_000):
            slow.send(data[at : at + 10_000])
        before = honest.rounds
        wait_until(lambda: honest.rounds > before + 3, "the other goes on meanwhile")
        for _ in range(500):
            client.send(window_update(1, 1))
        client.send(window_update(1, 1_000_000) + window_update(0, 1_000_000))
        assert slow.read_exactly(len(data)) == data
    wait_until(lambda: no_connection(served), "its connection is gone")


def test_as_many_streams_as_there_may_be_and_more(served: Stack) -> None:
    """Some are served, the others refused one by one, and all memory comes back."""
    grpc = served.server.doors._grpc
    assert grpc is not None
    grpc._limits = replace(grpc._limits, max_streams=1000)
    with (
        echo_target() as target,
        Honest(served, target.name),
        connect_uds(served.server.settings.uds_name) as client,
    ):
        raw = GREETING + b"".join(map(call, odd(1500)))
        threading.Thread(target=_send, args=(client, raw), daemon=True).start()
        refused = 0
        while refused < 500:
            high, low, kind, _, _ = unpack_head(client.read_exactly(9))
            payload = client.read_exactly(high << 8 | low)
            if kind == RST_STREAM:
                assert int.from_bytes(payload, "big") == ErrorCode.REFUSED_STREAM
                refused += 1
    wait_until(lambda: no_connection(served), "its connection is gone")


AGENT_ATTACKS = (ping_flood, settings_flood, continuation_flood, hpack_bomb, unknown_flood)


@pytest.mark.parametrize("attack", AGENT_ATTACKS, ids=lambda attack: attack.__name__)
def test_the_same_at_the_agent_port(served: Stack, attack: object) -> None:
    """By one with an agent's certificate, before it is a link."""
    assert callable(attack)
    context = agent_context(served.files)
    context.set_alpn_protocols(["h2"])
    with echo_target() as target, Honest(served, target.name):
        sock = connect(served.server.agent_port)
        with TlsClient(sock, context, "localhost") as peer:
            # The link says why it ends last, and that may be overtaken by the reset.
            assert ended(peer, GREETING + attack()) in (ATTACKS[attack], PROTOCOL, None)
    served.wait(lambda: len(served.server.links) == 1, "its link is gone")
