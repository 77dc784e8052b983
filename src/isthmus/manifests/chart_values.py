"""The values of the chart and of ``isthmus manifest all``: how one is declared and read.

A declaration has its path, what it takes, its default and its help. The chart's values.yaml, its
schema and the reference page are generated from that, and files of values are read by it. The
values of a program are in its room (render_chart.py), those of all programs in installation.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from isthmus.settings.options import Option
from isthmus.text.located_yaml import Loader, Located, compose, short

Tree = dict[str, Any]
_MOST = 256
_GLOBAL = "global"  # Helm passes this to every chart

#: Patterns of texts: names of workloads and of objects, flags, paths, networks; no dollar, which
#: would begin a reference to a field of the pod.
NAME = "^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$"
OBJECT = "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
OBJECT_OR_NONE = "^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$"
FLAG = "^--[a-z][a-z0-9-]*(=.*)?$"
PATH = "^(/[A-Za-z0-9._-]+){2,}$"
PLAIN = "^[^$ ]*$"
CIDR = "^[0-9a-fA-F.:]+/[0-9]{1,3}$"


class ValueShape(Enum):
    """The type of a value; the enum's value is the word shown for it."""

    TEXT = "text"
    WHOLE = "number"
    YES_NO = "true or false"
    TEXTS = "list of texts"
    WORDS = "map of texts"
    OBJECT = "as in Kubernetes"
    OBJECTS = "list as in Kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value; ``pattern`` is for a text, or for each of several."""

    path: str
    default: Any
    help: str
    shape: ValueShape
    choices: tuple[str, ...] = ()
    pattern: str = ""
    #: Flags that a list of arguments may not have, as patterns.
    refused: tuple[str, ...] = ()
    low: int = 0
    high: int = 65535

    @property
    def refusal(self) -> str:
        """A pattern for what is not allowed; empty for no pattern."""
        return f"^--({'|'.join(self.refused)})(=|$)" if self.refused else ""

    def schema(self) -> Tree:
        """The JSON Schema of the value."""
        text: Tree = {"type": "string", **({"pattern": self.pattern} if self.pattern else {})}
        if self.refused:
            text["not"] = {"pattern": self.refusal}
        if self.choices:
            text = {"enum": list(self.choices)}
        found: Mapping[ValueShape, Tree] = {
            ValueShape.TEXT: text,
            ValueShape.WHOLE: {"type": "integer", "minimum": self.low, "maximum": self.high},
            ValueShape.YES_NO: {"type": "boolean"},
            ValueShape.TEXTS: {"type": "array", "items": text},
            ValueShape.WORDS: {"type": "object", "additionalProperties": {"type": "string"}},
            ValueShape.OBJECT: {"type": "object"},
            ValueShape.OBJECTS: {"type": "array", "items": {"type": "object"}},
        }
        return {"description": self.help, **found[self.shape]}

    def read(self, node: Located) -> Any:
        """The value in a document; errors are noted in the document."""
        match self.shape:
            case ValueShape.TEXT:
                return self._text(node)
            case ValueShape.WHOLE:
                return node.integer(self.low, self.high)
            case ValueShape.YES_NO:
                return node.boolean()
            case ValueShape.TEXTS:
                return [self._text(each) for each in node.items(most=_MOST)]
            case ValueShape.WORDS:
                entries = node.entries(most=_MOST)
                return {key: entry.value.text() or "" for key, entry in entries.items()}
            case ValueShape.OBJECT:
                return {key: _plain(entry.value) for key, entry in node.entries(most=_MOST).items()}
            case ValueShape.OBJECTS:
                return [_mapping(each) for each in node.items(most=_MOST)]

    def _text(self, node: Located) -> str:
        text = node.text()
        if text is None:
            return ""
        if self.choices and text not in self.choices:
            named = " or ".join(short(each) for each in self.choices)
            node.error(f"must be {named}, not {short(text)}")
        elif self.pattern and not re.search(_to_the_end(self.pattern), text, re.ASCII):
            node.error(f"{short(text)} does not match {self.pattern}")
        elif self.refusal and re.search(self.refusal, text):
            node.error(f"{text.partition('=')[0]} is not for here: {self.help}")
        return text


def _to_the_end(pattern: str) -> str:
    """A pattern of JSON Schema, whose ``$`` matches only the end of the text."""
    return pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern


def _mapping(node: Located) -> Tree:
    return {key: _plain(entry.value) for key, entry in node.entries(most=_MOST).items()}


def _plain(node: Located) -> Any:
    if node.is_mapping:
        return _mapping(node)
    if node.is_list:
        return [_plain(each) for each in node.items(most=_MOST)]
    maker = Loader("")
    try:
        return maker.construct_object(node.node)
    finally:
        maker.dispose()


def names_of(options: Iterable[Option], *attributes: str) -> tuple[str, ...]:
    """The flags of these settings, with all names and aliases."""
    found = [each for each in options if each.attribute in attributes]
    assert len(found) == len(set(attributes)), attributes
    return tuple(sorted({name for each in found for name in (each.flag, *each.aliases)}))


def leaves(values: Iterable[Value]) -> Iterator[tuple[tuple[str, ...], Value]]:
    """Each value, by the parts of its path."""
    for value in values:
        yield tuple(value.path.split(".")), value


def defaults(values: Iterable[Value]) -> Tree:
    """Every value's default, as a tree."""
    found: Tree = {}
    for path, value in leaves(values):
        put(found, path, value.default)
    return found


def put(tree: Tree, path: tuple[str, ...], what: Any) -> None:
    """Set one value of a tree."""
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = what


def read(text: str, name: str, values: Iterable[Value]) -> Tree:
    """The content of a file of values, without defaults; ``name`` is its name in messages.

    Raises:
        ConfigError: one line for each error, ``name:line:column: path: what``.
    """
    root = compose(text, name, expected="values are expected")
    found = _read(root, dict(leaves(values)), top=True)
    root.errors.raise_any()
    return found


def _read(node: Located, known: Mapping[tuple[str, ...], Value], *, top: bool = False) -> Tree:
    heads = dict.fromkeys(path[0] for path in known)
    fields = node.mapping((*heads, *((_GLOBAL,) if top else ())))
    found: Tree = {}
    for head, field in fields.items():
        if head == _GLOBAL and top:
            continue
        below = {path[1:]: value for path, value in known.items() if path[0] == head}
        leaf = below.get(())
        found[head] = leaf.read(field) if leaf else _read(field, below)
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Merge one tree over another, as Helm does: maps by key, everything else whole."""
    found = dict(base)
    for key, what in over.items():
        there = found.get(key)
        if isinstance(there, dict) and isinstance(what, dict):
            found[key] = merged(there, what)
        else:
            found[key] = what
    return found


def text_value(path: str, default: str, help: str, **more: Any) -> Value:
    return Value(path=path, default=default, help=help, shape=ValueShape.TEXT, **more)


def whole_value(path: str, default: int, help: str, low: int = 0, high: int = 65535) -> Value:
    return Value(path=path, default=default, help=help, shape=ValueShape.WHOLE, low=low, high=high)


def yes_value(path: str, default: bool, help: str) -> Value:
    return Value(path=path, default=default, help=help, shape=ValueShape.YES_NO)


def texts_value(path: str, default: list[str], help: str, **more: Any) -> Value:
    return Value(path=path, default=default, help=help, shape=ValueShape.TEXTS, **more)


def words_value(path: str, help: str) -> Value:
    return Value(path=path, default={}, help=help, shape=ValueShape.WORDS)


def object_value(path: str, help: str) -> Value:
    return Value(path=path, default={}, help=help, shape=ValueShape.OBJECT)


def pod_values(who: str, args: str, refused: tuple[str, ...]) -> tuple[Value, ...]:
    """The values for the pods of any program."""
    return (
        texts_value(f"{who}.extraArgs", [], args, pattern=FLAG, refused=refused),
        text_value(f"{who}.extraSecret.name", "", "Secret with further files that flags name"),
        text_value(
            f"{who}.extraSecret.mountPath",
            "/etc/isthmus/files",
            "Directory that it is mounted as",
            pattern=PATH,
        ),
        object_value(
            f"{who}.resources", "Requests and limits of the container; empty: the usual ones"
        ),
        words_value(
            f"{who}.nodeSelector", "Labels of the nodes to run on; empty: those of the kind"
        ),
        Value(
            path=f"{who}.tolerations",
            default=[],
            help="Taints that do not matter; empty: those of the kind",
            shape=ValueShape.OBJECTS,
        ),
        object_value(f"{who}.affinity", "Affinity of the pods"),
        text_value(f"{who}.priorityClassName", "", "Priority class; empty: that of the kind"),
        words_value(f"{who}.podLabels", "Further labels of the pods"),
        words_value(f"{who}.podAnnotations", "Annotations of the pods"),
    )
