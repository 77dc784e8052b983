"""A document as its known fields by path, each with its line; unknown ones are errors.

What the fields say is read by document.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from isthmus.hosting.known_fields import DOCUMENT, WORDS, Tree
from isthmus.hosting.model import Place
from isthmus.settings.located import Located

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

MAX_FIELDS = 20_000  # anchors let a short text say much more
MAX_ITEMS = 5_000


class Known:
    """The fields of one document that say something: null is as if the field were not there."""

    def __init__(self, root: Located) -> None:
        self.root = root
        self._found: dict[str, Located] = {}
        self._items: dict[str, list[str]] = {}
        self._read = 0
        self._full = False
        self._walk(root, DOCUMENT)

    def _walk(self, node: Located, tree: Tree) -> None:
        if isinstance(tree, list):
            items = [item for item in node.items(most=MAX_ITEMS) if self._keep(item)]
            self._items[node.path] = [item.path for item in items]
            for item in items:
                self._walk(item, tree[0])
        elif tree is not None:
            for name, value in node.mapping(tuple(tree)).items():
                if value.kind != "nothing" and self._keep(value):
                    self._walk(value, tree[name])

    def _keep(self, node: Located) -> bool:
        if self._has_room(1):
            self._found[node.path] = node
        return not self._full

    def _has_room(self, more: int) -> bool:
        """Count values; the first one too many is an error, and nothing is read after it."""
        self._read += more
        if self._read > MAX_FIELDS and not self._full:
            self._full = True
            self.root.error(f"says more than {MAX_FIELDS} things")
        return not self._full

    def __contains__(self, path: str) -> bool:
        return path in self._found

    def get(self, path: str) -> Located | None:
        """The field, unless it is not there."""
        return self._found.get(path)

    def items(self, path: str) -> list[str]:
        """The paths of the mappings in a list."""
        return self._items.get(path, [])

    def places(self) -> dict[str, Place]:
        """Where every field is."""
        return {path: Place(_line(node), path) for path, node in self._found.items()}

    def place(self, path: str) -> Place:
        """Where a field is, or would be: the line of the nearest one above it that there is."""
        return Place(_line(self._nearest(path)), path)

    def missing(self, path: str) -> None:
        """Note that a field has to be there."""
        node = self._nearest(path)
        Located(node.node, path, node.errors).error("is missing")

    def _nearest(self, path: str) -> Located:
        while path and path not in self._found:
            path, _, _ = path.rpartition(".")
        return self._found.get(path, self.root)

    def text(self, path: str, parse: Callable[[str], str], default: str = "") -> str:
        """A text that is understood."""
        node = self.get(path)
        read = None if node is None else node.read(parse)
        return default if read is None else read

    def secret(self, path: str, parse: Callable[[str], str]) -> str:
        """A text that is understood, and not quoted when it is not: it may have a password."""
        node = self.get(path)
        text = None if node is None else node.text()
        if node is None or text is None:
            return ""
        try:
            return parse(text)
        except ValueError as error:
            node.error(str(error))
            return ""

    def integer(self, path: str, default: int, low: int, high: int) -> int:
        """A whole number in a range."""
        node = self.get(path)
        return default if node is None else node.integer(low, high)

    def check_words(self) -> None:
        """Look at fields that have one of a few words, and that nothing here depends on."""
        for path, words in WORDS.items():
            node = self.get(path)
            if node is not None:
                node.word(words)

    def member(self, path: str, kind: type[E]) -> E | None:
        """One of the words of an enumeration."""
        node = self.get(path)
        return None if node is None else node.member(kind)

    def texts(self, path: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        """What a list of texts says, without the wrong ones."""
        node = self.get(path)
        items = [] if node is None or self._full else node.items(most=MAX_ITEMS)
        if not self._has_room(len(items)):
            return ()
        self._found |= {item.path: item for item in items}
        values = [item.read(parse) for item in items]
        return tuple(value for value in values if value is not None)


def _line(node: Located) -> int:
    return int(node.node.start_mark.line) + 1
