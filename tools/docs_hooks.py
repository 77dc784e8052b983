"""Hooks for mkdocs: table cells with a pipe, and edit links.

The pages are also read on code hosts, where a pipe within a table is written ``\\|`` even in code;
mkdocs would show the backslash.
"""

from __future__ import annotations

import re
from typing import Any

_CELL = re.compile(r"<td[ >].*?</td>", re.DOTALL)


def on_config(config: Any) -> Any:
    """Add edit links if the repository's address is known (DOCS_REPO_URL)."""
    config.edit_uri = "edit/main/docs/" if config.repo_url else ""
    return config


def on_page_content(html: str, **_: Any) -> str:
    """Remove the backslash."""
    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
