"""The server's side of an HTTP/2 connection: any bytes in any cut, handlers that do anything.

Only Http2Error; the same calls and the same error for every cut; streams and held bytes within
their bounds; what a peer makes us say is in proportion to what it says.
"""

from cutting import cut, knobs, same, whole_and_cut
from sinks import RESPONSE

from isthmus.testing import ManualClock, MemoryCarrier, Recorder
from isthmus.tunnel.budget import Budget
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Http2Limits
from isthmus.wire.http2 import PREFACE, ErrorCode, Headers, Http2Error, settings

STREAMS, BUDGET, CONTROL = 8, 512 * 1024, 2048


class Side:
    """A connection and its handlers."""

    client = False

    def __init__(self, behaviour: int, limits: Http2Limits, room: int | None) -> None:
        self.behaviour = behaviour
        self.handlers: dict[int, Recorder] = {}
        self.carrier = MemoryCarrier(room_bytes=room)
        self.connection = self.carrier.session = Http2Connection(
            self.carrier, client=self.client, clock=ManualClock(), limits=limits,
            on_request=None if self.client else self.request,
        )  # fmt: skip
        self.begin()

    def begin(self) -> None:
        """What an honest peer says first."""
        self.connection.receive(memoryview(PREFACE + settings()))

    def request(self, stream: Http2Stream, headers: Headers) -> Recorder:
        """Let a recorder have it."""
        handler = self.handlers[stream.id] = Recorder()
        handler.headers.append(headers)
        handler.full = bool(self.behaviour & 1)
        handler.on_call = self.react
        if self.behaviour & 0xE:
            self.react("headers", stream)
        return handler

    def react(self, name: str, stream: Http2Stream) -> None:
        """Do what the knob says, whenever something happens."""
        act = self.behaviour >> 1 & 7
        if not stream.open or not act:
            return
        if act == 1 and name == "headers":
            stream.send_headers(RESPONSE)
        elif act == 2 and name in ("headers", "data"):
            stream.write(b"head", b"x" * 100)
        elif act == 3 and name == "data":
            stream.reset(ErrorCode.CANCEL)
        elif act == 4 and name == "end":
            stream.end()
        elif act == 5:
            stream.release()
        elif act == 6 and name == "data":
            self.connection.lost("by a handler")
        elif act == 7 and name == "data":
            self.connection.go_away()

    def outcome(self, pieces: list[bytes]) -> tuple[object, ...]:
        """Receive, and tell all that came of it."""
        error: object = ""
        try:
            for piece in pieces:
                self.connection.receive(memoryview(piece))
        except Http2Error as exc:
            error = (exc.code, str(exc))
        seen = {
            id_: (tuple(it.calls), tuple(it.headers), bytes(it.received), it.reset)
            for id_, it in self.handlers.items()
        }
        return error, seen


def hostile(side: Side, pieces: list[bytes]) -> None:
    """With small bounds, and a batch after every read."""
    connection = side.connection
    budget = Budget(BUDGET)
    account = connection.account = budget.account("peer")
    try:
        for piece in pieces:
            connection.receive(memoryview(piece))
            side.carrier.flush()
            streams = connection.streams.values()
            assert len(streams) <= STREAMS
            assert connection.held == sum(it.held + it.kept for it in streams)
            assert len(connection._head) <= 16384 + 9
            waiting = sum(map(len, connection._out))
            assert waiting <= CONTROL + 8192 + 64 * len(piece), "answers pile up"
    except Http2Error:
        side.carrier.flush()
    connection.lost()
    assert not connection.streams and not connection.held and not connection.holders
    account.close()
    assert not budget.used_bytes and not budget.peers
    for handler in side.handlers.values():
        assert handler.calls.count("reset") <= 1 and handler.calls.count("end") <= 1


def check(data: bytes, kind: type[Side] = Side) -> None:
    """One connection for each cut, and one with small bounds."""
    (role, behaviour, *sizes), raw = knobs(data)
    pieces = whole_and_cut(raw, bytes(sizes))
    same([kind(0, Http2Limits(), None).outcome(each) for each in pieces])
    limits = Http2Limits(
        max_streams=STREAMS, max_header_list_bytes=1024, max_continuations=2,
        max_waiting_control_bytes=CONTROL, stream_window_bytes=65535, batch_bytes=1024,
    )  # fmt: skip
    hostile(kind(behaviour, limits, 0 if role & 1 else None), list(cut(raw, bytes(sizes))))
