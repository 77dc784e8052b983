"""Parsing of flags and environment variables into declared values.

Pure: the environment comes in as a mapping. The ``validate()`` of each settings class checks values
against each other; it uses the checks below, which raise errors that name the flag. Whether files
exist and certificates are valid is checked where they are opened, in net/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from isthmus.errors import ConfigError
from isthmus.settings.options import Kind, Option, compose, options_of
from isthmus.text.durations import parse_duration
from isthmus.text.suggestions import nearest
from isthmus.values import HostPort

S = TypeVar("S")

# The texts that Go's strconv.ParseBool accepts.
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
        ConfigError: the text is invalid or out of bounds; the message names the flag.
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
                return listed((text,))
            case Kind.INT:
                number = int(_matching(_INT, text, "a whole number"))
                if wrong := _out_of_bounds(declared, number):
                    raise ConfigError(f"--{declared.flag} {wrong}")
                return number
            case Kind.NUMBER:
                return float(_matching(_NUMBER, text, "a number"))
    except ValueError as error:
        raise ConfigError(f"--{declared.flag}: {error}") from error


def listed(texts: Iterable[str]) -> tuple[str, ...]:
    """The entries of several comma-separated lists together."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def check_once(declared: Option, texts: Sequence[str]) -> None:
    """Check that a flag that takes one value did not get several.

    Raises:
        ConfigError: it got several.
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

    The last text of a flag wins, except that repeatable flags add up, and that some flags take one
    value only (``Option.takes_one``). The environment counts only if the flag was not given, and an
    empty variable counts as unset, as in Go.

    Raises:
        ConfigError: a text is invalid, is empty where it must not be, or is one too many; the
            message names the flag.
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


KONNECTIVITY = "konnectivity"
# What Go's programs allow; the rest are system ports and ephemeral ports (RFC 6335 §6).
_GO_PORTS = range(1024, 49152)


def check_values(settings: object) -> None:
    """Check every setting that has choices or bounds."""
    for declared in options_of(type(settings)):
        value = declared.value_in(settings)
        if value is not None and (wrong := _out_of_bounds(declared, value)):
            raise ConfigError(f"{_named(settings, declared)} {wrong}")
        for word in value if isinstance(value, tuple) else (value,):
            if not declared.choices or word in declared.choices:
                continue
            known = [choice for choice in declared.choices if choice]
            hint = nearest(word, known)
            raise ConfigError(f"--{declared.flag} must be {' or '.join(known)}, not {word!r}{hint}")


def check_durations(settings: object) -> None:
    """Check that durations are not negative."""
    for declared in options_of(type(settings)):
        value = declared.value_in(settings)
        if declared.kind is Kind.DURATION and value < 0:
            raise ConfigError(f"--{declared.flag} must not be negative")


def _out_of_bounds(declared: Option, value: Any) -> str:
    if not declared.bounds or declared.bounds[0] <= value <= declared.bounds[1]:
        return ""
    return f"must be from {declared.bounds[0]} to {declared.bounds[1]}, not {value}"


def _named(settings: object, declared: Option) -> str:
    """The flag, or the place of the value in the file that the settings came from."""
    named = getattr(settings, "named", None)
    return str(named(declared.attribute)) if named else f"--{declared.flag}"


def check_go_port(flag: str, port: int) -> None:
    """Check that Go's programs allow a port to listen on, for --compat=konnectivity."""
    if port not in _GO_PORTS:
        raise ConfigError(
            f"--{flag} must be from {_GO_PORTS[0]} to {_GO_PORTS[-1]} with --compat=konnectivity,"
            f" not {port}"
        )


def check_host(flag: str, host: str) -> None:
    """Check that a host to bind or to dial is a name, or an address without brackets."""
    try:
        HostPort(host, 1)
    except ValueError as error:
        raise ConfigError(f"--{flag}: {error}") from error


def check_pair(cert_flag: str, cert: str, key_flag: str, key: str) -> None:
    """Check that a certificate comes with its key."""
    if bool(cert) != bool(key):
        there, missing = (cert_flag, key_flag) if cert else (key_flag, cert_flag)
        raise ConfigError(f"--{there} needs --{missing} as well")


def check_id(flag: str, value: str) -> None:
    """Check an id for headers, log lines and metric labels: printable ASCII without spaces."""
    if len(value) > 253 or not all("!" <= char <= "~" for char in value):
        raise ConfigError(f"--{flag} must be at most 253 printable characters without spaces")


def check_at_least(flag: str, value: int, least: int) -> None:
    """Check the minimum of a count."""
    if value < least:
        raise ConfigError(f"--{flag} must be at least {least}, not {value}")
