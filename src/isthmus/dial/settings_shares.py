"""Reading the shares and classes of a policy file, and the flags for the common shares.

    shares:
    - name: batch
      match: {groups: [batch]}      # as in rules: requesters, groups, networks
      per: requester                # or network, or share: which dials share a limit
      maxTunnels: 100
      dialsPerSecond: 20
      dialBurst: 40                 # default: two seconds' worth
      bytesPerSecond: 10Mi          # in each direction
      burstBytes: 20Mi              # default: one second's worth

rules_shares.py implements shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.program import quantity
from isthmus.values import TrafficClass

if TYPE_CHECKING:  # imported only if there is a policy, not for help
    from isthmus.dial.rules_policy import ClassRule, Match, Share
    from isthmus.text.located_yaml import Fields, Located
    from isthmus.text.patterns import Pattern

#: The name of the share from flags; names in a file have no brackets.
BY_FLAGS = "(flags)"
MAX_SHARES = 200
MAX_TUNNELS = 1_000_000
MIN_DIALS_PER_S, MAX_DIALS_PER_S = 0.01, 1_000_000.0
#: With less, the data in flight of one stream would wait too long.
MIN_BYTES_PER_S = 64 * 1024
MAX_BYTES_PER_S = 2**40
KEYS = (
    "name", "match", "per", "maxTunnels", "dialsPerSecond", "dialBurst", "bytesPerSecond",
    "burstBytes",
)  # fmt: skip
_GROUP = "Fair shares"
_LIMITS = ("maxTunnels", "dialsPerSecond", "bytesPerSecond")


def parse_rate(text: str) -> int:
    """Read bytes per second.

    Raises:
        ValueError: not a number, or out of range.
    """
    rate = quantity(text)
    if not MIN_BYTES_PER_S <= rate <= MAX_BYTES_PER_S:
        raise ValueError("is not between 64Ki and 1024Gi bytes per second")
    return rate


def _burst(text: str) -> int:
    burst = quantity(text)
    if not 1 <= burst <= MAX_BYTES_PER_S:
        raise ValueError("is not between 1 and 1024Gi bytes")
    return burst


def read_share(
    node: Located, match: Callable[[Located], Match], name: Callable[[str], str]
) -> Share:
    """Read one share; ``match`` and ``name`` parse those fields as in rules."""
    from isthmus.dial.rules_policy import Match, Per, Share

    found = node.mapping(KEYS, required=("name",))
    if not any(key in found for key in _LIMITS):
        node.error(f"limits nothing: it has none of {', '.join(_LIMITS)}")
    for key, needs in (("dialBurst", "dialsPerSecond"), ("burstBytes", "bytesPerSecond")):
        if key in found and needs not in found:
            found[key].error(f"says nothing without {needs}")
    dials = found.number("dialsPerSecond", 0.0, MIN_DIALS_PER_S, MAX_DIALS_PER_S)
    rate = _bytes(found, "bytesPerSecond", parse_rate, 0)
    return Share(
        name=found.value("name", name, ""),
        per=found.member("per", Per.REQUESTER),
        match=match(found["match"]) if "match" in found else Match(),
        max_tunnels=found.integer("maxTunnels", 0, 1, MAX_TUNNELS),
        dials_per_s=dials,
        dial_burst=found.integer("dialBurst", math.ceil(2 * dials), 1, MAX_TUNNELS),
        bytes_per_s=rate,
        burst_bytes=_bytes(found, "burstBytes", _burst, rate),
        where=node.where,
    )


def _bytes(found: Fields, key: str, parse: Callable[[str], int], default: int) -> int:
    if key not in found:
        return default
    text = found[key].text_or_number()
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as error:
        found[key].error(f"{text[:40]!r} {error}")
        return default


def check_names(nodes: Sequence[Located], shares: Sequence[Share]) -> None:
    """Names are unique, because audit and metrics identify shares by them."""
    first: dict[str, Located] = {}
    for node, share in zip(nodes, shares, strict=True):
        other = first.setdefault(share.name, node)
        if share.name and other is not node:
            node.error(f"{share.name!r} is the name of {other.path} already ({other.where})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings(SettingsBlock):
    """Limits of each requester; a policy file can refine them. 0 is no limit."""

    GO: ClassVar = OURS

    max_tunnels_per_requester: int = option(
        0,
        help="Maximum number of open tunnels per requester, unless a share of the policy file "
        "says otherwise; 0 is no limit",
        group=_GROUP,
    )
    max_dials_per_second_per_requester: float = option(
        0.0,
        help="Maximum number of dials per second and requester, twice as many within one second; "
        "0 is no limit",
        group=_GROUP,
    )
    max_bytes_per_second_per_requester: str = option(
        "",
        help="Maximum number of bytes per second and requester, sent and received, such as 10Mi; "
        "empty is no limit",
        group=_GROUP,
        metavar="BYTES",
    )

    @property
    def of_flags(self) -> Share | None:
        """The share from flags, for every requester; None without such flags.

        Raises:
            ConfigError: a value is out of range.
        """
        tunnels = self.max_tunnels_per_requester
        dials_per_s = self.max_dials_per_second_per_requester
        if not 0 <= tunnels <= MAX_TUNNELS:
            raise ConfigError(f"--max-tunnels-per-requester must be from 0 to {MAX_TUNNELS}")
        if not (dials_per_s == 0 or MIN_DIALS_PER_S <= dials_per_s <= MAX_DIALS_PER_S):
            raise ConfigError(
                "--max-dials-per-second-per-requester must be 0 or at least"
                f" {MIN_DIALS_PER_S:g}, not {dials_per_s:g}"
            )
        rate = _rate_of_flag(self.max_bytes_per_second_per_requester)
        if not (tunnels or dials_per_s or rate):
            return None
        from isthmus.dial.rules_policy import Share

        return Share(
            name=BY_FLAGS,
            max_tunnels=tunnels,
            dials_per_s=dials_per_s,
            dial_burst=math.ceil(2 * dials_per_s),
            bytes_per_s=rate,
            burst_bytes=rate,
            where="flags",
        )


def _rate_of_flag(text: str) -> int:
    try:
        return parse_rate(text) if text not in ("", "0") else 0
    except ValueError as error:
        raise ConfigError(f"--max-bytes-per-second-per-requester {text[:40]} {error}") from error


MAX_CLASS_RULES = 100
CLASS_KEYS = ("name", "class", "match")
#: The matcher that only class rules have.
OBJECTS = "objects"


def read_class(
    node: Located,
    match: Callable[[Located], tuple[Match, tuple[Pattern, ...]]],
    name: Callable[[str], str],
) -> ClassRule:
    """Read one rule; ``match`` and ``name`` parse those fields as in rules, and ``objects``."""
    from isthmus.dial.rules_policy import ClassRule, Match

    found = node.mapping(CLASS_KEYS, required=("name", "class"))
    matched, objects = match(found["match"]) if "match" in found else (Match(), ())
    return ClassRule(
        name=found.value("name", name, ""),
        traffic=found.member("class", TrafficClass.NORMAL),
        match=matched,
        objects=objects,
        where=node.where,
    )


def check_class_names(nodes: Sequence[Located], rules: Sequence[ClassRule]) -> None:
    """Names are unique, to identify rules."""
    first: dict[str, Located] = {}
    for node, rule in zip(nodes, rules, strict=True):
        other = first.setdefault(rule.name, node)
        if rule.name and other is not node:
            node.error(f"{rule.name!r} is the name of {other.path} already ({other.where})")
