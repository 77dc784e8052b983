"""``/healthz`` and ``/livez`` answer what kube-proxy's answer, from a clock moved by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.programs.node_proxy.kernel.health import TO_BE_DELETED, ProbeAnswer, ProxyHealth
from isthmus.programs.node_proxy.rules.model import IpFamily, NodeObject
from isthmus.testing.clock import ManualClock

V4, V6 = IpFamily.IPV4, IpFamily.IPV6
TIMEOUT_S = 60.0


class Bed:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wall = ManualClock(1_700_000_000.0)
        self.health = ProxyHealth(timeout_s=TIMEOUT_S, clock=self.clock, wall=self.wall)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wall.advance(seconds)


@pytest.fixture
def bed() -> Bed:
    made = Bed()
    made.health.node(node())
    return made


def node(*taints: str, deleting: bool = False) -> NodeObject:
    return NodeObject(name="n", taints=taints, deleting=deleting)


def body(answer: ProbeAnswer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_well_from_the_start(bed: Bed) -> None:
    assert bed.health.healthz().status == 200
    assert body(bed.health.healthz()) == {
        "lastUpdated": "2023-11-14T22:13:20Z",
        "currentTime": "2023-11-14T22:13:20Z",
        "nodeEligible": True,
        "healthy": True,
    }
    assert "nodeEligible" not in body(bed.health.livez())


def test_a_node_that_nobody_knows_yet_is_sent_nothing() -> None:
    # Its API cannot be reached: there is no rule here that could serve anybody.
    health = Bed().health
    assert (health.healthz().status, health.livez().status) == (503, 200)
    assert body(health.healthz())["nodeEligible"] is False
    health.node(node())
    assert health.healthz().status == 200


def test_nothing_waits_so_time_does_not_count(bed: Bed) -> None:
    bed.health.synced(V4)
    bed.advance(10 * TIMEOUT_S)
    assert bed.health.healthz().status == bed.health.livez().status == 200
    found = body(bed.health.healthz())
    assert found["lastUpdated"] == found["currentTime"] == "2023-11-14T22:23:20Z"
    assert found["status"] == {"IPv4": {"lastUpdated": "2023-11-14T22:13:20Z", "healthy": True}}


def test_the_oldest_waiting_change_counts(bed: Bed) -> None:
    bed.health.synced(V4)
    bed.health.queued(V4)
    bed.advance(TIMEOUT_S - 1)
    bed.health.queued(V4)
    assert bed.health.healthz().status == 200
    bed.advance(1)
    assert bed.health.healthz().status == bed.health.livez().status == 503
    found = body(bed.health.livez())
    assert (found["healthy"], found["lastUpdated"]) == (False, "2023-11-14T22:13:20Z")
    bed.health.synced(V4)
    assert bed.health.healthz().status == 200


def test_one_late_family_is_enough(bed: Bed) -> None:
    for family in (V6, V4):
        bed.health.synced(family)
        bed.health.queued(family)
    bed.advance(TIMEOUT_S)
    bed.health.synced(V4)
    found = body(bed.health.healthz())
    assert [(name, each["healthy"]) for name, each in found["status"].items()] == [
        ("IPv4", True),
        ("IPv6", False),
    ]
    assert not bed.health.healthy
    # Unhealthy, and so it is the last family that was well that is shown.
    assert found["lastUpdated"] == "2023-11-14T22:14:20Z"


def test_a_family_that_never_gets_there_is_seen(bed: Bed) -> None:
    bed.health.queued(V4)
    assert bed.health.healthz().status == 200
    bed.advance(TIMEOUT_S)
    assert bed.health.healthz().status == 503


@pytest.mark.parametrize(
    ("now", "eligible"),
    [
        (node(), True),
        (node("node.kubernetes.io/unschedulable"), True),
        (node("a", TO_BE_DELETED), False),
        (node(deleting=True), False),
        (None, False),
    ],
)
def test_the_node_matters_to_healthz_alone(
    bed: Bed, now: NodeObject | None, eligible: bool
) -> None:
    bed.health.synced(V4)
    bed.advance(1)
    bed.health.node(now)
    assert bed.health.healthz().status == (200 if eligible else 503)
    found = body(bed.health.healthz())
    assert (found["nodeEligible"], found["healthy"]) == (eligible, True)
    # Not eligible is not "recent", as in kube-proxy.
    assert found["lastUpdated"] == f"2023-11-14T22:13:{21 if eligible else 20}Z"
    assert bed.health.livez().status == 200
    bed.health.node(node())
    assert bed.health.healthz().status == 200
