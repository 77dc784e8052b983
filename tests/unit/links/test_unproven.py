"""What an agent may say before it is welcome."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.links.server_side import MAX_UNPROVEN_BYTES, Unproven


class Session:
    """Counts what a carrier would give it."""

    def __init__(self) -> None:
        self.got: list[object] = []

    def heard(self) -> None:
        """Count."""
        self.got.append("heard")

    def receive(self, view: memoryview) -> None:
        """Count."""
        self.got.append(len(view))

    def flush(self) -> None:
        """Count."""
        self.got.append("flush")

    def resume(self) -> None:
        """Count."""
        self.got.append("resume")


def test_everything_is_passed_on() -> None:
    session = Session()
    unproven = Unproven(session, lambda source, size: True, "")
    unproven.heard()
    unproven.receive(memoryview(b"12345"))
    unproven.flush()
    unproven.resume()
    assert session.got == ["heard", 5, "flush", "resume"] and unproven.read_bytes == 5


def test_more_than_a_greeting_is_not_read() -> None:
    session = Session()
    unproven = Unproven(session, lambda source, size: True, "")
    unproven.receive(memoryview(bytes(MAX_UNPROVEN_BYTES)))
    with pytest.raises(ProtocolError, match="before authentication"):
        unproven.receive(memoryview(b"x"))
    assert session.got == [MAX_UNPROVEN_BYTES]


def test_nor_more_than_its_source_may() -> None:
    asked: list[int] = []
    unproven = Unproven(Session(), lambda source, size: bool(asked.append(size)), "")
    with pytest.raises(ProtocolError):
        unproven.receive(memoryview(b"123"))
    assert asked == [3]
