"""What the readers of both kinds of connectivity configuration share: parts of a document.

A part keeps the places of what it read, so that what can be told only later (two networks that
overlap, a file that is not there) is told with its place too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from isthmus.dial.rules_connectivity import NetworkConfig
from isthmus.dial.settings_connectivity_fields import Kind
from isthmus.text.addresses import IpNetwork
from isthmus.text.located_yaml import Fields, Located, near, short

MAX_UDS_BYTES = 107  # sun_path less its zero


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file that a field names; whether it exists is for somebody who may look."""

    at: Located
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPart:
    """The files of one TLS client, each None when it is not given."""

    ca: NamedFile | None = None
    cert: NamedFile | None = None
    key: NamedFile | None = None

    @property
    def files(self) -> tuple[NamedFile, ...]:
        """Those that are given."""
        return tuple(file for file in (self.ca, self.cert, self.key) if file is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A network as one document says it, with the places of what others may collide with."""

    network: NetworkConfig
    at: Located
    cidrs: tuple[tuple[IpNetwork, Located], ...] = ()
    hosts: tuple[tuple[str, Located], ...] = ()
    tls: TlsPart | None = None
    connection_at: Located | None = None
    warnings: tuple[str, ...] = ()


def fields_of(node: Located, kind: Kind, path: str, required: Sequence[str] = ()) -> Fields:
    """The fields of a mapping at a path of its kind; a null counts as not given.

    A field that belongs elsewhere in the kind is an error that says where.
    """
    known = kind.keys(path)
    strays = []
    for key, _ in node.node.value if node.is_mapping else ():
        name = key.value if isinstance(key, yaml.ScalarNode) else None
        if isinstance(name, str) and name not in known and name not in strays:
            homes = kind.homes(name)
            if homes and not near(name, known):
                place = " or ".join(home or "the top of the document" for home in homes)
                here = Located(key, node.path, node.errors)
                here.error(f"unknown key {short(name)}, it belongs to {place}")
                strays.append(name)
    found = node.mapping([*known, *strays], required=required)
    given = Fields({name: at for name, at in found.items() if name not in strays})
    for name in [name for name, at in given.items() if at.kind == "nothing"]:
        if name in required:
            given[name].error("is missing")
        del given[name]
    return given


def missing(node: Located, name: str, why: str) -> None:
    """Note that a field should be there."""
    node.inside(node.node, name).error(f"is missing: {why}")


def file_of(found: Fields, name: str, path: str) -> NamedFile | None:
    """The file that a field names; None when it names none."""
    return NamedFile(at=found[name], path=path) if path else None


def choice(node: Located, text: str, words: Sequence[str], hints: dict[str, str]) -> str:
    """The word if it is one of these; else notes a suggestion, whatever its case, and is empty."""
    if text in words:
        return text
    if not text and not node.is_text:  # which was told already
        return ""
    folded = {word.lower(): word for word in words}
    meant = hints.get(text) or hints.get(text.lower()) or folded.get(text.lower())
    hint = f", did you mean {meant}?" if meant else near(text, words)
    listed = ", ".join(words[:-1]) + f" or {words[-1]}"
    node.error(f"must be {listed}, not {short(text)}{hint}")
    return ""
