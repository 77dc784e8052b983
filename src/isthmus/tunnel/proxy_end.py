"""The server's end for a konnectivity client: one call of /ProxyService/Proxy, one connection.

PacketReader reads the call's packets, which are answered with gRPC messages; back-pressure is the
HTTP/2 stream's window. The protocol has no half-close: when the target ends, the client receives
CLOSE_RSP and the call is over. A call that the client half-closes (END_STREAM) still gets its
reply.

dial/frontends/grpc_proxy.py dials. Agents, which carry many connections in one call, are
packet_link.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.errors import ProtocolError
from isthmus.tunnel.call_stream import (
    RESPONSE,
    SMALL_MESSAGE,
    CallClient,
    CallStage,
    CallStream,
)
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.message_reader import PacketCounts, PacketReader, Piece
from isthmus.wire.grpc import MessageTooLarge, Status, status_headers
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import (
    CLOSE_REQ,
    CLOSE_RSP,
    DATA,
    DIAL_CLS,
    DIAL_REQ,
    DIAL_RSP,
    DataHead,
    close_response,
    dial_response,
    parse,
)

#: Go's client registers a connection only after it handed over the dial's result, and drops data
#: that arrives before: nearly always, measured; with 10 ms still one in a hundred on a slow
#: machine. A client with many calls at once needs longer (dial/frontends/grpc_proxy.py). On a
#: machine whose cores are all busy some data is lost whatever the delay, and neither a ping's
#: answer nor the client's answer to a packet for an unknown connection shows when the client is
#: ready.
SETTLE_S = 0.050
#: It closes its connection at CLOSE_RSP, so that a write at that moment fails, and kube-apiserver
#: discards what it had not passed on yet (exit codes of 13 in 400 execs were lost; none with
#: 2 ms, so this is ample). The client's last data therefore has this long to arrive.
LAST_WORDS_S = 0.010
#: Data in one packet; a message may have 4 MiB.
_MOST_PAYLOAD = 1024 * 1024
#: Limit of error answers waiting for a client that does not read.
_MOST_REPLY_BYTES = 64 * 1024


class ProxyClient(CallClient, Protocol):
    """The dialing side of a call."""

    def wants(self, protocol: str, address: str) -> None:
        """The client requests a connection; called once."""

    @property
    def settle_s(self) -> float:
        """How long the client may need to register a connection: SETTLE_S, or more when busy."""

    def settle_later(self, end: ProxyEnd, delay_s: float) -> None:
        """Call ``end.settle`` after ``delay_s``."""


class _Settling:
    """Data that must not follow the answer at once: kept until the client is ready for it."""

    __slots__ = ("asked", "broken", "data", "eof", "last_words", "since")

    def __init__(self, since: float, *, last_words: bool = False) -> None:
        self.since = since
        self.last_words = last_words  # the client may still send something
        self.asked = False
        self.data: list[bytes] = []
        self.eof = False
        self.broken: Ending | None = None


class ProxyEnd(CallStream):
    """One connection of one client, an end from its first packet on."""

    __slots__ = (
        "_connect_id",
        "_head",
        "_packet_counts",
        "_random",
        "_settling",
        "client",
        "clock",
        "named",
        "stage",
    )

    stream: Http2Stream

    def __init__(
        self, stream: Http2Stream, clock: Callable[[], float], packets: PacketCounts | None = None
    ) -> None:
        super().__init__(PacketReader())
        self._packet_counts = packets if packets is not None else PacketCounts()
        self.stream = stream
        self.clock = clock
        self.client: ProxyClient | None = None
        self.stage = CallStage.NEW
        self._random = self._connect_id = 0
        self._head: DataHead | None = None
        self._settling: _Settling | None = None
        #: An encoded response header that tells the client the connection id.
        self.named = b""

    def __repr__(self) -> str:
        return f"<ProxyEnd {self.stream.id} {self.stage.value}>"

    @property
    def backlog_bytes(self) -> int:
        """The bytes waiting for the client, or waiting at the reset; heads included."""
        stream, settling = self.stream, self._settling
        kept = sum(map(len, settling.data)) if settling else 0
        return stream.out_bytes + stream.lost_bytes + kept

    @property
    def half_closed(self) -> bool:
        """Exactly one direction has ended."""
        return self.ending is None and (self._eof_in or self.stage is CallStage.LEFT)

    # The dial.

    def accept(self, connect_id: int) -> None:
        """Tell the client that the target was reached; the tunnel's bytes may follow."""
        if self.stage is CallStage.DIALING:
            self.stage = CallStage.OPEN
            self._connect_id = connect_id
            self._head = DataHead(connect_id)
            self._settling = _Settling(self.clock())
            self.stream.answered = True
            self._say(DIAL_RSP, dial_response(self._random, connect_id))

    def refuse(self, text: str) -> None:
        """Tell the client the reason, and end the call."""
        if self.stage is CallStage.DIALING:
            self.stream.answered = True
            self._say(DIAL_RSP, dial_response(self._random, error=text))
            self._end_call(Status.OK, "")
            self._over(Ending.CLEAN)

    def settle(self) -> None:
        """Send the kept data, if the client has had enough time."""
        settling = self._settling
        if settling is not None:
            settling.asked = False
            if self._settles() is None:
                self._settled(settling)

    def _settled(self, settling: _Settling) -> None:
        """The client has had enough time, or has shown that it is ready."""
        self._settling = None
        for data in settling.data:
            self._send(data)
        if settling.broken is not None:
            self._break(settling.broken)
        elif settling.eof and settling.last_words:
            self._close_both()
        elif settling.eof:
            self.write_eof()
        elif settling.data:
            self.peer.resume_reading()

    def _settles(self) -> _Settling | None:
        """The keeper of data that must not be sent yet, if any."""
        settling, client = self._settling, self.client
        if settling is not None and not settling.asked:
            wait_s = LAST_WORDS_S if settling.last_words else SETTLE_S
            if client is not None and not settling.last_words:
                wait_s = client.settle_s
            left_s = settling.since + wait_s - self.clock()
            if left_s <= 0 or client is None:
                self._settling = None
                return None
            settling.asked = True
            client.settle_later(self, left_s)
        return settling

    # Towards the client.

    def write(self, data: bytes) -> bool:
        if self.stage is not CallStage.OPEN:
            if self.stage is CallStage.LEFT and data:
                self._nobody_reads()
            return True
        if not data:  # an empty payload would read as the end of file at Go's client
            return True
        if self._settling is not None and (settling := self._settles()) is not None:
            if settling.eof:
                return True
            self.bytes_written += len(data)
            settling.data.append(data)
            return False
        self.bytes_written += len(data)
        return self._send(data)

    def _send(self, data: bytes) -> bool:
        assert self._head is not None
        size = len(data)
        if size <= _MOST_PAYLOAD:
            self._packet_counts.sent[DATA] += 1
            return self.stream.write(self._head.of(size), data)
        return all([self._send(data[i : i + _MOST_PAYLOAD]) for i in range(0, size, _MOST_PAYLOAD)])

    def write_eof(self) -> None:
        """The target ended: tell the client, which then cannot send anything more either."""
        if self.stage is CallStage.LEFT:
            self._over(Ending.CLEAN)
        elif self.stage is CallStage.OPEN:
            if self._settles() is None and not self._eof_in:
                self._settling = _Settling(self.clock(), last_words=True)
            settling = self._settles()
            if settling is not None:
                settling.eof = True
            else:
                self._close_both()

    def _close_both(self) -> None:
        if self.stage is CallStage.OPEN:
            self._say(CLOSE_RSP, close_response(self._connect_id))
            self._end_call(Status.OK, "")
            if not self._eof_in:
                self.peer.write_eof()
            self._over(Ending.CLEAN)

    def abort(self, reason: Ending) -> None:
        """Tell the client that the end was not clean."""
        if self.ending is not None:
            return
        if self.stage is CallStage.OPEN:
            settling = self._settles()
            if settling is not None:
                settling.broken = reason
            else:
                self._break(reason)
        elif self.stage is not CallStage.LEFT:
            self._end_call(Status.CANCELLED, reason.value)
        self._over(reason)

    def _break(self, reason: Ending) -> None:
        if self.stream.out_bytes:  # it does not read: only a reset overtakes waiting data
            self.stream.reset(ErrorCode.INTERNAL_ERROR)
        else:
            self._say(CLOSE_RSP, close_response(self._connect_id, reason.value))
            self._end_call(Status.ABORTED, reason.value)

    def _nobody_reads(self) -> None:
        """Reset a target that still sends after the client closed, as a kernel would."""
        peer = self.peer
        self._over(Ending.RESET)
        peer.abort(Ending.RESET)

    def _say(self, kind: int, message: bytes) -> None:
        self._packet_counts.sent[kind] += 1
        if not self.stream.headers_sent:
            self.stream.send_headers(RESPONSE, more=self.named)
        self.stream.write(message, b"")

    def _reply(self, kind: int, message: bytes) -> None:
        """Answer an invalid packet, if the client reads."""
        if self.stream.out_bytes > _MOST_REPLY_BYTES:
            self.stream.reset(ErrorCode.ENHANCE_YOUR_CALM)
            self._gone(Ending.PROTOCOL)
        else:
            self._say(kind, message)

    def _end_call(self, status: Status, text: str) -> None:
        if not self.stream.headers_sent:
            self.stream.send_headers(RESPONSE, more=self.named)
        self.stream.end(tuple(status_headers(status, text)))

    def _over(self, ending: Ending) -> None:
        if self.ending is None:
            self.stage = CallStage.OVER
            self.pieces.clear()
            self.client = None
            self.finish(ending)
            if self.stream.held:  # nothing will signal room any more
                self.stream.release()

    # From the client.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """The request's headers were read before; its trailers carry nothing."""

    def got_payload(self, connect_id: int, piece: Piece) -> None:
        self._packet_counts.received[DATA] += 1
        if connect_id == self._connect_id and self.stage is CallStage.OPEN:
            self.pieces.append(piece)
        elif self.stage in (CallStage.NEW, CallStage.DIALING):
            self._unknown(connect_id)
        elif self.stage is CallStage.OPEN:
            # As in Go's server: one stream carries one connection, so both are closed.
            self._unknown(connect_id)
            peer = self.peer
            self.abort(Ending.PROTOCOL)
            peer.abort(Ending.PROTOCOL)

    def more_payload(self, piece: Piece) -> None:
        # Further pieces were checked with the first one.
        if self.reader.connect_id == self._connect_id and self.stage is CallStage.OPEN:
            self.pieces.append(piece)

    def _unknown(self, connect_id: int) -> None:
        if self.client is not None:
            self.client.broke_rules("a packet for an unknown connection")
        self._reply(CLOSE_RSP, close_response(connect_id, "unknown connect id"))

    def batch_over(self, stream: Http2Stream) -> None:
        """Hand the gathered bytes to the peer, and give credit if it can take more."""
        pieces = self.pieces
        more = True
        if pieces:
            data = b"".join(pieces) if len(pieces) > 1 else bytes(pieces[0])
            pieces.clear()
            if data:
                more = self.peer.write(data)
            if self._settling is not None and not self._settling.last_words:
                self._settled(self._settling)  # the target's first data goes before its answer
        if self.reader.kept is not None or stream.kept:
            kept = self.reader.kept_bytes
            stream.keep(kept if kept > SMALL_MESSAGE and self.ending is None else 0)
        if self.ending is None and (not more or stream.held):
            stream.hold()
        else:
            stream.consumed(stream.unconsumed)

    def got_message(self, message: Piece) -> None:
        packet = parse(message)
        kind = packet.type
        self._packet_counts.count(kind, has_data=bool(packet.data.data))
        if kind == DIAL_REQ:
            self._asked(packet)
        elif kind == CLOSE_REQ:
            self._close_asked(packet.closeRequest.connectID)
        elif kind == DATA:
            if packet.data.data:
                self.got_payload(packet.data.connectID, packet.data.data)
        elif kind == DIAL_CLS:
            if self.stage in (CallStage.DIALING, CallStage.OPEN) and (
                packet.closeDial.random == self._random
            ):
                self._gave_up()
        elif self.client is not None:
            self.client.broke_rules(f"a packet of type {kind}")

    def _asked(self, packet: Packet) -> None:
        dial = packet.dialRequest
        if self.stage is not CallStage.NEW or self.client is None:
            self._reply(
                DIAL_RSP, dial_response(dial.random, error="one stream carries one connection")
            )
            return
        self.stage = CallStage.DIALING
        self._random = dial.random
        self.client.wants(dial.protocol, dial.address)

    def _close_asked(self, connect_id: int) -> None:
        if self.stage is not CallStage.OPEN or connect_id != self._connect_id:
            if self.stage not in (CallStage.LEFT, CallStage.OVER):
                self._unknown(connect_id)
            return
        settling, self._settling = self._settling, None
        self.batch_over(self.stream)  # data received before the close goes first
        if self.stage is CallStage.OPEN:
            self.stage = CallStage.LEFT
            self._say(CLOSE_RSP, close_response(connect_id))
            self._end_call(Status.OK, "")
            self.peer.write_eof()
            if settling is not None and settling.eof:  # the target has ended, too
                self._over(Ending.CLEAN)
            else:
                self.peer.resume_reading()  # anything it sends now resets it
                self.peer.let_go()

    def _gave_up(self) -> None:
        """DIAL_CLS: cancels the dial before the answer, closes the connection after it."""
        self._end_call(Status.OK, "")
        self._gone(Ending.CANCELLED)

    def got_end(self, stream: Http2Stream) -> None:
        """The client half-closed its call."""
        if self.stage in (CallStage.LEFT, CallStage.OVER):
            return
        if not self.reader.at_boundary:
            self.violated(ProtocolError("the call ended inside a message"))
        elif self.stage is CallStage.NEW:
            self._end_call(Status.OK, "")
            self._over(Ending.CLEAN)
        else:  # before the dial's answer the keeper remembers it
            self._eof_in = True
            self.peer.write_eof()

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """The call was reset or lost."""
        if self.stage is not CallStage.LEFT:
            # Otherwise the client had finished: the target's later events do not concern it.
            self._gone(Ending.RESET)

    def violated(self, error: ProtocolError) -> None:
        """End the call and everything joined to it."""
        too_large = isinstance(error, MessageTooLarge)
        if self.client is not None:
            self.client.broke_rules(str(error))
        self._end_call(Status.RESOURCE_EXHAUSTED if too_large else Status.INTERNAL, str(error))
        self._gone(Ending.PROTOCOL)

    def _gone(self, reason: Ending) -> None:
        """The client cannot be reached any more: cancel its dial, or reset its target."""
        client, stage, peer = self.client, self.stage, self.peer
        self._over(reason)
        if stage is CallStage.DIALING and client is not None:
            client.left()
        else:
            peer.abort(reason)
