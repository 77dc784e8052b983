"""Keys as a terminal sends them: bytes in, names out."""

from __future__ import annotations

import codecs
import re

_NAMED = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",  # Ctrl-U
    "\x0c": "redraw",  # Ctrl-L
    " ": "space",
}
# As xterm and those that follow it send them, in normal and in application mode.
_FINALS = {"A": "up", "B": "down", "H": "home", "F": "end"}
_TILDES = {"1": "home", "4": "end", "5": "page up", "6": "page down", "7": "home", "8": "end"}
_SEQUENCE = re.compile(r"\x1b(?:O(?P<one>[ -~])|\[(?P<args>[0-9;?]*)(?P<last>[@-~]))")
_UNFINISHED = re.compile(r"\x1b(?:O|\[[0-9;?]*)?")
_ESCAPE = "\x1b"


class Keys:
    """Reads keys out of pieces that may be cut anywhere.

    A lone escape may be a key or the begin of a sequence: it is kept until more comes, or until
    ``flush`` says that nothing did.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._held = ""

    @property
    def waiting(self) -> bool:
        """Tell whether what came last may not be whole."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[str]:
        """Take what was read; the keys in it, by name or as the character itself."""
        text, self._held = self._held + self._decoder.decode(data), ""
        found: list[str] = []
        while text:
            sequence = _SEQUENCE.match(text)
            if sequence:
                name = _name(sequence)
                found += [name] if name else []
                text = text[sequence.end() :]
            elif _UNFINISHED.fullmatch(text):
                self._held = text
                break
            elif text[0] == _ESCAPE:  # Alt and a key: the key alone is not what was meant
                text = text[2:]
            else:
                found += self._plain(text[0])
                text = text[1:]
        return found

    def flush(self) -> list[str]:
        """Nothing more came: what is held is a key of its own, or nothing."""
        held, self._held = self._held, ""
        return ["escape"] if held == _ESCAPE else []

    @staticmethod
    def _plain(char: str) -> list[str]:
        if char in _NAMED:
            return [_NAMED[char]]
        return [char] if char.isprintable() else []


def _name(sequence: re.Match[str]) -> str:
    if sequence["one"]:
        return _FINALS.get(sequence["one"], "")
    if sequence["last"] == "~":
        return _TILDES.get(sequence["args"], "")
    return _FINALS.get(sequence["last"], "") if not sequence["args"] else ""
