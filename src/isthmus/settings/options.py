"""How a setting is declared: once, as a dataclass field that knows its flag, help and default.

The flag, its help text, its place in the reference page and its parser all follow from the
declaration. Reading text into values lives in parsing.py, checks shared by the programs in
checks.py, the declarations themselves in server.py, agent.py and log.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from inspect import get_annotations
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from isthmus.text.durations import format_duration

T = TypeVar("T")
_KEY = "isthmus.option"
# What stands for a place in help, alone or beside others, as in DIR|FILE.
_PLACES = frozenset({"ADDRESS", "DIR", "CIDR", "PREFIX"})
_WORD = re.compile(r"[A-Z]+")
SAME = "same"
OURS = "ours"


class Kind(Enum):
    """What a flag takes; the value is the word shown for it in help."""

    TEXT = "TEXT"
    INT = "N"
    NUMBER = "NUMBER"
    BOOL = ""
    DURATION = "DURATION"
    LIST = "LIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One declared setting.

    ``go`` tells how konnectivity's flag differs: SAME, OURS (it has no such flag), or its default.
    ``filled`` settings may be left out but not given empty, for that would lift a restriction.
    ``inert`` settings are accepted and have no effect here; ``ignored`` ones never will have, and
    help only lists their names. Either is said when it is given.
    """

    help: str
    group: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    repeat: bool = False
    env: str = ""
    go: str = SAME
    metavar: str = ""
    flag: str = ""
    aliases: tuple[str, ...] = ()
    shown_default: str = ""
    filled: bool = False
    once: bool = False
    inert: bool = False
    ignored: bool = False
    attribute: str = ""
    kind: Kind = Kind.TEXT
    default: object = None

    @property
    def shown(self) -> str:
        """The default as people read it; empty when there is none to speak of."""
        return self.shown_default or value_text(self, self.default)

    @property
    def takes_one(self) -> bool:
        """Whether a second, different value is refused instead of taking the place of the first.

        For addresses, directories and ranges, and for files of which one might want several
        (``once``): a listener or a file that is silently left out is missed when it is needed.
        Of other flags the last counts, as in Go, so that one can be appended to override another.
        """
        if self.repeat or self.inert or self.ignored:
            return False
        return self.once or not _PLACES.isdisjoint(_WORD.findall(self.takes))

    @property
    def takes(self) -> str:
        """The word that stands for the value in help; empty for a boolean."""
        return self.metavar or self.kind.value


def option(
    default: T,
    *,
    help: str,
    group: str = "",
    unit: str = "",
    choices: tuple[str, ...] = (),
    repeat: bool = False,
    env: str = "",
    go: str = SAME,
    metavar: str = "",
    flag: str = "",
    aliases: tuple[str, ...] = (),
    shown_default: str = "",
    filled: bool = False,
    once: bool = False,
    inert: bool = False,
    ignored: bool = False,
) -> T:
    """Declare a setting as the default of a dataclass field; see Option for what each word means.

    The flag is the attribute with dashes, without the ``_s`` of a duration, unless ``flag`` says
    otherwise.
    """
    declared = Option(
        help=help,
        group=group,
        unit=unit,
        choices=choices,
        repeat=repeat,
        env=env,
        go=go,
        metavar=metavar,
        flag=flag,
        aliases=aliases,
        shown_default=shown_default,
        filled=filled,
        once=once,
        inert=inert,
        ignored=ignored,
    )
    # A field specifier is typed as the value it stands for, as dataclasses.field itself is.
    return dataclasses.field(default=default, metadata={_KEY: declared})


def options_of(settings: type[Any]) -> tuple[Option, ...]:
    """Every setting that a settings class declares, in order of declaration.

    A class's own come before those of its base, which matter less to who reads the list.
    """
    hints = get_type_hints(settings)
    found = []
    for field in sorted(dataclasses.fields(settings), key=partial(_distance, settings)):
        declared: Option | None = field.metadata.get(_KEY)
        if declared is None:
            continue
        kind = _kind_of(hints[field.name], declared)
        found.append(
            dataclasses.replace(
                declared,
                attribute=field.name,
                kind=kind,
                flag=declared.flag or _flag_of(field.name, kind),
                default=field.default,
            )
        )
    return tuple(found)


def _distance(settings: type[Any], field: dataclasses.Field[Any]) -> int:
    """How many steps of inheritance lie between the class and the first that declares the field.

    A class that only changes a default leaves the setting where its base has it.
    """
    classes = enumerate(settings.__mro__)
    return max(step for step, each in classes if field.name in get_annotations(each))


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
    """The flags, as ``--flag``, that were given and have no effect, also with their default."""
    return [
        f"--{declared.flag}"
        for declared in options_of(settings)
        if (declared.inert or declared.ignored) and given.get(declared.attribute)
    ]
