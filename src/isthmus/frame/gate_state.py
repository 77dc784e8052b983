"""Whether the KEP-2025 gate is on at both sides of a link, and what was logged about it.

The server's log lines are in programs/server/agents.py, the agent's in
programs/agent/server_links.py.
"""

from __future__ import annotations

from enum import Enum, auto

from isthmus.settings.gates import CLUSTER_TO_MASTER

MOST_KNOWN = 10_000


class GateState(Enum):
    """How the gates of two programs match."""

    AGREE = auto()
    HERE_ONLY = auto()
    THERE_ONLY = auto()
    SILENT = (
        auto()
    )  # on here, and the peer does not report gates: konnectivity's own, or an older version


def state_of(*, here: bool, there: frozenset[str] | None) -> GateState:
    """Compare the local gate with the features a peer reported; None if it reported none."""
    if there is None:
        return GateState.SILENT if here else GateState.AGREE
    on = CLUSTER_TO_MASTER in there
    if on == here:
        return GateState.AGREE
    return GateState.THERE_ONLY if on else GateState.HERE_ONLY


class Known:
    """The last match seen of each peer; peers not seen for long are forgotten."""

    def __init__(self) -> None:
        self._last: dict[str, GateState] = {}

    def __len__(self) -> int:
        return len(self._last)

    def is_news(self, peer: str, state: GateState) -> bool:
        """Remember the match of a peer; whether it is new and worth a log line."""
        before = self._last.pop(peer, GateState.AGREE)
        while len(self._last) >= MOST_KNOWN:
            del self._last[next(iter(self._last))]
        self._last[peer] = state
        return state not in (before, GateState.AGREE)
