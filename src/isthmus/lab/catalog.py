"""The topologies that come with Isthmus, and those in files: found by name or by path."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

import yaml

from isthmus.errors import ConfigError, unreadable
from isthmus.lab.reading import read
from isthmus.lab.topology import Topology
from isthmus.text.located_yaml import MAX_CHARS, near, short

_SUFFIXES = (".yaml", ".yml")


def names() -> list[str]:
    """The names of the built-in topologies, sorted."""
    return sorted(_built_in())


class Summary(NamedTuple):
    """What a list shows of a built-in topology."""

    name: str
    title: str
    needs: tuple[str, ...]


def summaries() -> list[Summary]:
    """Every built-in topology, read quickly: their tests have read them whole."""
    found = []
    for name, file in sorted(_built_in().items()):
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        found.append(Summary(name, content["title"], tuple(content.get("needs", ()))))
    return found


def load(name_or_path: str) -> Topology:
    """Read a built-in topology, or a file: a path contains a slash or ends in .yaml or .yml.

    Raises:
        ConfigError: there is no such topology, or it is invalid.
    """
    return parse(name_or_path, text(name_or_path))


def parse(name_or_path: str, content: str) -> Topology:
    """Read the text that was found by a name or path.

    Raises:
        ConfigError: the topology is invalid.
    """
    if _is_path(name_or_path):
        return read(content, name=Path(name_or_path).stem, source=name_or_path)
    return read(content, name=name_or_path, source=f"{name_or_path}.yaml")


def text(name_or_path: str) -> str:
    """The text of a built-in topology or of a file.

    Raises:
        ConfigError: there is no such topology, or the file is not text.
    """
    if _is_path(name_or_path):
        return _file_text(name_or_path)
    found = _built_in()
    if name_or_path not in found:
        hint = near(name_or_path, found) or "; a file needs its path: ./FILE"
        raise ConfigError(f"there is no topology {short(name_or_path)}{hint}")
    return found[name_or_path].read_text(encoding="utf-8")


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path.endswith(_SUFFIXES)


def _built_in() -> dict[str, Traversable]:
    directory = files("isthmus.lab") / "topologies"
    return {
        one.name.removesuffix(".yaml"): one
        for one in directory.iterdir()
        if one.name.endswith(".yaml")
    }


def _file_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(4 * MAX_CHARS + 1)  # UTF-8 has at most four bytes per character
    except OSError as error:
        raise unreadable(path, error) from error
    if len(content) > 4 * MAX_CHARS:
        raise ConfigError(f"{path}: longer than {MAX_CHARS} characters")
    try:
        return content.decode()
    except ValueError as error:
        raise unreadable(path, error) from error
