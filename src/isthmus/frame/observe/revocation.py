"""The metrics of what was taken back: certificates by their authorities, tokens by the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import Family, by_name, counter, gauge, one

if TYPE_CHECKING:
    from isthmus.net.revocation import Revocations


class RevocationMetrics:
    """What a program counts of it; ``files`` are the lists that it follows."""

    def __init__(self) -> None:
        self.files: Sequence[Revocations] = ()
        self.cuts: dict[str, int] = {}

    def cut(self, what: str) -> None:
        """Count a connection that was cut: of which kind."""
        self.cuts[what] = self.cuts.get(what, 0) + 1

    def _due(self) -> dict[str, float]:
        return {
            it.files.crl: it.lists.next_update
            for it in self.files
            if it.lists.next_update is not None
        }

    def _listed(self) -> dict[str, float]:
        # One file may be given by two flags, and a sample must not be there twice.
        return {it.files.crl: len(it.lists) for it in self.files}

    def families(self, ours: str) -> list[Family]:
        """Show them; names begin with ``ours``."""
        return [
            counter(
                f"{ours}revocation_cuts_total",
                "Connections cut because a certificate or token was taken back, by their kind.",
                lambda: by_name(self.cuts)(),
                ("kind",),
            ),
            gauge(
                f"{ours}crl_next_update_timestamp_seconds",
                "When a newer list of revoked certificates is due, as UNIX time.",
                lambda: by_name(self._due())(),
                ("file",),
                merge=Merge.MIN,
            ),
            gauge(
                f"{ours}crl_revoked_certificates",
                "Certificates in the lists of revoked ones.",
                lambda: by_name(self._listed())(),
                ("file",),
                merge=Merge.MIN,
            ),
            counter(
                f"{ours}crl_reload_failures_total",
                "Changed lists of revoked certificates that could not be used.",
                one(lambda: sum(it.failures for it in self.files)),
                merge=Merge.MAX,
            ),
        ]
