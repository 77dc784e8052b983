"""Texts of the command line: what may not be empty, and what is fit to be printed."""

from __future__ import annotations

from typing import TypeVar

import click

from isthmus.errors import ConfigError

T = TypeVar("T", str | None, tuple[str, ...])


def filled(ctx: click.Context, param: click.Parameter, value: T) -> T:
    """Check, as a callback of click, that a text that is given has something in it.

    Raises:
        ConfigError: one is empty, as of a variable that somebody forgot to set.
    """
    texts = value if isinstance(value, tuple) else (value,)
    if any(text is not None and not text.strip() for text in texts):
        name = max(param.opts, key=len)
        if isinstance(param, click.Argument):
            name = (param.metavar or name).removesuffix("...")
        raise ConfigError(f"{name} is empty")
    return value


def one_line(text: str) -> str:
    """The text with escapes for what a terminal would not show as it is."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
