"""The differences between Go's YAML, as kube-apiserver reads it, and PyYAML.

Measured with files given to kube-apiserver v1.36: merge keys are expanded, text that begins like
JSON has to be JSON, and some plain words are text for one of the two and a number or a boolean for
the other. The writer here quotes so that both read the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from isthmus.text.located_yaml import Located, short

_MERGE = "tag:yaml.org,2002:merge"
_MAX_MERGED = 1000  # aliases of aliases grow fast
_MAX_MERGE_DEPTH = 20

# Plain words that are text in Go's YAML but not in PyYAML, and the reverse.
_TEXT_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_NOT_TEXT = re.compile(
    r"[yYnN]|[-+]?0[oO][0-7]+|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
)


def check_json(text: str, root: Located) -> None:
    """Note an error if a text looks like JSON, which kube-apiserver then requires, and is not."""
    if not text.lstrip().startswith("{"):
        return
    try:
        json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        root.errors.add(
            error.lineno,
            error.colno,
            f"kube-apiserver reads what begins with {{ as JSON, and this is none: {error.msg}",
        )
    except _ConstantError as error:
        root.error(f"kube-apiserver reads what begins with {{ as JSON, which has no {error}")


class _ConstantError(Exception):
    """Refuse a word that only Python's JSON accepts."""


def _no_constant(word: str) -> None:
    raise _ConstantError(word)


def reads_as_text(word: str) -> bool:
    """Whether Go's YAML reads this plain word as text; quoted words always are."""
    return _NOT_TEXT.fullmatch(word) is None


def go_text(node: Located) -> str:
    """The text as Go's YAML reads it; empty when it is not text."""
    plain = node.node
    if isinstance(plain, yaml.ScalarNode) and plain.style is None:
        tag, value = plain.tag, str(plain.value)
        if tag in _TEXT_TAGS or _BASE_60.fullmatch(value) or tag.startswith("!"):
            if reads_as_text(value) or _is_tagged(plain):
                return value
            node.error(f"must be text, not {short(value)}: put it in quotes")
            return ""
    return node.text() or ""


def _is_tagged(node: yaml.ScalarNode) -> bool:
    """Whether the file tags the type explicitly (``!!str 5``)."""
    start, end = node.start_mark, node.end_mark
    source = start.buffer[start.pointer : end.pointer] if start.buffer is not None else ""
    return "!" in source.partition(node.value)[0]


def expand_merges(root: Located) -> None:
    """Expand YAML's merge keys (``<<``), as kube-apiserver does.

    A key that is both merged and written is then there twice, which is an error in kube-apiserver
    as well.
    """
    todo, seen = [root.node], {id(root.node)}
    while todo:
        node = todo.pop()
        below: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            _merge(node, root, 0)
            below = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        for one in below:
            if id(one) not in seen:
                seen.add(id(one))
                todo.append(one)


def _merge(node: yaml.MappingNode, root: Located, depth: int) -> None:
    """Expand one mapping in place, after those that it merges: each is expanded once."""
    merges = [(key, value) for key, value in node.value if key.tag == _MERGE]
    if not merges:
        return
    pairs = node.value = [pair for pair in node.value if pair not in merges]
    for key, value in merges:
        at = root.inside(key, "<<")
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode):
                at.error("must be a mapping or a list of them")
            elif depth == _MAX_MERGE_DEPTH or len(pairs) > _MAX_MERGED:
                at.error("merges too many fields")
                return
            else:
                _merge(source, root, depth + 1)
                pairs += source.value


# Whole lines, such as a file in a ConfigMap: written as a literal block if YAML allows it.
_LINES = re.compile(r"[!-~][ -~]*\n(?:[ -~]*\n)*[ -~]*[!-~]\n", re.ASCII)


class _Dumper(yaml.SafeDumper):
    """Also quotes what Go's YAML would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if reads_as_text(text) else "'"
    if not text.isprintable():  # some would be folded and read as spaces
        style = "|" if _LINES.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Write documents, with keys in their order."""
    text: str = yaml.dump_all(
        [dict(each) for each in documents],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=1000,
    )
    return text
