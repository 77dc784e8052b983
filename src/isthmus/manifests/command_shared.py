"""What every ``isthmus manifest PROGRAM`` does with its flags and with what it wrote.

The command itself is ``command_manifest.py`` in the room of its program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from isthmus.errors import unreadable
from isthmus.manifests.settings import DEFAULT_IMAGE
from isthmus.settings.options import options_of

#: What a file that is put into a manifest may have.
MOST_BYTES = 1024 * 1024
Typed = dict[str, tuple[str, ...]]


def split(given: Typed, own: type[Any]) -> tuple[Typed, Typed]:
    """What was typed: all of it, and what is the program's and not the manifest's (``own``)."""
    names = {option.attribute for option in options_of(own)}
    typed = {attribute: texts for attribute, texts in given.items() if texts}
    return typed, {each: texts for each, texts in typed.items() if each not in names}


def show(text: str, said: Iterable[str], vain: Sequence[str] = ()) -> int:
    """Print what was written; what to know about it, and flags without effect, go to stderr."""
    left_out = [f"these flags have no effect and are left out: {', '.join(vain)}"] if vain else []
    for sentence in (*said, *left_out):
        click.echo(f"isthmus: {sentence}", err=True)
    say_image(text)
    click.echo(text, nl=False)
    return 0


def say_image(text: str) -> None:
    """Tell of a manifest with the default image that somebody has to bring it to the nodes."""
    if f"image: {DEFAULT_IMAGE}\n" in text:
        click.echo(
            f'isthmus: no registry has the image {DEFAULT_IMAGE}: build it with "make image" and'
            " bring it to the nodes, or name another with --image",
            err=True,
        )


def read_file(flag: str, path: str) -> bytes:
    """The contents of a file that a flag names, as far as one byte more than MOST_BYTES.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise unreadable(f"{flag} {path}", error) from error
