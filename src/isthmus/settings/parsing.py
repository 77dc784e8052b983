"""From text to settings: what was typed and what the environment says, into declared values.

Pure: the environment comes in as a mapping. Whether values make sense together is for the
``validate()`` of each settings class, and for the checks below that several of them have, each of
which raises one sentence that names the flag. Whether files exist and certificates are good is
checked where they are opened, in net/.
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
        ConfigError: the text is not of the setting's kind, or out of bounds; the sentence names
            the flag.
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
    """The entries of lists with commas, all together."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


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


KONNECTIVITY = "konnectivity"
# What Go's programs allow; the rest are system ports and ephemeral ports (RFC 6335 §6).
_GO_PORTS = range(1024, 49152)


def check_values(settings: object) -> None:
    """Hold every setting that has choices or bounds against them."""
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
    """No wait is negative."""
    for declared in options_of(type(settings)):
        value = declared.value_in(settings)
        if declared.kind is Kind.DURATION and value < 0:
            raise ConfigError(f"--{declared.flag} must not be negative")


def _out_of_bounds(declared: Option, value: Any) -> str:
    if not declared.bounds or declared.bounds[0] <= value <= declared.bounds[1]:
        return ""
    return f"must be from {declared.bounds[0]} to {declared.bounds[1]}, not {value}"


def _named(settings: object, declared: Option) -> str:
    """The flag, or where the value is in the file that the settings were read from."""
    named = getattr(settings, "named", None)
    return str(named(declared.attribute)) if named else f"--{declared.flag}"


def check_go_port(flag: str, port: int) -> None:
    """A port to listen on that Go's programs allow, for --compat=konnectivity."""
    if port not in _GO_PORTS:
        raise ConfigError(
            f"--{flag} must be from {_GO_PORTS[0]} to {_GO_PORTS[-1]} with --compat=konnectivity,"
            f" not {port}"
        )


def check_host(flag: str, host: str) -> None:
    """A host to bind or to dial is an address, without brackets, or a name."""
    try:
        HostPort(host, 1)
    except ValueError as error:
        raise ConfigError(f"--{flag}: {error}") from error


def check_pair(cert_flag: str, cert: str, key_flag: str, key: str) -> None:
    """A certificate and its key come together."""
    if bool(cert) != bool(key):
        there, missing = (cert_flag, key_flag) if cert else (key_flag, cert_flag)
        raise ConfigError(f"--{there} needs --{missing} as well")


def check_id(flag: str, value: str) -> None:
    """An id goes into headers, log lines and metric labels: printable ASCII without spaces."""
    if len(value) > 253 or not all("!" <= char <= "~" for char in value):
        raise ConfigError(f"--{flag} must be at most 253 printable characters without spaces")


def check_at_least(flag: str, value: int, least: int) -> None:
    """A count that cannot be smaller."""
    if value < least:
        raise ConfigError(f"--{flag} must be at least {least}, not {value}")
