"""How every ``isthmus manifest PROGRAM`` handles its flags and its output.

The command itself is ``command_manifest.py`` in the room of its program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from isthmus.errors import unreadable
from isthmus.manifests.settings import DEFAULT_IMAGE
from isthmus.settings.options import options_of

#: The maximum size of a file that is put into a manifest.
MOST_BYTES = 1024 * 1024
Typed = dict[str, tuple[str, ...]]


def split(given: Typed, own: type[Any]) -> tuple[Typed, Typed]:
    """The given flags: all of them, and those of the program without the manifest's (``own``)."""
    names = {option.attribute for option in options_of(own)}
    typed = {attribute: texts for attribute, texts in given.items() if texts}
    return typed, {each: texts for each, texts in typed.items() if each not in names}


def show(text: str, said: Iterable[str], vain: Sequence[str] = ()) -> int:
    """Print the manifest; notes, and flags without effect, go to stderr."""
    left_out = [f"these flags have no effect and are left out: {', '.join(vain)}"] if vain else []
    for sentence in (*said, *left_out):
        click.echo(f"isthmus: {sentence}", err=True)
    say_image(text)
    click.echo(text, nl=False)
    return 0


def say_image(text: str) -> None:
    """Note for a manifest with the default image that the image must be brought to the nodes."""
    if f"image: {DEFAULT_IMAGE}\n" in text:
        click.echo(
            f'isthmus: no registry has the image {DEFAULT_IMAGE}: build it with "make image" and'
            " bring it to the nodes, or name another with --image",
            err=True,
        )


def read_file(flag: str, path: str) -> bytes:
    """The contents of a file that a flag names, at most one byte more than MOST_BYTES.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise unreadable(f"{flag} {path}", error) from error
