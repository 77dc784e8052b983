"""Reads the messages of a gRPC stream: konnectivity's packets, KEP-1281's payloads.

Plain data is passed on in the pieces that arrive, without waiting for the whole message and
without a message object; every other message is gathered. The sink interprets messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.wire import packet, payload
from isthmus.wire.grpc import MESSAGE_HEAD, message_size

Piece = memoryview | bytes


class MessageSink(Protocol):
    """The receiver of the messages.

    A piece or message may be a view of the read buffer, and is valid only as long as that is.
    """

    def got_payload(self, connect_id: int, piece: Piece) -> None:
        """The data of a connection, or its first piece, which may be empty.

        KEP-1281's payloads are all of connection 0.
        """

    @property
    def more_payload(self) -> Callable[[Piece], None]:
        """Called with further pieces of the same message, of the reader's ``connect_id``."""

    def got_message(self, message: Piece) -> None:
        """Any message other than plain data, including data in an unusual form."""


class MessageReader:
    """The state between two pieces, one per stream and therefore small."""

    __slots__ = ("_left", "connect_id", "kept")

    #: Finds plain data between two offsets of a buffer: (connection, offset of its bytes). The
    #: first ``most_prefix`` bytes of a message suffice.
    find_data: Callable[[Piece, int, int], tuple[int, int] | None]
    most_prefix: int

    def __init__(self) -> None:
        self._left = 0  # bytes left of the data passing through
        self.connect_id = 0  # their connection
        self.kept: bytearray | None = None  # an incomplete message or head

    @property
    def at_boundary(self) -> bool:
        """Whether no message is incomplete, so that the stream may end here."""
        return not self._left and self.kept is None

    @property
    def kept_bytes(self) -> int:
        """The gathered bytes of an incomplete message."""
        return 0 if self.kept is None else len(self.kept)

    def feed(self, view: memoryview, sink: MessageSink) -> None:
        """Take a piece of the stream.

        Raises:
            ProtocolError: not a stream of such messages, or a message is too large.
        """
        pos, end = 0, len(view)
        while pos < end:
            if self._left:
                size = min(self._left, end - pos)
                self._left -= size
                sink.more_payload(view[pos : pos + size])
                pos += size
            elif self.kept is not None or end - pos < MESSAGE_HEAD:
                pos = self._gather(view, pos, end, sink)
            else:
                body = pos + MESSAGE_HEAD
                stop = body + message_size(view[pos:body])
                found = self.find_data(view, body, stop)
                if found is not None:
                    connect_id, pos = found
                    sink.got_payload(connect_id, view[pos : min(stop, end)])
                    if stop > end:
                        self._left = stop - end
                        self.connect_id = connect_id
                        return
                    pos = stop
                elif stop <= end:
                    sink.got_message(view[body:stop])
                    pos = stop
                else:
                    self.kept = bytearray(view[pos:end])
                    return

    def _gather(self, view: memoryview, pos: int, end: int, sink: MessageSink) -> int:
        """Keep a message until it is complete, or turns out to be plain data."""
        kept = self.kept
        if kept is None:
            kept = self.kept = bytearray()
        if len(kept) < MESSAGE_HEAD:
            size = min(MESSAGE_HEAD - len(kept), end - pos)
            kept += view[pos : pos + size]
            pos += size
            if len(kept) < MESSAGE_HEAD:
                return pos
        stop = MESSAGE_HEAD + message_size(kept[:MESSAGE_HEAD])
        early = min(stop, MESSAGE_HEAD + self.most_prefix)
        was_early = len(kept) < early
        size = min((early if was_early else stop) - len(kept), end - pos)
        kept += view[pos : pos + size]
        pos += size
        if was_early and len(kept) == early:
            whole = bytes(kept)
            found = self.find_data(whole, MESSAGE_HEAD, stop)
            if found is not None:
                self.kept = None
                self.connect_id, start = found
                self._left = stop - early
                sink.got_payload(self.connect_id, whole[start:])
                return pos
        if len(kept) == stop:
            self.kept = None
            sink.got_message(bytes(kept[MESSAGE_HEAD:]))
        return pos


class PacketReader(MessageReader):
    """Reads konnectivity's packets."""

    __slots__ = ()

    find_data = staticmethod(packet.find_data)
    most_prefix = packet.MOST_DATA_PREFIX


class PayloadReader(MessageReader):
    """Reads KEP-1281's payloads."""

    __slots__ = ()

    find_data = staticmethod(payload.find_data)
    most_prefix = payload.MOST_PREFIX


class PacketCounts:
    """The packets in each direction, by type; shared by all links or clients of a program."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = [0] * (packet.DRAIN + 1)
        self.sent = [0] * (packet.DRAIN + 1)

    def count(self, kind: int, *, has_data: bool) -> None:
        """Count a packet that was parsed; data is counted where it is handed on."""
        if 0 <= kind <= packet.DRAIN and not (kind == packet.DATA and has_data):
            self.received[kind] += 1
