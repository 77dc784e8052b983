"""The node proxy's state: the order of events is no matter, and no object can break it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import (
    IpFamily,
    ObjectPort,
    PortProtocol,
    ServiceObject,
    SliceEndpoint,
    SliceObject,
    SlicePort,
    Update,
)
from isthmus.programs.node_proxy.rules.reading import (
    read_node,
    read_service,
    read_service_cidrs,
    read_slice,
    service_key,
    slice_key,
)
from isthmus.programs.node_proxy.rules.tracker import ZONE_LABEL, ServiceTracker

FAMILIES = (IpFamily.IPV4, IpFamily.IPV6)
PORTS = (
    ObjectPort(name="http", port=80, node_port=30000),
    ObjectPort(name="dns", port=53, protocol=PortProtocol.UDP),
)
names = st.builds(ServiceName, st.sampled_from(["ns", "other"]), st.sampled_from(["a", "b", "c"]))
services = st.builds(
    ServiceObject,
    name=names,
    cluster_ips=st.sampled_from([(), ("10.96.0.1",), ("fd00::1",), ("10.96.0.1", "fd00::1")]),
    ports=st.lists(st.sampled_from(PORTS), unique=True).map(tuple),
    internal_local=st.booleans(),
    external_local=st.booleans(),
    health_check_node_port=st.sampled_from([0, 32000]),
)


@st.composite
def slices(draw: st.DrawFn) -> SliceObject:
    family = draw(st.sampled_from(FAMILIES))
    six = family is IpFamily.IPV6
    endpoints = st.builds(
        SliceEndpoint,
        address=st.integers(1, 5).map(lambda i: f"fd01::{i:x}" if six else f"10.0.0.{i}"),
        node=st.sampled_from(["", "here", "there"]),
        ready=st.booleans(),
        serving=st.booleans(),
        terminating=st.booleans(),
        zone_hints=st.sampled_from([frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")]),
        node_hints=st.sampled_from([frozenset(), frozenset({"here"}), frozenset({"there"})]),
    )
    service = draw(names)
    return SliceObject(
        namespace=service.namespace,
        name=draw(st.sampled_from(["s1", "s2", "s3"])),
        service=service,
        family=family,
        ports=tuple(
            SlicePort(each.name, each.protocol, 8000 + each.port)
            for each in draw(st.lists(st.sampled_from(PORTS), unique=True))
        ),
        endpoints=tuple(draw(st.lists(endpoints, max_size=4))),
    )


events = st.lists(
    st.one_of(
        st.tuples(st.just("service"), services),
        st.tuples(st.just("slice"), slices()),
        st.tuples(st.just("gone"), services),
        st.tuples(st.just("slice gone"), slices()),
        st.tuples(st.just("zone"), st.sampled_from(["", "a", "b"])),
        st.tuples(st.just("take"), st.none()),
        st.tuples(st.just("list"), st.none()),
    ),
    max_size=40,
)


def tracker() -> ServiceTracker:
    return ServiceTracker(node_name="here", families=FAMILIES)


class World:
    """What there is, by the plainest means."""

    def __init__(self) -> None:
        self.services: dict[ServiceName, ServiceObject] = {}
        self.slices: dict[tuple[str, str], SliceObject] = {}
        self.zone = ""

    def happens(self, what: str, value: Any, told: ServiceTracker) -> None:
        match what:
            case "service":
                self.services[value.name] = value
                told.put_service(value)
            case "slice":
                self.slices[value.key] = value
                told.put_slice(value)
            case "gone":
                self.services.pop(value.name, None)
                told.drop_service(value.name)
            case "slice gone":
                self.slices.pop(value.key, None)
                told.drop_slice(*value.key)
            case "zone":
                self.zone = value
                told.set_node({ZONE_LABEL: value})
            case "list":
                self.list_to(told)
            case _:
                raise AssertionError(what)

    def list_to(self, told: ServiceTracker) -> None:
        told.replace_services(list(self.services.values()))
        told.replace_slices(list(self.slices.values()))


@given(events)
def test_any_way_there_gives_the_same_view(happened: list[tuple[str, Any]]) -> None:
    world, told = World(), tracker()
    before = told.take()
    for what, value in happened:
        if what == "take":
            before = check_step(before, told.take())
        else:
            world.happens(what, value, told)
    check_step(before, told.take())
    fresh = tracker()
    fresh.set_node({ZONE_LABEL: world.zone})
    world.list_to(fresh)
    want, got = fresh.take(), {family: last_view(told, family) for family in FAMILIES}
    for family in FAMILIES:
        assert got[family].view == want[family].view
        assert list(got[family].view.ports) == list(want[family].view.ports)
    assert told.local_ready() == fresh.local_ready()
    assert told.health_ports() == fresh.health_ports()


def last_view(told: ServiceTracker, family: IpFamily) -> Update:
    assert not any(side.dirty for side in told._sides.values())
    return told.take()[family]


def check_step(
    before: dict[IpFamily, Update], after: dict[IpFamily, Update]
) -> dict[IpFamily, Update]:
    """An update says what changed: no more, and no less; the rest are the same objects."""
    for family in FAMILIES:
        old, new = before[family].view.ports, after[family].view.ports
        really = {key.service for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        assert after[family].changed == really
        assert all(new[key] is old[key] for key in new if old.get(key) == new[key])
        texts = [(str(key), key.protocol.value) for key in new]
        assert texts == sorted(texts)
    return after


@given(st.permutations(range(6)), st.lists(slices(), min_size=6, max_size=6))
def test_slices_may_come_in_any_order(order: list[int], found: list[SliceObject]) -> None:
    name = ServiceName("ns", "a")
    apart = [
        replace(each, namespace="ns", name=f"s{i}", service=name) for i, each in enumerate(found)
    ]
    views = []
    for way in (range(6), order):
        told = tracker()
        ips = ("10.96.0.1", "fd00::1")
        told.put_service(ServiceObject(name=name, cluster_ips=ips, ports=PORTS))
        for i in way:
            told.put_slice(apart[i])
        views.append({family: update.view for family, update in told.take().items()})
    assert views[0] == views[1]


# Words of real objects, so that nonsense gets far.
WORDS = """metadata name namespace labels annotations spec status ports endpoints addresses
addressType conditions ready serving terminating hints forZones forNodes nodeName clusterIP
clusterIPs ipFamilies externalIPs loadBalancer ingress ip ipMode port nodePort protocol type
sessionAffinity sessionAffinityConfig clientIP timeoutSeconds loadBalancerSourceRanges podCIDRs
taints key cidrs kubernetes.io/service-name IPv4 IPv6 TCP UDP None 10.0.0.1 fd00::1 10.0.0.0/8
LoadBalancer ClientIP Local deletionTimestamp"""
words = st.sampled_from(WORDS.split())
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words | st.text()
garbage = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=8),
    max_leaves=30,
)
READERS = (read_service, read_slice, read_node, read_service_cidrs)


@given(garbage)
def test_no_json_raises(value: Any) -> None:
    text = json.dumps(value).encode()
    for read in READERS:
        check(read, text)
        check(read, {"metadata": {"name": "x", "namespace": "ns"}, "spec": value, "status": value})
    service_key(text)
    slice_key(text)


@given(st.binary(max_size=200))
def test_no_bytes_raise(value: bytes) -> None:
    for read in READERS:
        check(read, value)


def check(read: Any, value: Any) -> None:
    notes: list[str] = []
    found = read(value, notes)
    assert len(notes) <= 20
    assert all(isinstance(note, str) and len(note) < 300 for note in notes)
    told = tracker()
    if isinstance(found, ServiceObject):
        told.put_service(found)
    elif isinstance(found, SliceObject):
        told.put_slice(found)
    told.take()


@given(garbage, garbage, garbage)
def test_a_slice_with_nonsense_in_it_is_read_as_far_as_it_goes(
    ports: Any, endpoints: Any, hints: Any
) -> None:
    given = {
        "metadata": {
            "name": "x",
            "namespace": "ns",
            "labels": {"kubernetes.io/service-name": "a"},
        },
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": endpoints
        if isinstance(endpoints, list)
        else [{"addresses": ["10.0.0.1"], "hints": hints, "conditions": endpoints}],
    }
    notes: list[str] = []
    found = read_slice(json.dumps(given).encode(), notes)
    assert found is not None or notes
    check(read_slice, given)
