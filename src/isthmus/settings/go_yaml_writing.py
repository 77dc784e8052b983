"""Writing YAML that Go's reader and PyYAML's take for the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from isthmus.settings.go_yaml import reads_as_text

# Whole lines, such as a file in a ConfigMap: written as they are, where YAML can say them so.
_LINES = re.compile(r"[!-~][ -~]*\n(?:[ -~]*\n)*[ -~]*[!-~]\n", re.ASCII)


class _Dumper(yaml.SafeDumper):
    """Quotes what Go's YAML would not take for text either."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if reads_as_text(text) else "'"
    if not text.isprintable():  # some would be folded, and read as spaces
        style = "|" if _LINES.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Write documents, keys in the order that they have."""
    text: str = yaml.dump_all(
        [dict(each) for each in documents],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=1000,
    )
    return text
