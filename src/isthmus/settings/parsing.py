"""From text to settings: what was typed and what the environment says, into declared values.

Pure: the environment comes in as a mapping. Whether values make sense together is for the
``validate()`` of each settings class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from isthmus.errors import ConfigError
from isthmus.settings.options import Kind, Option, compose, options_of
from isthmus.text.durations import parse_duration

S = TypeVar("S")

# The texts that Go's strconv.ParseBool takes.
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INT = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})")


def parse_bool(text: str) -> bool:
    """Read a boolean as Go does.

    Raises:
        ValueError: the text is neither true nor false.
    """
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is neither true nor false")
    return text in _TRUE


def parse_value(declared: Option, text: str) -> object:
    """Read one value of a setting.

    Raises:
        ConfigError: the text is not of the setting's kind; the sentence names the flag.
    """
    try:
        match declared.kind:
            case Kind.TEXT:
                return text
            case Kind.BOOL:
                return parse_bool(text)
            case Kind.DURATION:
                return parse_duration(text)
            case Kind.LIST:
                return tuple(part.strip() for part in text.split(",") if part.strip())
            case Kind.INT:
                return int(_matching(_INT, text, "a whole number"))
            case Kind.NUMBER:
                return float(_matching(_NUMBER, text, "a number"))
    except ValueError as error:
        raise ConfigError(f"--{declared.flag}: {error}") from error


def check_once(declared: Option, texts: Sequence[str]) -> None:
    """Look whether a flag that takes one value got several.

    Raises:
        ConfigError: it did.
    """
    different = list(dict.fromkeys(texts))
    if not declared.takes_one or len(different) < 2:
        return
    given = f"--{declared.flag} is given more than once ({' and '.join(different)})"
    if declared.kind is Kind.LIST:
        raise ConfigError(f"{given}: give it once, with commas between the values")
    raise ConfigError(f"{given} and takes one value")


def _matching(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is not {what}")
    return text


def load(settings: type[S], given: Mapping[str, Sequence[str]], environ: Mapping[str, str]) -> S:
    """Build settings from texts by attribute name, in the order typed, and the environment.

    The last text of a flag wins, except that repeatable flags add up, and that some take one only
    (``Option.takes_one``). The environment counts only where the flag was not given, and an empty
    variable counts as none, as in Go.

    Raises:
        ConfigError: a text cannot be read, is empty where it may not be, or is one too many; the
            sentence names the flag.
    """
    values: dict[str, object] = {}
    for declared in options_of(settings):
        texts = list(given.get(declared.attribute, ()))
        if not texts and declared.env and environ.get(declared.env):
            texts = [environ[declared.env]]
        if not texts:
            continue
        if declared.filled and not all(text.strip(", ") for text in texts):
            raise ConfigError(f"--{declared.flag} is empty: say {declared.takes}, or leave it out")
        check_once(declared, texts)
        if declared.kind is Kind.LIST and declared.repeat:
            texts = [",".join(texts)]
        values[declared.attribute] = parse_value(declared, texts[-1])
    if "flags_given" in getattr(settings, "__dataclass_fields__", ()):
        values["flags_given"] = frozenset(values)
    return compose(settings, **values)
