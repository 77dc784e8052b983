"""Elements of SVG: escaped, readable as XML whatever is in them, broken where there is no room."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from isthmus.diagram.svg import circle, group, num, path, rect, tag, text, text_width, wrap


@pytest.mark.parametrize("nasty", ["<b>", "\"'&", "]]>", "\x00\x1f\ufffe", "\ud800", "&amp;"])
def test_whatever_is_written_stays_text(nasty: str) -> None:
    whole = f"<svg>{group(nasty, nasty)}{tag('title', nasty, id=nasty)}</g></svg>"
    root = ET.fromstring(whole.encode())
    title = root.find("g/title")
    assert title is not None and title.text == title.attrib["id"]
    assert len(title.text or "") == len(nasty)
    if nasty.isprintable():
        assert title.text == nasty


def test_elements() -> None:
    assert num(1.04) == "1" and num(1.06) == "1.1"
    assert rect("a", 1, 2, 3, 4.5) == '<rect class="a" x="1" y="2" width="3" height="4.5"/>'
    assert rect("a", 1, 2, 3, 4, rx=5).endswith('rx="5"/>')
    assert circle("a", 1, 2, 3) == '<circle class="a" cx="1" cy="2" r="3"/>'
    assert path("a", "M0 0") == '<path class="a" d="M0 0"/>'
    assert text(1, 2, "x", 3) == '<text class="text" x="1" y="2" font-size="3">x</text>'
    assert text(1, 2, "", 3) == ""
    assert 'text-anchor="end"' in text(1, 2, "x", 3, anchor="end")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("", [""]),
        ("short", ["short"]),
        ("some words more", ["some words", "more"]),
        ("api.example.com", ["api.exampl", "e.com"]),
        ("a.example-host.com", ["a.example-", "host.com"]),
        ("oauth.example.com", ["oauth.", "example.", "com"]),
        ("x" * 23, ["x" * 10, "x" * 10, "xxx"]),
        ("exactly 10", ["exactly 10"]),
        ("0123456789 x", ["0123456789", "x"]),
    ],
)
def test_texts_are_broken_where_there_is_no_room(content: str, lines: list[str]) -> None:
    room = text_width("x" * 10, 12, "mono") + 0.01
    assert list(wrap(content, room, 12, "mono")) == lines


def test_room_for_nothing_still_ends() -> None:
    assert list(wrap("abc", 0, 12)) == ["a", "b", "c"]
