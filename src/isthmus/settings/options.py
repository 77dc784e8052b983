"""How a setting is declared: once, as a dataclass field with its flag, help and default.

The flag, its help text, its place in the reference page and its parser all follow from the
declaration. Settings that belong together are a *block*, a frozen dataclass; the settings of a
program have blocks, and their options are listed as if they were the program's own. parsing.py
reads text into values and checks them against each other.

``shown_flags`` gives the flags of a running program for operators: as typed, without secrets.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import get_annotations
from types import NoneType
from typing import (
    Any,
    ClassVar,
    Generic,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from isthmus.text.durations import format_duration

T = TypeVar("T")
S = TypeVar("S")
B = TypeVar("B", bound="SettingsBlock")
_KEY = "isthmus.option"
_BLOCK = "isthmus.block"
# A placeholder in help, alone or in a list such as DIR|FILE.
_PLACES = frozenset({"ADDRESS", "DIR", "CIDR", "PREFIX"})
_WORD = re.compile(r"[A-Z]+")
#: The placeholder of an option that names a file.
FILE = "FILE"
_LAST_PORT = 65535
SAME = "same"
OURS = "ours"


class Kind(Enum):
    """What a flag takes; the value is the placeholder shown in help."""

    TEXT = "TEXT"
    INT = "N"
    NUMBER = "NUMBER"
    BOOL = ""
    DURATION = "DURATION"
    LIST = "LIST"


class OptionWords(TypedDict, total=False):
    """The parameters of a declaration; see Option."""

    help: str
    group: str
    unit: str
    choices: tuple[str, ...]
    bounds: tuple[int, int]
    repeat: bool
    env: str
    go: str
    metavar: str
    flag: str
    aliases: tuple[str, ...]
    shown_default: str
    filled: bool
    once: bool
    common: bool
    inert: bool
    ignored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One declared setting.

    ``go`` is how konnectivity's flag differs: SAME, OURS (it has no such flag), or its default.
    ``bounds`` are the minimum and the maximum; () means no bounds. ``filled`` settings may be left
    out but not be empty: an empty value would lift a restriction. ``inert`` settings are accepted
    and have no effect; ``ignored`` ones never will have any, and help only lists their names. A
    program that gets either logs a warning. ``common`` ones, about ten for each program, come first
    in its help.

    ``attribute`` is the key of the option's text and value among all settings of a program; the
    settings hold the value in ``field`` of the ``block``.
    """

    help: str
    group: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    bounds: tuple[int, int] | tuple[()] = ()
    repeat: bool = False
    env: str = ""
    go: str = ""
    metavar: str = ""
    flag: str = ""
    aliases: tuple[str, ...] = ()
    shown_default: str = ""
    filled: bool = False
    once: bool = False
    common: bool = False
    inert: bool = False
    ignored: bool = False
    attribute: str = ""
    block: str = ""
    field: str = ""
    kind: Kind = Kind.TEXT
    default: object = None

    @property
    def shown(self) -> str:
        """The default as help shows it; empty if there is none worth showing."""
        return self.shown_default or value_text(self, self.default)

    @property
    def takes_one(self) -> bool:
        """Whether a second, different value is refused instead of replacing the first.

        True for addresses, directories and ranges, and for files that users might want to repeat
        (``once``): a listener or a file must not be dropped silently. For other flags the last
        value wins, as in Go, so that a flag can be appended to override another.
        """
        if self.repeat or self.inert or self.ignored:
            return False
        return self.once or not _PLACES.isdisjoint(_WORD.findall(self.takes))

    @property
    def takes(self) -> str:
        """The placeholder of the value in help; empty for a boolean."""
        return self.metavar or self.kind.value

    def files_in(self, settings: object) -> tuple[str, ...]:
        """The paths that a program's settings hold for this option, which takes a FILE."""
        value = self.value_in(settings)
        return value if isinstance(value, tuple) else (value,) if value else ()

    def value_in(self, settings: object) -> Any:
        """The value that a program's settings hold for this option."""
        return getattr(getattr(settings, self.block) if self.block else settings, self.field)


def option(default: T, **words: Unpack[OptionWords]) -> T:
    """Declare a setting as the default of a dataclass field; see Option for the parameters.

    The flag is the attribute with dashes, without the ``_s`` of a duration, unless ``flag`` says
    otherwise.
    """
    # A field specifier has the type of its value, as dataclasses.field itself does.
    return dataclasses.field(default=default, metadata={_KEY: Option(**words)})


def port(default: T, *, least: int = 0, **words: Unpack[OptionWords]) -> T:
    """Declare a TCP port: from 0 if any free port will do, from 1 for a port to dial."""
    said: OptionWords = {**words, "metavar": "PORT", "bounds": (least, _LAST_PORT)}
    return option(default, **said)


@dataclass(frozen=True, slots=True)
class SharedOption(Generic[T]):
    """An option that several programs share; each calls it to declare its own."""

    default: T
    words: OptionWords

    def __call__(self, default: T | None = None, **changes: Unpack[OptionWords]) -> T:
        """Declare the option, with this program's changes."""
        words: OptionWords = {**self.words, **changes}
        return option(self.default if default is None else default, **words)


def shared(default: T, **words: Unpack[OptionWords]) -> SharedOption[T]:
    """Declare an option for several programs, as ``option`` does for one."""
    return SharedOption(default, words)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsBlock:
    """Settings that belong together: the base of blocks, and of the settings of programs.

    Flags of a block with a ``PREFIX`` begin with it, unless they are declared with a ``flag``.
    ``GO`` is how konnectivity's flags differ unless an option says otherwise: OURS where
    konnectivity has no such program or feature.
    """

    PREFIX: ClassVar[str] = ""
    GO: ClassVar[str] = SAME


@dataclass(frozen=True, slots=True)
class _Composed:
    """A block in a program's settings; see ``block``."""

    go: str
    changes: Mapping[str, OptionWords]


def block(default: B, *, go: str = "", **changes: OptionWords) -> B:
    """Declare that settings have a block, with these defaults.

    ``go`` applies to options that do not say how konnectivity's flags differ. Changes, by the name
    of the field, are what this program declares differently.
    """
    return dataclasses.field(default=default, metadata={_BLOCK: _Composed(go, changes)})


def block_of(settings: Any, kind: type[B]) -> B | None:
    """The block of this class in a program's settings, or None."""
    found = (getattr(settings, field.name) for field in dataclasses.fields(settings))
    return next((each for each in found if isinstance(each, kind)), None)


def options_of(settings: type[Any]) -> tuple[Option, ...]:
    """Every setting that a settings class declares, in order, including those of its blocks.

    The settings of a class come before those of its base, which matter less to readers of the list.
    """
    found: list[Option] = []
    hints = get_type_hints(settings)
    for field in _in_order(settings):
        if _KEY in field.metadata:
            found.append(_declared(settings, field, hints[field.name]))
        elif _BLOCK in field.metadata:
            found += _of_block(field)
    return tuple(found)


def _in_order(settings: type[Any]) -> Iterator[dataclasses.Field[Any]]:
    """The fields of a class, then those of its base.

    A field keeps the place of its first default: a class that only changes it does not move it.
    """
    fields = {field.name: field for field in dataclasses.fields(settings)}
    classes = [each for each in settings.__mro__ if dataclasses.is_dataclass(each)]
    first = {
        field.name: each
        for each in classes
        for field in dataclasses.fields(each)
        if field.default is not dataclasses.MISSING
    }
    for each in classes:
        yield from (fields[name] for name in get_annotations(each) if first.get(name) is each)


def _of_block(place: dataclasses.Field[Any]) -> Iterator[Option]:
    composed: _Composed = place.metadata[_BLOCK]
    usual: Any = place.default
    hints = get_type_hints(type(usual))
    for field in _in_order(type(usual)):
        declared = _declared(
            type(usual), field, hints[field.name], composed.changes.get(field.name, {}), composed.go
        )
        yield dataclasses.replace(declared, block=place.name, default=getattr(usual, field.name))


def _declared(
    settings: type[Any],
    field: dataclasses.Field[Any],
    hint: Any,
    changes: OptionWords | None = None,
    go: str = "",
) -> Option:
    declared: Option = dataclasses.replace(field.metadata[_KEY], **(changes or {}))
    kind = _kind_of(hint, declared)
    prefix: str = getattr(settings, "PREFIX", "")
    attribute = f"{prefix}_{field.name}" if prefix else field.name
    if prefix and declared.flag:
        attribute = declared.flag.replace("-", "_") + "_s" * (kind is Kind.DURATION)
    return dataclasses.replace(
        declared,
        attribute=attribute,
        field=field.name,
        kind=kind,
        flag=declared.flag or _flag_of(attribute, kind),
        go=declared.go or go or getattr(settings, "GO", SAME),
        default=field.default,
    )


def _kind_of(hint: Any, declared: Option) -> Kind:
    plain = next((arg for arg in get_args(hint) if arg is not NoneType), hint)
    if get_origin(hint) is tuple:
        return Kind.LIST
    if plain is float:
        return Kind.DURATION if declared.unit == "seconds" else Kind.NUMBER
    return {bool: Kind.BOOL, int: Kind.INT, str: Kind.TEXT}[plain]


def _flag_of(attribute: str, kind: Kind) -> str:
    name = attribute.removesuffix("_s") if kind is Kind.DURATION else attribute
    return name.replace("_", "-")


def compose(settings: type[S], /, **values: object) -> S:
    """Make settings from values by attribute; each goes into the block that declares it."""
    fields = settings.__dataclass_fields__  # type: ignore[attr-defined]  # a dataclass
    usual = {name: field.default for name, field in fields.items() if _BLOCK in field.metadata}
    return settings(**_by_block(settings, usual, values))


def changed(settings: S, /, **values: object) -> S:
    """The same settings except for these values, by attribute as for ``compose``."""
    fields = dataclasses.fields(settings)  # type: ignore[arg-type]  # a dataclass
    blocks = {each.name: getattr(settings, each.name) for each in fields if _BLOCK in each.metadata}
    return dataclasses.replace(settings, **_by_block(type(settings), blocks, values))  # type: ignore[type-var]  # the same


def _by_block(
    settings: type[Any], blocks: Mapping[str, Any], values: Mapping[str, object]
) -> dict[str, Any]:
    own: dict[str, Any] = dict(values)
    inside: dict[str, dict[str, object]] = {}
    for declared in options_of(settings):
        if declared.attribute in own:
            value = own.pop(declared.attribute)
            values_there = inside.setdefault(declared.block, {}) if declared.block else own
            values_there[declared.field] = value
    return own | {name: dataclasses.replace(blocks[name], **new) for name, new in inside.items()}


def values_of(settings: object) -> dict[str, Any]:
    """The values of settings by attribute: the inverse of ``compose``."""
    return {each.attribute: each.value_in(settings) for each in options_of(type(settings))}


def value_text(declared: Option, value: object) -> str:
    """Write a value as it would be typed after ``--flag=``."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float() if declared.kind is Kind.DURATION:
            return format_duration(value)
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def given_in_vain(settings: type[Any], given: Mapping[str, Sequence[str]]) -> list[str]:
    """The flags, as ``--flag``, that were given without effect, even if set to their default."""
    return [
        f"--{declared.flag}"
        for declared in options_of(settings)
        if (declared.inert or declared.ignored) and given.get(declared.attribute)
    ]


BLANK = "[redacted]"
# What comes before the last @ of a URL. A password may contain any character, even one that should
# be escaped, such as / or #: everything from the scheme to the @ is removed.
_USERINFO = re.compile(r"(?<=://)(?:(?!://)\S)*(?=@)")
# The same without a scheme, as in proxy variables: user:password@host.
_BARE = re.compile(r"^(?!\S*://)[^/\s=;:]*+:\S*(?=@)")
_SECRET = re.compile(
    r"(?<=[?&;#])(?=[^=&;?#]*?(?:token|secret|password|passwd|authorization|api_?key))"
    r"([^=&;?#]++)=[^&;\s]*",
    re.IGNORECASE,
)


def shown_flags(settings: object) -> dict[str, dict[str, Any]]:
    """Return each flag of the settings by name: its ``value``, and whether it was ``given``.

    A value is a text, or a list of texts where a flag may be repeated.
    """
    given: frozenset[str] = getattr(settings, "flags_given", frozenset())
    found: dict[str, dict[str, Any]] = {}
    for declared in options_of(type(settings)):
        value = declared.value_in(settings)
        was_given = declared.attribute in given or value != declared.default
        found[declared.flag] = {"value": _text(declared, value), "given": was_given}
    return found


def _text(declared: Option, value: object) -> str | list[str]:
    if declared.kind is Kind.LIST and declared.repeat and isinstance(value, tuple):
        return [blanked(str(each)) for each in value]
    return blanked(value_text(declared, value))


def blanked(text: str) -> str:
    """Remove secrets from a value."""
    text = _USERINFO.sub(BLANK, text)
    text = _BARE.sub(BLANK, text)
    return _SECRET.sub(rf"\1={BLANK}", text)
