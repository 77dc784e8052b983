"""Keys out of bytes, whole and cut anywhere."""

from __future__ import annotations

import pytest

from isthmus.tools.watching.live import Keys

WORDS = [
    (b"jq", ["j", "q"]),
    (b"\x1b[A\x1b[B", ["up", "down"]),
    (b"\x1bOA\x1bOH", ["up", "home"]),
    (b"\x1b[5~\x1b[6~\x1b[1~", ["page up", "page down", "home"]),
    (b"\r\x7f \x15\x0c", ["enter", "backspace", "space", "clear", "redraw"]),
    ("é/".encode(), ["é", "/"]),
    (b"\x1b[200~x", ["x"]),  # what we do not know is swallowed whole
    (b"\x1b[1;5Ax", ["x"]),
    (b"\x1bq", []),  # Alt-q is not q
    (b"\x00\xff\x01k", ["k"]),
]


@pytest.mark.parametrize(("data", "names"), WORDS)
def test_whole(data: bytes, names: list[str]) -> None:
    keys = Keys()
    assert keys.feed(data) == names
    assert not keys.waiting


@pytest.mark.parametrize(("data", "names"), [each for each in WORDS if b"\xff" not in each[0]])
def test_byte_by_byte(data: bytes, names: list[str]) -> None:
    keys = Keys()
    found = [name for at in range(len(data)) for name in keys.feed(data[at : at + 1])]
    assert found == names


def test_a_lone_escape_is_a_key_once_nothing_follows() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert (keys.waiting, keys.flush(), keys.waiting) == (True, ["escape"], False)
    assert keys.feed(b"\x1b[") == [] and keys.flush() == []
    assert keys.feed(b"A") == ["A"]
