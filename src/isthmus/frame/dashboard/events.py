"""Reading a stream of events: bytes as they come → names and data.

Only what our own feed sends (delta.py, ``event``): a name and one line of data, or a comment. The
format is that of server-sent events (WHATWG HTML §9.2.6).
"""

from __future__ import annotations

import json
from typing import Any

from isthmus.errors import ProtocolError

#: Ten times a full with 5,000 tunnels.
MOST_EVENT_BYTES = 16 * 1024 * 1024
_BREAK = b"\n\n"


class EventReader:
    """Cuts what arrives into events; keeps at most one that is not whole.

    ``taken_bytes`` is how much has arrived in all.
    """

    __slots__ = ("_looked", "_rest", "taken_bytes")

    def __init__(self) -> None:
        self.taken_bytes = 0
        self._rest = bytearray()
        self._looked = 0

    def take(self, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Take in some bytes; the events that are whole now. Comments give nothing.

        Raises:
            ProtocolError: it is no such stream, or one event is too large.
        """
        self._rest += data
        self.taken_bytes += len(data)
        found: list[tuple[str, dict[str, Any]]] = []
        while (end := self._rest.find(_BREAK, self._looked)) >= 0:
            one = _read(bytes(self._rest[:end]))
            del self._rest[: end + len(_BREAK)]
            self._looked = 0
            found += [one] if one is not None else []
        # The break may have come half.
        self._looked = max(0, len(self._rest) - 1)
        if len(self._rest) > MOST_EVENT_BYTES:
            raise ProtocolError(f"an event of the feed is larger than {MOST_EVENT_BYTES} bytes")
        return found


def _read(block: bytes) -> tuple[str, dict[str, Any]] | None:
    name, data = "", b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.strip().decode("utf-8", "replace")
        elif field == b"data":
            data = value
    if not data:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as exc:  # the latter by [[[[…
        raise ProtocolError("an event of the feed is not JSON") from exc
    if not isinstance(found, dict):
        raise ProtocolError("an event of the feed is not a JSON object")
    return name, found
