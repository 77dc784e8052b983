"""YAML nodes with their positions, for documents that are read strictly.

Anything unknown is an error with its position, and all errors of a document are reported at once:
the methods note them and return a placeholder of their type, which is not used after an error. Text
comes in; the caller opens files. Importing yaml is slow: import this module only where there is a
document to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple, TypeVar

import yaml

from isthmus.errors import ConfigError
from isthmus.text.suggestions import nearest

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

MAX_CHARS = 1024 * 1024  # the limit of a ConfigMap
MAX_ERRORS = 20
#: Most values to read: more than MAX_CHARS could spell out, so that only anchors reach it.
MAX_VALUES = 600_000
_MAX_WORD_CHARS = 64  # longest word that gets a suggestion
_STR = "tag:yaml.org,2002:str"
_BLANK = "\0 \t\r\n\x85\u2028\u2029"
_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
# YAML's own numbers include octals, base 60 and infinities, which users do not mean.
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17}|[1-9][0-9]{0,2}(?:_[0-9]{3}){1,5})", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")  # an escape in YAML can write one, no output can
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?", re.ASCII)


def compose(text: str, name: str, *, expected: str = "a document is expected") -> Located:
    """The root of the one document in the text; ``name`` is what messages call it.

    Raises:
        ConfigError: it is too long, not YAML, empty or more than one document.
    """
    with _yaml_errors(text, name):
        root: yaml.Node | None = yaml.compose(text, Loader=Loader)
    if root is None:
        raise ConfigError(f"{name}: is empty, {expected}")
    return Located(root, "", Errors(name))


def compose_all(text: str, name: str, *, expected: str = "a document is expected") -> list[Located]:
    """The roots of all documents in the text except empty ones; they share their errors.

    Raises:
        ConfigError: it is too long, not YAML, or has no document.
    """
    errors = Errors(name)
    with _yaml_errors(text, name):
        nodes = list(yaml.compose_all(text, Loader=Loader))
    roots = [Located(node, "", errors) for node in nodes if not _is_nothing(node)]
    if not roots:
        raise ConfigError(f"{name}: is empty, {expected}")
    return roots


@contextmanager
def _yaml_errors(text: str, name: str) -> Iterator[None]:
    """Raise what the parser reports, with the position in front."""
    if len(text) > MAX_CHARS:
        raise ConfigError(f"{name}: longer than {MAX_CHARS} characters")
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(filter(None, (error.context, error.problem)))
        hint = "; a value that begins with * needs quotes" if "alias" in what else ""
        hint = "; indent with spaces" if r"'\t'" in what else hint
        raise ConfigError(f"{place}: not YAML: {what}{hint}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name}: not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply") from error


class Errors:
    """The errors of a document, or of several in one file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.looked_at = 0
        self._wrong: list[tuple[int, int, str]] = []

    def add(self, line: int, column: int, what: str) -> None:
        """Note an error; lines and columns count from 1."""
        if not what.isprintable():  # it quotes a line end or a control character
            what = "".join(c if c.isprintable() else repr(c)[1:-1] for c in what)
        self._wrong.append((line, column, what))

    def raise_any(self) -> None:
        """Raise all errors, in the order of their positions.

        Raises:
            ConfigError: one line for each error, ``name:line:column: field: what``.
        """
        if not self._wrong:
            return
        lines = [
            f"{self.name}:{line}:{column}: {what}" for line, column, what in sorted(self._wrong)
        ]
        if len(lines) > MAX_ERRORS:
            lines[MAX_ERRORS:] = [f"{self.name}: and {len(lines) - MAX_ERRORS} more"]
        raise ConfigError("\n".join(lines))


class Located:
    """A node of a document, with the path of its field."""

    __slots__ = ("errors", "node", "path")

    def __init__(self, node: yaml.Node, path: str, errors: Errors) -> None:
        self.node = node
        self.path = path
        self.errors = errors

    def __repr__(self) -> str:
        return f"<{self.path or 'document'} at {self.where}>"

    @property
    def where(self) -> str:
        """The file and the line."""
        return f"{self.errors.name}:{self.node.start_mark.line + 1}"

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        """Whether it is a mapping."""
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_text(self) -> bool:
        """Whether it is text, and not a number or another word with a meaning in YAML."""
        return isinstance(self.node, yaml.ScalarNode) and bool(self.node.tag == _STR)

    @property
    def is_empty(self) -> bool:
        """Whether it is a list or a mapping with nothing in it."""
        return bool(self.node.value == [])

    @property
    def kind(self) -> str:
        """A description of the node, for a message that says what it should be."""
        node = self.node
        if self.is_mapping:
            return "a mapping"
        if self.is_list:
            return "a list"
        if _is_nothing(node):
            return "nothing"
        named = node.tag.removeprefix("tag:yaml.org,2002:")
        return short(node.value) if node.tag == _STR else f"{short(node.value)} (YAML: {named})"

    def has(self, key: str) -> bool:
        """Whether it is a mapping that has this key."""
        return self.is_mapping and any(one.value == key for one, _ in self.node.value)

    def error(self, what: str, *, at: str = "") -> None:
        """Note an error here; ``at`` is a part of the text to point to."""
        mark = self.node.start_mark
        line, column = mark.line + 1, mark.column + 1
        if at and mark.buffer is not None:
            source = mark.buffer[mark.pointer : self.node.end_mark.pointer]
            before, found, _ = source.partition(at)
            *lines, last = before.split("\n") if found else [""]
            line += len(lines)
            column = len(last) + 1 if lines else column + len(last)
        self.errors.add(line, column, f"{self.path}: {what}" if self.path else what)

    def inside(self, node: yaml.Node, part: str) -> Located:
        """A node below this one: ``part`` is a key, or an index in brackets.

        Raises:
            ConfigError: the file's anchors make it too large; errors noted before are reported as
            well.
        """
        self.errors.looked_at += 1
        if self.errors.looked_at > MAX_VALUES:
            self.error(f"has too much below it: more than {MAX_VALUES} values, anchors repeated")
            self.errors.raise_any()
        dot = "." if self.path and not part.startswith("[") else ""
        return Located(node, f"{self.path}{dot}{part}", self.errors)

    def mapping(self, known: Sequence[str], required: Sequence[str] = ()) -> Fields:
        """The values of a mapping that has these keys and no others, each once."""
        found = Fields()
        if not isinstance(self.node, yaml.MappingNode):
            self.error(f"must be a mapping, not {self.kind}")
            return found
        for key, value in self.node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            here = Located(key, self.path, self.errors)
            if name is None or name not in known:
                what = here.kind if name is None else f"{short(name)}{near(name, known)}"
                here.error(f"unknown key {what}")
            elif name in found:
                self.inside(key, name).error("is there twice")
            else:
                found[name] = self.inside(value, name)
        for name in required:
            if name not in found:
                self.inside(self.node, name).error("is missing")
        return found

    def entries(self, *, most: int) -> dict[str, LocatedEntry]:
        """The keys and values of a mapping whose keys are free, in their order."""
        found: dict[str, LocatedEntry] = {}
        if not isinstance(self.node, yaml.MappingNode):
            self.error(f"must be a mapping, not {self.kind}")
            return found
        for key, value in self.node.value:
            name = Located(key, self.path, self.errors).text()
            if name is None:
                continue
            # A path is one line and bounded, whatever the keys are.
            part = name if name.isprintable() and len(name) <= _MAX_WORD_CHARS else short(name)
            if name in found:
                self.inside(key, part).error("is there twice")
            else:
                found[name] = LocatedEntry(self.inside(key, part), self.inside(value, part))
        if len(found) > most:
            self.error(f"has {len(found)} entries, at most {most} are possible")
            return {}
        return found

    def items(self, *, most: int | None = None) -> list[Located]:
        """The items of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self.error(f"must be a list, not {self.kind}")
            return []
        if most is not None and len(self.node.value) > most:
            self.error(f"has {len(self.node.value)} items, at most {most} are possible")
            return []
        return [self.inside(node, f"[{index}]") for index, node in enumerate(self.node.value)]

    def one_or_items(self, *, most: int | None = None) -> list[Located]:
        """The items of a list, or the single node in place of a list."""
        return self.items(most=most) if self.is_list else [self]

    def text(self) -> str | None:
        """The text."""
        # YAML does not read on, 1.5 and 2001:1 as text; guessing would be worse.
        if not self.is_text:
            self.error(f"must be text, not {self.kind}: put it in quotes")
            return None
        text = str(self.node.value)
        if not text.isascii() and _SURROGATE.search(text):
            self.error(f"{short(text)} has half a character (\\ud800 to \\udfff): write it whole")
            return None
        return text

    def text_or_number(self) -> str | None:
        """The text, or a whole number as written."""
        node = self.node
        if isinstance(node, yaml.ScalarNode) and node.tag == _INT and _WHOLE.fullmatch(node.value):
            return str(node.value)
        return self.text()

    def read(self, parse: Callable[[str], T]) -> T | None:
        """The parsed text; a ValueError of ``parse`` is reported after the text."""
        text = self.text()
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.error(f"{short(text)} {error}")
            return None

    def boolean(self) -> bool:
        """True or false."""
        text = self.node.value if self.node.tag == _BOOL else ""
        if text not in ("true", "false"):
            self.error(f"must be true or false, not {self.kind}")
        return bool(text == "true")

    def integer(self, low: int, high: int) -> int:
        """A whole number in a range; underscores may part its thousands."""
        text = self._number(f"a whole number from {low} to {high}", _WHOLE, low, high)
        return low if text is None else int(text)

    def number(self, low: float, high: float) -> float:
        """A number in a range."""
        text = self._number(f"a number from {low:g} to {high:g}", _DECIMAL, low, high)
        return low if text is None else float(text)

    def _number(self, what: str, pattern: re.Pattern[str], low: float, high: float) -> str | None:
        node = self.node
        if not isinstance(node, yaml.ScalarNode) or node.tag not in (_INT, _FLOAT):
            self.error(f"must be {what}, not {self.kind}")
        elif not pattern.fullmatch(node.value) or not low <= float(node.value) <= high:
            self.error(f"must be {what}, not {short(node.value)[1:-1]}")
        else:
            return str(node.value)
        return None

    def member(self, kind: type[E]) -> E | None:
        """A value of an enumeration."""
        word = self.word([str(one.value) for one in kind])
        return None if word is None else kind(word)

    def word(self, words: Sequence[str]) -> str | None:
        """One of these words."""
        word = self.text()
        if word is None or word in words:
            return word
        listed = ", ".join(words[:-1]) + f" or {words[-1]}"
        self.error(f"must be {listed}, not {short(word)}{near(word, words)}")
        return None

    def reference(self, known: Collection[str], what: str) -> str:
        """The name of something that is declared elsewhere; empty if it is not declared."""
        name = self.text()
        if name is not None and name not in known:
            self.error(f"there is no {what} {short(name)}{near(name, known)}")
            return ""
        return name or ""


class LocatedEntry(NamedTuple):
    """A key and its value; both have the value's path."""

    key: Located
    value: Located


class Fields(dict[str, Located]):
    """The values of a mapping by their keys, with their position (see Located), or a default."""

    def text(self, key: str, default: str = "") -> str:
        return (self[key].text() or "") if key in self else default

    def boolean(self, key: str, default: bool) -> bool:
        return self[key].boolean() if key in self else default

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        return self[key].integer(low, high) if key in self else default

    def number(self, key: str, default: float, low: float, high: float) -> float:
        return self[key].number(low, high) if key in self else default

    def member(self, key: str, default: E) -> E:
        return (self[key].member(type(default)) or default) if key in self else default

    def value(self, key: str, parse: Callable[[str], T], default: T) -> T:
        read = self[key].read(parse) if key in self else default
        return default if read is None else read

    def nodes(self, key: str, *, most: int) -> list[Located]:
        return self[key].items(most=most) if key in self else []

    def one_or_nodes(self, key: str, *, most: int) -> list[Located]:
        return self[key].one_or_items(most=most) if key in self else []

    def listed(self, key: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        """The parsed items of a list, without the invalid ones."""
        return read_all(self[key].items(), parse) if key in self else ()


def short(text: str) -> str:
    """The text in quotes, on one line and not too long for a message."""
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


def read_all(nodes: Sequence[Located], parse: Callable[[str], T]) -> tuple[T, ...]:
    """The parsed values of all of these, without the invalid ones."""
    values = (node.read(parse) for node in nodes)
    return tuple(value for value in values if value is not None)


def near(word: str, known: Collection[str]) -> str:
    """A clause that suggests the known word nearest to an unknown one; empty if none is near."""
    return nearest(word, list(known)) if word and len(word) <= _MAX_WORD_CHARS else ""


def _is_nothing(node: yaml.Node) -> bool:
    return bool(node.tag == _NULL)


class Loader(yaml.SafeLoader):
    """Reads two things as YAML 1.2 and Go's readers do, unlike PyYAML.

    It accepts tabs between words, and requires a space after a colon. A check of a file for another
    program has to read the file as that program does.
    """

    def scan_to_next_token(self) -> None:
        """Accept tabs as well (§6.2); a tab that indents is still an error, except in brackets."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def check_value(self) -> bool:
        """Require a space after a colon, also in brackets, unless the key is in quotes (§7.4.2).

        Raises:
            yaml.YAMLError: there is no space.
        """
        last = self.tokens[-1] if self.flow_level and self.tokens else None
        plain = isinstance(last, yaml.ScalarToken) and last.plain
        if plain and self.peek(1) not in _BLANK:
            what = "a space is missing behind the colon"
            raise yaml.scanner.ScannerError(None, None, what, self.get_mark())
        return bool(super().check_value())
