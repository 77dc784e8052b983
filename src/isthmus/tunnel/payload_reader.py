"""Reads KEP-1281's payloads out of a gRPC stream as it comes.

Plain data are passed on in the pieces that arrive, without waiting for the whole message and
without a message object; a payload of any other form is gathered and parsed.
"""

from __future__ import annotations

from isthmus.errors import ProtocolError
from isthmus.wire.grpc import MESSAGE_HEAD, message_size
from isthmus.wire.payload import MOST_PREFIX, find_data, parse


class PayloadReader:
    """The state between two pieces of one stream, and the pieces of data that came.

    ``pieces`` are views of the buffers that came, and hold as long as those do: whoever feeds takes
    them before the next read. ``ended`` becomes true at the peer's END_OF_DATA, where that was
    agreed on (``hears_end``).
    """

    __slots__ = ("_left", "ended", "hears_end", "kept", "pieces")

    def __init__(self) -> None:
        self._left = 0  # of the data that are passing through
        self.kept: bytearray | None = None  # a message, or its head, that is not whole
        self.pieces: list[memoryview | bytes] = []
        self.hears_end = self.ended = False

    @property
    def at_boundary(self) -> bool:
        """No message is unfinished: the stream may end here."""
        return not self._left and self.kept is None

    @property
    def kept_bytes(self) -> int:
        """How much of a message is gathered."""
        return 0 if self.kept is None else len(self.kept)

    def feed(self, view: memoryview) -> None:
        """Take a piece of the stream.

        Raises:
            ProtocolError: it is not a stream of payloads, or a message is too large.
        """
        pos, end = 0, len(view)
        while pos < end:
            if self._left:
                size = min(self._left, end - pos)
                self._left -= size
                self.pieces.append(view[pos : pos + size])
                pos += size
            elif self.kept is not None or end - pos < MESSAGE_HEAD:
                pos = self._gather(view, pos, end)
            else:
                body = pos + MESSAGE_HEAD
                stop = body + message_size(view[pos:body])
                found = find_data(view, body, stop)
                if found is not None:
                    self._data(view[found : min(stop, end)])
                    self._left = max(stop - end, 0)
                    pos = min(stop, end)
                elif stop <= end:
                    self._parse(bytes(view[body:stop]))
                    pos = stop
                else:
                    self.kept = bytearray(view[pos:end])
                    return

    def _data(self, piece: memoryview | bytes) -> None:
        if self.ended:
            raise ProtocolError("kep1281: data behind the end of data")
        self.pieces.append(piece)

    def _parse(self, message: bytes) -> None:
        data, end_of_data = parse(message)
        if data:
            self._data(data)
        self.ended = self.ended or (end_of_data and self.hears_end)

    def _gather(self, view: memoryview, pos: int, end: int) -> int:
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
        early = min(stop, MESSAGE_HEAD + MOST_PREFIX)
        was_early = len(kept) < early
        size = min((early if was_early else stop) - len(kept), end - pos)
        kept += view[pos : pos + size]
        pos += size
        if was_early and len(kept) == early:
            whole = bytes(kept)
            found = find_data(whole, MESSAGE_HEAD, stop)
            if found is not None:
                self.kept = None
                self._data(whole[found:])
                self._left = stop - early
                return pos
        if len(kept) == stop:
            self.kept = None
            self._parse(bytes(kept[MESSAGE_HEAD:]))
        return pos
