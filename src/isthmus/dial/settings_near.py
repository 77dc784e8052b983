"""The settings for nearness: the server's zone, and the zones of networks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.net.rules_near import Nearness
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.text.addresses import cidr

GROUP = "Near agents"
# The value of a label (Kubernetes: up to 63 of these, a letter or digit at both ends).
_ZONE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearSettings(SettingsBlock):
    """How a server prefers the agents that are near a destination."""

    GO: ClassVar = OURS

    prefer_near: bool = option(
        True,
        help="Prefer agents on the destination's node, then in its zone, then in --zone, unless "
        "they are much busier than others that the strategy allows",
        group=GROUP,
    )
    zone: str = option("", help="Zone of this server", group=GROUP, metavar="ZONE")
    zone_cidr: tuple[str, ...] = option(
        (),
        help="Zone of the destinations in a network; without it, the zone of the agents that "
        "stand for them",
        repeat=True,
        group=GROUP,
        metavar="ZONE=CIDR",
    )

    @property
    def zone_cidrs(self) -> Mapping[str, str]:
        """The zones of networks, by network.

        Raises:
            ConfigError: an entry is invalid, or a network is in two zones.
        """
        found: dict[str, str] = {}
        for text in self.zone_cidr:
            zone, equals, where = text.partition("=")
            if not equals:
                raise ConfigError(
                    f"--zone-cidr takes ZONE=CIDR, such as eu-1a=10.1.0.0/16, not {text!r}"
                )
            check_zone(f"--zone-cidr {text}", zone)
            try:
                network = str(cidr(where))
            except ValueError as error:
                raise ConfigError(f"--zone-cidr {text}: {where!r} {error}") from error
            if found.setdefault(network, zone) != zone:
                raise ConfigError(f"--zone-cidr: {network} is in {found[network]} and in {zone}")
        return found

    @property
    def nearness(self) -> Nearness | None:
        """The known zones; None if all agents are equally far.

        Raises:
            ConfigError: as zone_cidrs.
        """
        return Nearness.of(self.zone, self.zone_cidrs) if self.prefer_near else None

    def check(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: an invalid value.
        """
        check_zone("--zone", self.zone, empty=True)
        _ = self.zone_cidrs


def check_zone(flag: str, zone: str, *, empty: bool = False) -> None:
    """Reject an invalid zone name.

    Raises:
        ConfigError: names the flag.
    """
    if not _ZONE.fullmatch(zone) and not (empty and not zone):
        raise ConfigError(
            f"{flag}: a zone has 1 to 63 letters, digits, '.', '_' or '-', such as eu-1a,"
            f" not {zone!r}"
        )
