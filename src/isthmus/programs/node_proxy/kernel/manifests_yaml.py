"""Documents of YAML as plain values, by libyaml: a cluster's objects are megabytes.

For files of ours, settings/located.py is stricter and gives every field its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from isthmus.errors import ConfigError

MAX_NODES = 2_000_000
MAX_DEPTH = 1000
# Nested within a line; otherwise each level takes a line that is longer than the last.
_COMPACT = re.compile(rb"(?:[-?:][ \t]+){4}")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.CSafeLoader):
    """Leaves times alone, as JSON does, and refuses a key that is there twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (the base class has it so)
        first: [(tag, pattern) for tag, pattern in each if tag != _TIMESTAMP]
        for first, each in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = len(node.value)
        merges = any(key.tag == _MERGE for key, _ in node.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if not merges and len(found) < keys:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return found


def documents(data: bytes, name: str) -> Iterator[tuple[int, Any]]:
    """Every document that is not empty, with the line that it begins at.

    Raises:
        ConfigError: it is no YAML, and where.
    """
    try:
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH or _COMPACT.search(data):
            _check_depth(data, name)
        loader = _Loader(data)
        try:
            # Names for what is somewhere else make a short file long.
            named = b"&" in data and b"*" in data
            while loader.check_node():
                node: Any = loader.get_node()
                if named and _size(node) > MAX_NODES:
                    raise ConfigError(f"{name}: longer than {MAX_NODES} values, by its aliases")
                value = loader.construct_document(node)
                if value is not None:
                    yield node.start_mark.line + 1, value
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{place}: not YAML: {what}") from error
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        raise ConfigError(f"{name}: not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply") from error


def _check_depth(data: bytes, name: str) -> None:
    """Refuse what the composer, which is recursive and in C, would die of."""
    depth = 0
    for event in yaml.parse(data, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                mark: Any = event.start_mark
                raise ConfigError(f"{name}:{mark.line + 1}:{mark.column + 1}: nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _size(root: Any) -> int:
    """How many values it is once aliases are written out."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        known = sizes.get(id(node))
        if known is None:
            sizes[id(node)] = MAX_NODES + 1  # one that has itself within has no end
            pairs = node.value
            inner = [part for pair in pairs for part in pair] if node.id == "mapping" else pairs
            known = sizes[id(node)] = 1 + sum(map(size, inner))
        return known

    return size(root)
