"""Reading ``classes`` of a ConnectivityPolicy: which dials go before others on a link."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isthmus.dial.rules_classes import ClassRule
from isthmus.dial.rules_policy import Match
from isthmus.text.located_yaml import Located
from isthmus.text.patterns import Pattern
from isthmus.values import TrafficClass

MAX_CLASS_RULES = 100
KEYS = ("name", "class", "match")
#: What such a rule can match and others cannot.
OBJECTS = "objects"


def read_class(
    node: Located,
    match: Callable[[Located], tuple[Match, tuple[Pattern, ...]]],
    name: Callable[[str], str],
) -> ClassRule:
    """Read one rule; ``match`` and ``name`` read those of a rule of the policy, and ``objects``."""
    found = node.mapping(KEYS, required=("name", "class"))
    matched, objects = match(found["match"]) if "match" in found else (Match(), ())
    return ClassRule(
        name=found.value("name", name, ""),
        traffic=found.member("class", TrafficClass.NORMAL),
        match=matched,
        objects=objects,
        where=node.where,
    )


def check_class_names(nodes: Sequence[Located], rules: Sequence[ClassRule]) -> None:
    """Each name once, so that people can tell rules apart by it."""
    first: dict[str, Located] = {}
    for node, rule in zip(nodes, rules, strict=True):
        other = first.setdefault(rule.name, node)
        if rule.name and other is not node:
            node.error(f"{rule.name!r} is the name of {other.path} already ({other.where})")
