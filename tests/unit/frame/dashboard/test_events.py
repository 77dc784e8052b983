"""Reading a stream of events: whole, byte by byte, with what follows, and what is none."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.frame.dashboard import feed
from isthmus.frame.dashboard.delta import at_once, event
from isthmus.frame.dashboard.feed import EventReader

HELLO = {"version": "1", "text": "two\n\nlines and ü"}
STREAM = (
    at_once(event("hello", HELLO))
    + b": alive\n\n"
    + at_once(event("delta", {"source": "0", "list": [1, 2]}))
)
FOUND = [("hello", HELLO), ("delta", {"source": "0", "list": [1, 2]})]


def test_whole() -> None:
    assert EventReader().take(STREAM) == FOUND


@pytest.mark.parametrize("size", [1, 2, 7])
def test_in_pieces(size: int) -> None:
    reader = EventReader()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [one for piece in pieces for one in reader.take(piece)] == FOUND


def test_what_follows_is_kept() -> None:
    reader = EventReader()
    assert reader.take(STREAM + b"event: del") == FOUND
    assert reader.take(b'ta\ndata: {"a":1}\n') == []
    assert reader.take(b"\n") == [("delta", {"a": 1})]


@pytest.mark.parametrize(
    "broken",
    [b"event: x\ndata: {\n\n", b"data: []\n\n", b"data: \xff\n\n", b"data: %b\n\n" % (b"[" * 9000)],
)
def test_what_is_no_event_is_refused(broken: bytes) -> None:
    with pytest.raises(ProtocolError, match="JSON"):
        EventReader().take(broken)


def test_an_event_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_EVENT_BYTES", 1000)
    reader = EventReader()
    assert reader.take(b"data: " + b"x" * 900) == []
    with pytest.raises(ProtocolError, match="larger than 1000 bytes"):
        reader.take(b"x" * 200)
