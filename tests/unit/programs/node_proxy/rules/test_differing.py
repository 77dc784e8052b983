"""What a change does, in words and in lines."""

from __future__ import annotations

import pytest
from explaining_cases import HERE, THERE, backed, endpoint, view_of

from isthmus.programs.node_proxy.rules.detectors import SourceRanges
from isthmus.programs.node_proxy.rules.model import IpFamily, ServiceView
from isthmus.programs.node_proxy.rules.rendering import (
    LineChange,
    line_changes,
    port_changes,
    rendered,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

SETTINGS = RuleSettings(family=IpFamily.IPV4, detector=SourceRanges(("10.180.0.0/16",)))
IP = "172.30.0.1"


def words(old: ServiceView, new: ServiceView) -> list[str]:
    return [
        f"{change.key} {change.what}: {clause}"
        for change in port_changes(old, new)
        for clause in change.words
    ]


def test_ports_come_and_go() -> None:
    old, new = view_of(backed("a", IP)), view_of(backed("b", "172.30.0.2", [], affinity_s=9))
    assert words(old, new) == [
        "ns/a:p removed: cluster IP 172.30.0.1:80/tcp",
        "ns/a:p removed: 2 endpoints",
        "ns/b:p added: cluster IP 172.30.0.2:80/tcp",
        "ns/b:p added: session affinity 9 s",
        "ns/b:p added: 0 endpoints, traffic is refused",
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"node_port": 30001}, ["node port none → 30001"]),
        ({"external_ips": ("9.9.9.9",)}, {}, ["external IPs 9.9.9.9 → none"]),
        ({"affinity_s": 10}, {"affinity_s": 20}, ["session affinity 10 s → 20 s"]),
        ({}, {"internal_local": True}, ["internal traffic policy Cluster → Local"]),
        ({}, {"port": 81}, ["port 80 → 81"]),
    ],
)  # fmt: skip
def test_settings_change(
    before: dict[str, object], after: dict[str, object], said: list[str]
) -> None:
    ends = [HERE]
    old, new = view_of(backed("a", IP, ends, **before)), view_of(backed("a", IP, ends, **after))
    assert words(old, new) == [f"ns/a:p changed: {clause}" for clause in said]


def test_endpoints_change() -> None:
    old = view_of(backed("a", IP, [HERE, THERE]))
    new = view_of(backed("a", IP, [endpoint(HERE, local=False), "10.180.0.7:80"]))
    assert words(old, new) == [
        "ns/a:p changed: endpoint 10.180.0.7:80 added (on this node)",
        f"ns/a:p changed: endpoint {THERE} removed",
        f"ns/a:p changed: endpoint {HERE} is on another node now",
    ]


def test_the_last_endpoint_goes() -> None:
    some, none = view_of(backed("a", IP, [HERE])), view_of(backed("a", IP, []))
    leaving = endpoint(HERE, ready=False, serving=True, terminating=True)
    last = view_of(backed("a", IP, [leaving]))
    assert words(some, last) == [f"ns/a:p changed: endpoint {HERE} is terminating"]
    assert words(last, none) == [
        f"ns/a:p changed: endpoint {HERE} removed",
        "ns/a:p changed: traffic is refused",
    ]
    assert words(none, some)[-1] == "ns/a:p changed: endpoints are available again"


def test_nothing_here_any_more() -> None:
    old = view_of(backed("a", IP, [HERE, THERE], internal_local=True))
    new = view_of(backed("a", IP, [THERE], internal_local=True))
    assert words(old, new) == [
        f"ns/a:p changed: endpoint {HERE} removed",
        "ns/a:p changed: internal traffic has no endpoint on this node",
    ]


@pytest.mark.parametrize("mode", ["iptables", "nftables", "ipvs"])
def test_lines_lead_from_one_to_the_other(mode: str) -> None:
    """Taken away and put in, they make the new places of the old ones."""
    old = view_of(backed("a", IP, node_port=30001, affinity_s=5), backed("b", "172.30.0.2"))
    new = view_of(backed("a", IP, [HERE]), backed("c", "172.30.0.3", external_local=True))
    before, after = rendered(mode, old, SETTINGS).places, rendered(mode, new, SETTINGS).places
    changes = line_changes(before, after)
    assert changes
    for change in changes:
        removed = sorted(line for sign, line in change.lines if sign == "-")
        added = sorted(line for sign, line in change.lines if sign == "+")
        left = list(before.get(change.place, ()))
        for line in removed:
            left.remove(line)
        assert sorted(left + added) == sorted(after.get(change.place, ()))
    touched = {change.place for change in changes}
    for place in before.keys() | after.keys():
        assert place in touched or before.get(place, ()) == after.get(place, ())
    assert line_changes(before, before) == []


def test_only_what_differs_is_told() -> None:
    old = {"x": ("1", "2", "3"), "y": ("1",)}
    new = {"x": ("1", "9", "3"), "y": ("1",)}
    assert line_changes(old, new) == [LineChange(place="x", lines=(("-", "2"), ("+", "9")))]
