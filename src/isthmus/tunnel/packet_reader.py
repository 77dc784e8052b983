"""Reads konnectivity packets out of a gRPC stream as it comes.

The payload of a DATA packet is passed on in the pieces that arrive, without waiting for the whole
message and without a message object; every other packet is gathered and parsed.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.wire.grpc import MESSAGE_HEAD, message_size
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import MOST_DATA_PREFIX, find_data, parse


class Sink(Protocol):
    """Whoever the packets are for."""

    def got_payload(self, connect_id: int, piece: memoryview | bytes) -> None:
        """The data of a connection, or its first piece, which may be empty.

        A view is of the buffer that came, and holds as long as that does.
        """

    def more_payload(self, connect_id: int, piece: memoryview | bytes) -> None:
        """A further piece of the same packet."""

    def got_packet(self, packet: Packet) -> None:
        """Any packet that is not plainly DATA; a DATA packet of an unusual form, too."""


class PacketReader:
    """The state between two pieces: of one stream, so small."""

    __slots__ = ("_connect_id", "_left", "kept")

    def __init__(self) -> None:
        self._left = 0  # of the payload that is passing through
        self._connect_id = 0
        self.kept: bytearray | None = None  # a message, or its head, that is not whole

    @property
    def at_boundary(self) -> bool:
        """No message is unfinished: the stream may end here."""
        return not self._left and self.kept is None

    @property
    def kept_bytes(self) -> int:
        """How much of a message is gathered."""
        return 0 if self.kept is None else len(self.kept)

    def feed(self, view: memoryview, sink: Sink) -> None:
        """Take a piece of the stream.

        Raises:
            ProtocolError: it is not a stream of packets, or a message is too large.
        """
        pos, end = 0, len(view)
        while pos < end:
            if self._left:
                size = min(self._left, end - pos)
                self._left -= size
                sink.more_payload(self._connect_id, view[pos : pos + size])
                pos += size
            elif self.kept is not None or end - pos < MESSAGE_HEAD:
                pos = self._gather(view, pos, end, sink)
            else:
                body = pos + MESSAGE_HEAD
                stop = body + message_size(view[pos:body])
                found = find_data(view, body, stop)
                if found is not None:
                    connect_id, pos = found
                    sink.got_payload(connect_id, view[pos : min(stop, end)])
                    if stop > end:
                        self._left = stop - end
                        self._connect_id = connect_id
                        return
                    pos = stop
                elif stop <= end:
                    sink.got_packet(parse(view[body:stop]))
                    pos = stop
                else:
                    self.kept = bytearray(view[pos:end])
                    return

    def _gather(self, view: memoryview, pos: int, end: int, sink: Sink) -> int:
        """Keep a message until it is whole, or until it turns out to be plain data."""
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
        early = min(stop, MESSAGE_HEAD + MOST_DATA_PREFIX)
        was_early = len(kept) < early
        size = min((early if was_early else stop) - len(kept), end - pos)
        kept += view[pos : pos + size]
        pos += size
        if was_early and len(kept) == early:
            whole = bytes(kept)
            found = find_data(whole, MESSAGE_HEAD, stop)
            if found is not None:
                self.kept = None
                self._connect_id, start = found
                self._left = stop - early
                sink.got_payload(self._connect_id, whole[start:])
                return pos
        if len(kept) == stop:
            self.kept = None
            sink.got_packet(parse(bytes(kept[MESSAGE_HEAD:])))
        return pos
