"""Whether the proxy keeps up with what it is told, as ``/healthz`` and ``/livez`` answer it.

A change that waits longer than the timeout for the kernel makes the proxy unhealthy; ``/healthz``
also says whether load balancers should send anything to this node. Answers are values: the ports
are served by programs/node_proxy/pages.py, and those of single Services by service_health.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.objects import NodeObject

#: Set on a node by the cluster autoscaler before it takes the node away.
TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
_NEVER = "0001-01-01T00:00:00Z"  # how Go writes a time that was not set


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a probe is told: an HTTP status, a JSON body and more headers, if any."""

    status: int
    body: str
    headers: Mapping[str, str] | None = None


class ProxyHealth:
    """Remembers, per family, when the kernel was last brought up to date and what waits since.

    ``clock`` never goes back and is compared with; ``wall`` is the time of day, and only shown.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._wall = wall
        self._updated: dict[IpFamily, float] = {}
        self._waiting: dict[IpFamily, float] = {}
        self._eligible = False

    def queued(self, family: IpFamily) -> None:
        """Note that something waits to be written; the oldest that waits is what counts."""
        self._waiting.setdefault(family, self._clock())
        # kube-proxy begins with "up to date now", so that a family that never gets there is seen.
        self._updated.setdefault(family, self._wall())

    def synced(self, family: IpFamily) -> None:
        """Note that the kernel has everything."""
        self._waiting.pop(family, None)
        self._updated[family] = self._wall()

    def node(self, node: NodeObject | None) -> None:
        """Take the node as the API has it; None means that it is gone.

        Until this is called the node is none that may have traffic: whoever does not reach the
        API knows no Service either.
        """
        self._eligible = node is not None and not node.deleting and TO_BE_DELETED not in node.taints

    @property
    def healthy(self) -> bool:
        """No family has had a change waiting for too long."""
        return all(self._in_time(family) for family in self._updated)

    @property
    def eligible(self) -> bool:
        """Load balancers may send new connections to this node."""
        return self._eligible

    def healthz(self) -> ProbeAnswer:
        """Answer ``/healthz``: 200 if the proxy keeps up and the node is to stay, else 503."""
        return self._answer(self.healthy and self._eligible, node=True)

    def livez(self) -> ProbeAnswer:
        """Answer ``/livez``: 200 if the proxy keeps up, else 503."""
        return self._answer(self.healthy, node=False)

    def _in_time(self, family: IpFamily) -> bool:
        since = self._waiting.get(family)
        return since is None or self._clock() - since < self._timeout_s

    def _answer(self, well: bool, *, node: bool) -> ProbeAnswer:
        now = self._wall()
        last = max(self._updated.values(), default=None)
        body: dict[str, object] = {
            # As in kube-proxy: "recent" as long as all is well, whether or not anything changed.
            "lastUpdated": _written(now if well else last),
            "currentTime": _written(now),
        }
        if node:
            body["nodeEligible"] = self._eligible
        body["healthy"] = self.healthy
        if self._updated:
            body["status"] = {
                family.value: {
                    "lastUpdated": _written(self._updated[family]),
                    "healthy": self._in_time(family),
                }
                for family in sorted(self._updated, key=lambda each: each.value)
            }
        return ProbeAnswer(200 if well else 503, json.dumps(body, separators=(",", ":")))


def _written(when: float | None) -> str:
    if when is None:
        return _NEVER
    return datetime.fromtimestamp(when, UTC).isoformat().replace("+00:00", "Z")
