"""Merges the reports of several workers into one: a rule for every field and metric.

A metric family names its rule where it is declared (frame/observe/counters.py), a snapshot's class
by the decorator ``merges`` (snapshot.py). A field without a rule is an error when its module is
imported. workers/ has the workers, and the counts of dead ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, TypeVar, get_args, get_type_hints

_C = TypeVar("_C", bound=type)
_V = TypeVar("_V")


class Merge(Enum):
    """A rule. Metrics use the first four, fields of snapshots all of them.

    For booleans ``MAX`` is "any of them" and ``MIN`` is "all of them". Unknown values (None) are
    left out.
    """

    SUM = "the sum over the workers"
    MAX = "the greatest: all workers see the same thing, some of them later"
    MIN = "the least: trouble of one worker is trouble of the program"
    SAME = "the same in every worker"
    KEY = "identifies rows of several workers that are about the same thing"
    CONCAT = "lists: the rows of every worker"
    ROWS = "lists: rows with the same keys become one, by the rules of their fields"
    PARTS = "a value with fields of its own, by their rules"


SUM, MAX, MIN, SAME, KEY = Merge.SUM, Merge.MAX, Merge.MIN, Merge.SAME, Merge.KEY
CONCAT, ROWS, PARTS = Merge.CONCAT, Merge.ROWS, Merge.PARTS
#: The rules for metrics, whose samples are numbers.
OF_NUMBERS = frozenset({Merge.SUM, Merge.MAX, Merge.MIN, Merge.SAME})
_NESTED = frozenset({Merge.ROWS, Merge.PARTS})


@dataclass(frozen=True, slots=True)
class _Rules:
    by_field: Mapping[str, Merge]
    lead: Callable[[Any], Any] | None


_RULES: dict[type, _Rules] = {}


def merges(
    shared: Mapping[str, Merge] | None = None,
    /,
    *,
    lead: Callable[[Any], Any] | None = None,
    **rules: Merge,
) -> Callable[[_C], _C]:
    """Declare the rule of every field of a dataclass; ``shared`` are rules of several classes.

    ``lead`` orders values that are merged: fields that are the ``SAME`` come from the lowest, by
    default from the first.

    Raises:
        TypeError: a field has no rule, a rule no field, or the class of nested rows has none.
    """

    rules = {**(shared or {}), **rules}

    def declare(cls: _C) -> _C:
        names = {field.name for field in fields(cls)}
        if missing := sorted(names - rules.keys()):
            raise TypeError(f"{cls.__name__}: no merge rule for {', '.join(missing)}")
        if unknown := sorted(rules.keys() - names):
            raise TypeError(f"{cls.__name__}: merge rules for no field: {', '.join(unknown)}")
        nested = {name for name, rule in rules.items() if rule in _NESTED}
        hints = get_type_hints(cls) if nested else {}
        for name in sorted(nested):
            inner = next(iter(get_args(hints[name])), hints[name])
            if inner not in _RULES:
                raise TypeError(f"{cls.__name__}.{name}: {inner} declares no merge rules")
        _RULES[cls] = _Rules(rules, lead)
        return cls

    return declare


def rules_of(cls: type) -> Mapping[str, Merge]:
    """The rules of a class by field.

    Raises:
        LookupError: it declares no rules.
    """
    return _RULES[cls].by_field


def merge_numbers(rule: Merge, each: Sequence[float]) -> float:
    """Merge the numbers of a metric from one or more workers."""
    match rule:
        case Merge.SUM:
            return sum(each)
        case Merge.MIN:
            return min(each)
        case Merge.MAX | Merge.SAME:
            return max(each)
        case _:
            raise ValueError(f"not a rule for numbers: {rule}")


def merge_values(each: Sequence[_V]) -> _V:
    """Merge values of one class from one or more workers, by the rules of their fields."""
    kind: type = type(each[0])
    rules = _RULES[kind]
    lead = each[0] if rules.lead is None else min(each, key=rules.lead)
    merged = {
        name: _merged(rule, [getattr(one, name) for one in each])
        for name, rule in rules.by_field.items()
        if rule not in (Merge.SAME, Merge.KEY)
    }
    return replace(lead, **merged)  # type: ignore[type-var]  # only dataclasses have rules


def _merged(rule: Merge, each: Sequence[Any]) -> Any:
    match rule:
        case Merge.SUM:
            return sum(each)
        case Merge.MAX:
            return max((one for one in each if one is not None), default=None)
        case Merge.MIN:
            return min((one for one in each if one is not None), default=None)
        case Merge.CONCAT:
            return tuple(row for rows in each for row in rows)
        case Merge.ROWS:
            return _rows(each)
        case _:
            known = [one for one in each if one is not None]
            return merge_values(known) if known else None


def _rows(lists: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    found: dict[Any, list[Any]] = {}
    for row in (row for rows in lists for row in rows):
        keys = (name for name, rule in rules_of(type(row)).items() if rule is Merge.KEY)
        found.setdefault(tuple(getattr(row, name) for name in keys), []).append(row)
    return tuple(merge_values(rows) for rows in found.values())
