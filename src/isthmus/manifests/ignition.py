"""Ignition: the files, units and groups that a node gets at its first boot, as a JSON document."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

VERSION = "3.2.0"
#: Left as they are in a URL, besides letters and digits (RFC 3986 §3.3, without what starts a part)
_SAFE = "/:=,;@!*()-._~"


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnitionFile:
    """A file of root; ``group`` is a name or a number, empty for root's."""

    path: str
    contents: bytes
    mode: int
    group: str | int = ""

    def to_field(self) -> dict[str, Any]:
        """As in ``storage.files``."""
        found: dict[str, Any] = {
            "path": self.path,
            "mode": self.mode,
            "overwrite": True,
            "contents": {"source": data_url(self.contents)},
        }
        if self.group != "":
            found["group"] = {"name" if isinstance(self.group, str) else "id": self.group}
        return found


def data_url(contents: bytes) -> str:
    """The contents as a URL: readable where it is text, else in base64."""
    try:
        contents.decode("ascii")
    except UnicodeDecodeError:
        return f"data:;base64,{base64.b64encode(contents).decode()}"
    return f"data:,{quote(contents, safe=_SAFE)}"


def ignition(
    files: Sequence[IgnitionFile],
    *,
    units: Mapping[str, str] | None = None,
    groups: Sequence[str] = (),
) -> str:
    """Write it; ``units`` are texts by name, and enabled; ``groups`` are made, as system groups."""
    document: dict[str, Any] = {"ignition": {"version": VERSION}}
    if groups:
        document["passwd"] = {"groups": [{"name": name, "system": True} for name in groups]}
    document["storage"] = {"files": [file.to_field() for file in files]}
    if units:
        document["systemd"] = {
            "units": [
                {"name": name, "enabled": True, "contents": text} for name, text in units.items()
            ]
        }
    return json.dumps(document, indent=2) + "\n"
