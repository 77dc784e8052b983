"""What every way of programming the kernel can do; iptables, nftables and ipvs are the ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from isthmus.errors import IsthmusError
from isthmus.programs.node_proxy.rules.model import IpFamily, Update
from isthmus.programs.node_proxy.rules.settings import RuleSettings


class ApplyError(IsthmusError):
    """The kernel, or the program that talks to it, did not take the rules; nothing changed.

    ``rule`` is the one that it was about, where that is known.
    """

    def __init__(self, message: str, *, rule: str = "") -> None:
        super().__init__(f"{message}: {rule}" if rule else message)
        self.rule = rule


class NoIpvsError(ApplyError):
    """The kernel has no IPVS."""

    def __init__(self) -> None:
        super().__init__("the kernel has no IPVS")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a sync did. Counts are of rules, by table, and of Services, by traffic policy."""

    full: bool
    rules: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    no_local_endpoints: Mapping[str, int] = field(default_factory=dict)


class KernelBackend(Protocol):
    """Programs the kernel for one family. Its calls block, and come from one thread at a time."""

    family: IpFamily

    def start(self) -> None:
        """Look whether programs and kernel can do it; change what has to be set once.

        Raises:
            ConfigError: they cannot, and in one sentence why.
        """

    def sync(self, update: Update, settings: RuleSettings, *, full: bool) -> SyncReport:
        """Bring the kernel to the view.

        Unless ``full``, only what ``changed`` need be written. The first sync, one with other
        settings than the last and one after a failure are full whatever is asked.

        Raises:
            ApplyError: nothing was changed.
        """

    def intact(self) -> bool:
        """Whether what was written once is still there; nobody flushed it."""

    def cleanup(self) -> list[str]:
        """Remove all that is ours, from any run; what could not be removed, in words."""
