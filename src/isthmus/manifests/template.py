"""Trees with holes: Python fills them in for given values, and Helm by a template.

A tree is an object of Kubernetes, made of mappings, lists and texts. Where a value of the chart
belongs, a text has a *hole*, ``hole("server.name")``, which stays in place when a builder puts the
text into another one. Other parts that depend on values are nodes, such as ``When`` and ``Each``.
``fill`` creates the objects for given values, ``to_helm`` the template that creates them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from isthmus.text.go_yaml import to_yaml

Tree = dict[str, Any]
Node = Any  # a mapping, a list, a scalar, or one of the nodes below
MISSING: Final = object()
ITEM = "item"
_HOLE = re.compile("⟨([^⟩]*)⟩")
# Texts that YAML reads unchanged without quotes: RFC 1123 names, paths, flags and labels.
_PLAIN = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z/][A-Za-z0-9_./-]*", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Values of the chart, and the namespace of the release; ``item`` is that of an ``Each``."""

    values: Mapping[str, Any]
    namespace: str
    item: Any = None

    def __getitem__(self, path: str) -> Any:
        found: Any = self.values
        for part in path.split("."):
            found = found[part]
        return found


@dataclass(frozen=True, slots=True)
class Computed:
    """A computed value: the function for Python, and the expression for Helm."""

    find: Callable[[Chosen], Any]
    helm: str
    is_number: bool = False

    def __and__(self, other: Computed) -> Computed:
        return Computed(lambda c: self.find(c) and other.find(c), f"and {self} {other}")

    def __or__(self, other: Computed) -> Computed:
        return Computed(lambda c: self.find(c) or other.find(c), f"or {self} {other}")

    def __invert__(self) -> Computed:
        return Computed(lambda c: not self.find(c), f"not {self}")

    def __str__(self) -> str:
        return f"({self.helm})" if " " in self.helm else self.helm


def given(path: str) -> Computed:
    """Whether a value is true, or not empty."""
    return Computed(lambda c: bool(c[path]), f"$.Values.{path}")


def is_word(path: str, word: str) -> Computed:
    return Computed(lambda c: bool(c[path] == word), f"eq $.Values.{path} {json.dumps(word)}")


def more_than(path: str, number: int) -> Computed:
    return Computed(lambda c: bool(c[path] > number), f"gt (int $.Values.{path}) {number}")


def mentions(path: str, text: str) -> Computed:
    """Whether a text, or any text of a list, contains this."""
    return Computed(
        lambda c: any(
            text in each for each in ([c[path]] if isinstance(c[path], str) else c[path])
        ),
        f"contains {json.dumps(text)} (print $.Values.{path})",
    )


def hole(name: str) -> str:
    """A place for a value, by its path, or for a computed value, by its name."""
    return f"⟨{name}⟩"


@dataclass(frozen=True, slots=True)
class When:
    """A node for when a condition holds, and another one or none for when it does not.

    Inside a list, a list of nodes is flattened.
    """

    holds: Computed
    then: Node
    otherwise: Node = MISSING


@dataclass(frozen=True, slots=True)
class Each:
    """A list item for each item of a value, which the hole ``item`` stands for."""

    path: str
    node: Node


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A value as it is, a mapping or a list."""

    path: str


@dataclass(frozen=True, slots=True)
class Spread:
    """A key: all keys of a mapping, except those written beside it."""

    path: str


@dataclass(frozen=True, slots=True)
class AsText:
    """A tree as YAML in one text."""

    node: Node


@dataclass(frozen=True, slots=True)
class FromFile:
    """A tree that is a file of the chart."""

    path: str
    node: Node


def mapped(nodes: Iterable[Node], change: Callable[[Any], Node]) -> list[Node]:
    """Apply a function to each node of a list, including conditional ones."""
    return [_mapped(node, change) for node in nodes]


def _mapped(node: Node, change: Callable[[Any], Node]) -> Node:
    if isinstance(node, When):
        other = node.otherwise
        rest = MISSING if other is MISSING else _mapped(other, change)
        return When(node.holds, _mapped(node.then, change), rest)
    return mapped(node, change) if isinstance(node, list) else change(node)


@dataclass(frozen=True, slots=True)
class Template:
    """The meaning of holes: values by their paths, some of them whole numbers, and computed
    values."""

    numbers: frozenset[str]
    computed: Mapping[str, Computed]

    def fill(self, node: Node, chosen: Chosen) -> Any:
        """The tree for given values."""
        match node:
            case str():
                return self._text(node, chosen)
            case Mapping():
                found: Tree = {}
                for key, below in node.items():
                    if isinstance(key, Spread):
                        found |= chosen[key.path]
                    elif (what := self.fill(below, chosen)) is not MISSING:
                        found[self._text(key, chosen)] = what
                return found
            case list() | tuple():
                return list(self._items(node, chosen))
            case When():
                return self.fill(node.then if node.holds.find(chosen) else node.otherwise, chosen)
            case Verbatim():
                return chosen[node.path]
            case AsText():
                return to_yaml([self.fill(node.node, chosen)])
            case FromFile():
                return node.node
            case _:
                return node

    def _items(self, nodes: Iterable[Node], chosen: Chosen) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, Each):
                for item in chosen[node.path]:
                    yield self.fill(
                        node.node,
                        Chosen(values=chosen.values, namespace=chosen.namespace, item=item),
                    )
                continue
            found = self.fill(node, chosen)
            if isinstance(node, When) and isinstance(found, list):
                yield from found
            elif found is not MISSING:
                yield found

    def _text(self, text: str, chosen: Chosen) -> Any:
        if whole := _HOLE.fullmatch(text):
            return self._find(whole[1], chosen)
        return _HOLE.sub(lambda found: str(self._find(found[1], chosen)), text)

    def _find(self, name: str, chosen: Chosen) -> Any:
        if name == ITEM:
            return chosen.item
        return self.computed[name].find(chosen) if name in self.computed else chosen[name]

    def to_helm(self, nodes: Sequence[Node]) -> str:
        """A template of several objects."""
        return "".join(f"{line}\n" for node in nodes for line in self._document(node))

    def _document(self, node: Node) -> Iterator[str]:
        match node:
            case When():
                yield from self._if(node, self._document)
            case list():
                for each in node:
                    yield from self._document(each)
            case _:
                yield "---"
                yield from self.lines(node)

    def _if(
        self, node: When, write: Callable[[Node], Iterable[str]], pad: str = ""
    ) -> Iterator[str]:
        yield f"{pad}{{{{- if {node.holds.helm} }}}}"
        yield from write(node.then)
        if node.otherwise is not MISSING:
            yield f"{pad}{{{{- else }}}}"
            yield from write(node.otherwise)
        yield f"{pad}{{{{- end }}}}"

    def lines(self, tree: Mapping[Any, Node], pad: str = "") -> Iterator[str]:
        """A mapping as lines of a template."""
        for key, node in tree.items():
            if isinstance(key, Spread):
                beside = " ".join(json.dumps(each) for each in tree if each is not key)
                yield f"{pad}{{{{- with omit $.Values.{key.path} {beside} }}}}"
                yield f"{pad}{{{{- toYaml . | nindent {len(pad)} }}}}"
                yield f"{pad}{{{{- end }}}}"
            else:
                yield from self._entry(f"{pad}{self._scalar(key)}:", node, pad)

    def _entry(self, head: str, node: Node, pad: str) -> Iterator[str]:
        inner = f"{pad}  "
        match node:
            case When():
                yield from self._if(node, lambda below: self._entry(head, below, pad), pad)
            case Mapping() if node:
                yield head
                yield from self.lines(node, inner)
            case list() if node:
                yield head
                yield from self._listed(node, inner)
            case AsText():
                yield f"{head} |"
                yield from self.lines(node.node, inner)
            case Verbatim():
                yield head
                yield f"{inner}{{{{- toYaml $.Values.{node.path} | nindent {len(inner)} }}}}"
            case FromFile():
                yield head
                read = f"$.Files.Get {json.dumps(node.path)}"
                yield f"{inner}{{{{- {read} | nindent {len(inner)} }}}}"
            case _:
                yield f"{head} {self._scalar(node)}"

    def _listed(self, nodes: Sequence[Node], pad: str) -> Iterator[str]:
        for node in nodes:
            match node:
                case When():
                    yield from self._if(node, lambda below: self._some(below, pad), pad)
                case Each():
                    yield f"{pad}{{{{- range $.Values.{node.path} }}}}"
                    yield from self._listed([node.node], pad)
                    yield f"{pad}{{{{- end }}}}"
                case Mapping():
                    first, *rest = self.lines(node, f"{pad}  ")
                    if first.lstrip().startswith("{{-"):
                        yield from (f"{pad}-", first)
                    else:
                        yield f"{pad}- {first.lstrip()}"
                    yield from rest
                case _:
                    yield f"{pad}- {self._scalar(node)}"

    def _some(self, node: Node, pad: str) -> Iterator[str]:
        yield from self._listed(node if isinstance(node, list) else [node], pad)

    def _scalar(self, value: Any) -> str:
        if not isinstance(value, str):
            return json.dumps(value)
        if whole := _HOLE.fullmatch(value):
            helm = self._helm(whole[1])
            return f"{{{{ {helm} }}}}" if self._is_number(whole[1]) else f"{{{{ {helm} | quote }}}}"
        names = _HOLE.findall(value)
        if not names:
            return value if _PLAIN.fullmatch(value) else json.dumps(value)
        form = json.dumps(_HOLE.sub("%v", value.replace("%", "%%")))
        found = " ".join(f"({each})" if " " in each else each for each in map(self._helm, names))
        return f"{{{{ printf {form} {found} | quote }}}}"

    def plain(self, text: str) -> str:
        """A text for users, in a template."""
        return _HOLE.sub(lambda found: f"{{{{ {self._helm(found[1])} }}}}", text)

    def _helm(self, name: str) -> str:
        if name == ITEM:
            return "."
        if name in self.computed:
            return self.computed[name].helm
        return f"int64 $.Values.{name}" if name in self.numbers else f"$.Values.{name}"

    def _is_number(self, name: str) -> bool:
        return name in self.numbers or (name in self.computed and self.computed[name].is_number)
