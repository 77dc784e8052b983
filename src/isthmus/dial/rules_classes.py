"""In which class of traffic a dial is: rules in order, the first that matches decides.

They stand in the file of the policy (settings_classes.py reads them) and match what its rules
match, and besides what the client said that it is about, where it is believed. What a class means
on a link is tunnel/traffic_classes.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from isthmus.dial.rules_policy import Match, Policy, Question
from isthmus.text.patterns import Pattern
from isthmus.values import NORMAL, TrafficClass

_EVERYTHING = Match()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRule:
    """Puts what it matches into a class; ``where`` is its place, for people.

    ``objects`` are patterns of what a client says that its request is about; a
    dial that says nothing, or is not believed, fits none.
    """

    name: str
    traffic: TrafficClass
    match: Match = _EVERYTHING
    objects: tuple[Pattern, ...] = ()
    where: str = field(default="", compare=False)

    def fits(self, asked: Question, about: str) -> bool:
        """Tell whether it decides; ``about`` is the object, empty when none is said."""
        if self.objects and not any(it.covers(about, {}) for it in self.objects):
            return False
        return self.match.fits(asked)


def deciding(rules: Iterable[ClassRule], asked: Question, about: str = "") -> ClassRule | None:
    """The first rule that matches; None: the dial is like any other."""
    return next((rule for rule in rules if rule.fits(asked, about)), None)


def class_of(policy: Policy | None, asked: Question, about: str = "") -> TrafficClass:
    """The class of a dial by what its policy says, NORMAL unless a rule says otherwise."""
    rule = deciding(policy.classes, asked, about) if policy is not None else None
    return rule.traffic if rule is not None else NORMAL
