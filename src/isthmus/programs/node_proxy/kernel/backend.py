"""The interface of the backends, which program the kernel: iptables, nftables and ipvs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from isthmus.errors import IsthmusError
from isthmus.programs.node_proxy.rules.model import IpFamily, Update
from isthmus.programs.node_proxy.rules.settings import RuleSettings


class ApplyError(IsthmusError):
    """The kernel, or a program such as nft, rejected the rules; nothing changed.

    ``rule`` is the rejected rule, if known.
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
    """The result of a sync. Counts are of rules, by table, and of Services, by traffic policy."""

    full: bool
    rules: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    no_local_endpoints: Mapping[str, int] = field(default_factory=dict)


class KernelBackend(Protocol):
    """Programs the kernel for one family. Calls block, and come from one thread at a time."""

    family: IpFamily

    def start(self) -> None:
        """Check programs and kernel, and set up what has to be done once.

        Raises:
            ConfigError: a program or kernel feature is missing; the message names it.
        """

    def sync(self, update: Update, settings: RuleSettings, *, full: bool) -> SyncReport:
        """Bring the kernel to the view.

        Unless ``full``, only what ``changed`` need be written. The first sync, a sync with new
        settings and a sync after a failure are always full.

        Raises:
            ApplyError: the rules were rejected; nothing changed.
        """

    def intact(self) -> bool:
        """Whether the written rules still exist and were not flushed."""

    def cleanup(self) -> list[str]:
        """Remove all rules of any earlier run; returns messages about what remains."""
