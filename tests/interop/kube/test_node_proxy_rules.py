"""The same objects given to kube-proxy and to ``isthmus node-proxy``: the same rules in the kernel.

One set of objects has every kind of Service, so that one start of each program with some flags
shows all of them; then changes, after which what is written piece by piece is what a new start
writes at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import TypeVar

import pytest
from kube.api import Api
from kube.node_proxy_changes import CHANGES, Change
from kube.node_proxy_ground import SERVICE_RANGES, Nodes
from kube.node_proxy_kinds import ELSEWHERE, NEARBY, OTHER_NAMESPACE, OTHER_ZONE, kinds, large
from kube.node_proxy_objects import Objects, marker
from kube.node_proxy_programs import Kind, Proxy, proxy
from kube.node_proxy_rules import Rules, differences, parse
from kube.node_proxy_writing import (
    add_service_cidrs,
    move_node,
    write,
    write_namespaces,
    write_node,
)

Found = TypeVar("Found")
pytestmark = pytest.mark.interop

CIDRS = "--cluster-cidr=10.180.0.0/16,fd00:180::/48"
NO_DETECTOR = ("--detect-local-mode=ClusterCIDR",)  # and no CIDR
# Said of both; what a mode does not know, its list leaves out.
FLAGS = {
    "cluster-cidr": (CIDRS,),
    "node-cidr": ("--detect-local-mode=NodeCIDR",),
    "bridge": ("--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cbr0"),
    "prefix": ("--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"),
    "nothing": NO_DETECTOR,
    "one-family": ("--cluster-cidr=10.180.0.0/16",),
    "masquerade-all": (CIDRS, "--masquerade-all"),
    "masquerade-all-nothing": (*NO_DETECTOR, "--masquerade-all"),
    "node-port-addresses": (CIDRS, "--nodeport-addresses=192.168.50.0/24,fd00:50::/64"),
    "node-port-addresses-v4": (CIDRS, "--nodeport-addresses=192.168.50.0/24,127.0.0.0/8"),
    "node-port-primary": (CIDRS, "--nodeport-addresses=primary"),
}
IPTABLES_FLAGS = {
    "no-localhost-node-ports": (CIDRS, "--iptables-localhost-nodeports=false"),
    "masquerade-bit": (CIDRS, "--iptables-masquerade-bit=20"),
}
MODES = ("iptables", "nftables")
CASES = [
    *((mode, name) for mode in MODES for name in FLAGS),
    *(("iptables", name) for name in IPTABLES_FLAGS),
]
MORE_CIDRS = ("10.240.0.0/24", "fd00:10:240::/112")
_FIRST = 1
_SETTLED_S = 20.0
_LOOK_AGAIN_S = 0.1
# What is counted of rules has to be equal as well.
_COUNTED = ("_iptables_total", "_no_local_endpoints_total")


@contextlib.contextmanager
def api_with(ground: Nodes, objects: Objects) -> Iterator[Api]:
    """Run an apiserver that has the Node and these objects."""
    with ground.apiserver() as api:
        write_node(api)
        write_namespaces(api, OTHER_NAMESPACE)
        write(api, objects.services, objects.slices)
        last, _ = marker(_FIRST)
        write(api, last.services, last.slices)
        yield api


@pytest.fixture(scope="module")
def unchanged(ground: Nodes) -> Iterator[Api]:
    """An API with every kind of Service that nobody changes."""
    with api_with(ground, kinds()) as api:
        yield api


@contextlib.contextmanager
def both(ground: Nodes, api: Api, mode: str, flags: Sequence[str]) -> Iterator[tuple[Proxy, Proxy]]:
    """Run ours and kube-proxy, side by side, until both have programmed all there is."""
    with (
        proxy(ground, api, Kind.ISTHMUS, mode, flags) as ours,
        kube_proxy(ground, api, mode, flags) as theirs,
    ):
        ours.wait_shows(mode, *_started(), without=ELSEWHERE)
        yield ours, theirs


@contextlib.contextmanager
def kube_proxy(ground: Nodes, api: Api, mode: str, flags: Sequence[str]) -> Iterator[Proxy]:
    """Run kube-proxy, again if it wrote its rules before it knew its zone or Services' ranges.

    It writes those only when it writes everything, and an hour may pass before it does so again.
    """
    wanted = (*_started(), *(SERVICE_RANGES.split(",") if mode == "nftables" else ()))
    for last in (False, False, True):
        with proxy(ground, api, Kind.KUBE_PROXY, mode, flags) as theirs:
            if last:
                theirs.wait_shows(mode, *wanted, without=ELSEWHERE)
            elif not theirs.soon_shows(mode, *wanted, without=ELSEWHERE):
                continue
            yield theirs
            return


def _started() -> tuple[str, ...]:
    """What stands in the rules, without ``ELSEWHERE``, when all is programmed for this zone."""
    _, shown = marker(_FIRST)
    return (*shown, *NEARBY)


def rules(one: Proxy, mode: str) -> dict[str, Rules]:
    return {family: parse(mode, text) for family, text in one.rules(mode).items()}


def counted(one: Proxy) -> dict[str, float]:
    return {k: v for k, v in one.metrics().items() if any(word in k for word in _COUNTED)}


def full_syncs(one: Proxy) -> dict[str, float]:
    name = "kubeproxy_sync_full_proxy_rules_duration_seconds_count"
    found = one.metrics(name)
    return {family: found[f'{name}{{ip_family="{family}"}}'] for family in ("IPv4", "IPv6")}


def wait_same(mode: str, ours: Proxy, theirs: Proxy) -> None:
    """Wait until the rules are the same: what one has seen already may reach the other later."""
    found = _settled(lambda: _different(rules(ours, mode), rules(theirs, mode)))
    shown = "\n".join(found[:60])
    assert not found, f"{len(found)} lines differ (- kube-proxy's, + ours):\n{shown}"


def wait_counted_alike(ours: Proxy, theirs: Proxy) -> None:
    """Wait until both count the same: numbers are set after the rules they are of."""
    found = _settled(lambda: sorted(counted(ours).items() ^ counted(theirs).items()))
    assert not found, f"counted by one of them only: {found}"


def _settled(look: Callable[[], list[Found]]) -> list[Found]:
    """What is still found when it was looked for some time; nothing is the end of looking."""
    deadline = time.monotonic() + _SETTLED_S
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    return found


def _different(ours: dict[str, Rules], theirs: dict[str, Rules]) -> list[str]:
    return [
        f"{family} {line}"
        for family in theirs
        for line in differences(ours[family], theirs[family])
    ]


@pytest.mark.parametrize(("mode", "name"), CASES)
def test_every_kind_of_service_is_programmed_as_kube_proxy_does(
    ground: Nodes, unchanged: Api, mode: str, name: str
) -> None:
    flags = (FLAGS | IPTABLES_FLAGS)[name]
    with both(ground, unchanged, mode, flags) as (ours, theirs):
        wait_same(mode, ours, theirs)
        wait_counted_alike(ours, theirs)


@pytest.mark.timeout(300)
def test_a_large_cluster_is_programmed_as_kube_proxy_does(ground: Nodes) -> None:
    with api_with(ground, large()) as api:
        for mode in MODES:
            with both(ground, api, mode, FLAGS["cluster-cidr"]) as (ours, theirs):
                wait_same(mode, ours, theirs)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_changes_written_piece_by_piece_give_what_a_new_start_gives(
    ground: Nodes, mode: str
) -> None:
    objects = kinds()
    flags = (CIDRS, "--iptables-min-sync-period=10ms")
    with api_with(ground, objects) as api, both(ground, api, mode, flags) as (ours, theirs):
        for number, change in enumerate(CHANGES, start=_FIRST + 1):
            shown = _apply(api, change, deepcopy(objects), number)
            for one in (theirs, ours):
                one.wait_shows(mode, *shown)
            wait_same(mode, ours, theirs)
        assert full_syncs(ours) == {"IPv4": 1, "IPv6": 1}
        _move(api, mode, ours, theirs)
        wait_same(mode, ours, theirs)
        with proxy(ground, api, Kind.ISTHMUS, mode, flags) as new:
            new.wait_shows(mode, *shown, *ELSEWHERE, without=NEARBY)
            wait_same(mode, ours, new)


def _move(api: Api, mode: str, ours: Proxy, theirs: Proxy) -> None:
    """Give Services one more range, and the node another zone; wait until both have seen it."""
    add_service_cidrs(api, "more", *MORE_CIDRS)
    # kube-proxy writes the ranges only when it writes everything, as for another zone.
    if mode == "nftables":
        ours.wait_shows(mode, *MORE_CIDRS)
    move_node(api, OTHER_ZONE)
    cidrs = MORE_CIDRS if mode == "nftables" else ()
    for one in (theirs, ours):
        one.wait_shows(mode, *ELSEWHERE, *cidrs, without=NEARBY)


def _apply(api: Api, change: Change, objects: Objects, number: int) -> tuple[str, ...]:
    """Make a change, then what shows that it was seen."""
    change(api, objects)
    last, shown = marker(number)
    write(api, last.services, last.slices)
    return shown
