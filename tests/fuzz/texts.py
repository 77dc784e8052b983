"""What the targets of documents share: only ConfigError, and it says where."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import ConfigError

NAME = "the-file.yaml"
#: Longer ones are for the bound on their length, which is tested elsewhere.
MOST_CHARS = 4096


def read(data: bytes, reader: Callable[[str], object]) -> object:
    """Read a document; None when it was refused, in words that can be shown."""
    text = data.decode("utf-8", "replace")[:MOST_CHARS]
    try:
        return reader(text)
    except ConfigError as error:
        said = str(error)
        assert said.startswith(NAME) or NAME in said, said
        assert len(said.splitlines()) <= 21, "more errors than anybody reads"
        assert all(line.isprintable() for line in said.splitlines()), repr(said)
        said.encode()  # what cannot be written cannot be shown
        return None
