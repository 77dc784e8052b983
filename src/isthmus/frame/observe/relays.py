"""What a server counts of dials that other servers pass on for it, or it for them; of retries."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from isthmus.errors import DialFailure
from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import Family, Samples, by_enum, counter, gauge


class Relayed(Enum):
    """What became of a dial that one server asked of another."""

    JOINED = "an agent of the other server reached the target"
    NO_AGENT = "the other server had no agent for it, or lost it"
    FAILED = "the agent of the other server could not reach the target"
    DENIED = "the policy of the server with the agents does not allow it"
    REFUSED = "it was no dial that can be relayed"


#: The others are failures of the agent.
RESULTS: dict[DialFailure | None, Relayed] = {
    None: Relayed.JOINED,
    DialFailure.NO_AGENT: Relayed.NO_AGENT,
    DialFailure.AGENT_LOST: Relayed.NO_AGENT,
    DialFailure.DENIED: Relayed.DENIED,
}


class Retried(Enum):
    """When a dial's link was lost, so that another agent was asked."""

    BEFORE_ANSWER = "before the answer"
    BEFORE_FIRST_BYTE = "after the answer, before any byte had flowed"


class RelayMetrics:
    """Counted by ServerMetrics."""

    def __init__(self) -> None:
        self.sent = dict.fromkeys(Relayed, 0)  # asked of other servers
        self.taken = dict.fromkeys(Relayed, 0)  # asked by other servers
        self.retries = dict.fromkeys(Retried, 0)
        #: Links to other servers and from them; replaced where there are any.
        self.links: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def answered(self, relay: str, failure: DialFailure | None, in_vain: int) -> None:
        """Count a dial that is over: whether another server helped, and how many could not."""
        if in_vain:
            self.sent[Relayed.NO_AGENT] += in_vain
        if relay:
            self.sent[RESULTS.get(failure, Relayed.FAILED)] += 1

    def retried(self, when: Retried) -> None:
        """Count a dial whose link was lost, so that another is asked."""
        self.retries[when] += 1

    def _dials(self) -> Samples:
        found = {"sent": self.sent, "taken": self.taken}
        return [
            ((direction, result.name.lower()), number)
            for direction, counts in found.items()
            for result, number in counts.items()
        ]

    def _links(self) -> Samples:
        to, from_ = self.links()
        return [(("sent",), to), (("taken",), from_)]

    def families(self) -> list[Family]:
        """How it is seen."""
        return [
            counter(
                "isthmus_server_relayed_dials_total",
                "Dials sent to other servers for their agents, and taken from other servers for"
                " our own, by what became of them.",
                self._dials,
                ("direction", "result"),
            ),
            gauge(
                "isthmus_server_relay_links",
                "Links to other servers by which dials can be sent, and from other servers by"
                " which they are taken.",
                self._links,
                ("direction",),
                merge=Merge.SUM,
            ),
            counter(
                "isthmus_server_dial_retries_total",
                "Links that were lost with a dial that could be tried again, by when.",
                by_enum(self.retries),
                ("when",),
            ),
        ]
