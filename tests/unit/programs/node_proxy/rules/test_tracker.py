"""The tracker: what is taken after which changes, what stays the same object, what is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import (
    IpFamily,
    ObjectBatch,
    ObjectPort,
    PortKey,
    PortProtocol,
    ServiceObject,
    SliceEndpoint,
    SliceObject,
    SlicePort,
    Update,
)
from isthmus.programs.node_proxy.rules.tracker import ZONE_LABEL, ServiceTracker

V4, V6 = IpFamily.IPV4, IpFamily.IPV6
HTTP = ObjectPort(name="http", port=80)
DNS = ObjectPort(name="dns", port=53, protocol=PortProtocol.UDP)


def named(name: str) -> ServiceName:
    return ServiceName("ns", name)


def key(name: str, port: ObjectPort = HTTP) -> PortKey:
    return PortKey(named(name), port.name, port.protocol)


def service(name: str, *ports: ObjectPort, ip: str = "10.96.0.1", **more: object) -> ServiceObject:
    made = ServiceObject(name=named(name), cluster_ips=(ip,), ports=ports or (HTTP,))
    return replace(made, **more)  # type: ignore[arg-type]


def endpoint(address: str, **more: object) -> SliceEndpoint:
    return SliceEndpoint(address=address, **more)  # type: ignore[arg-type]


def slice_of(
    service: str,
    *endpoints: SliceEndpoint | str,
    name: str = "",
    ports: tuple[ObjectPort, ...] = (HTTP,),
    family: IpFamily = V4,
    changed_at: float = 0.0,
) -> SliceObject:
    return SliceObject(
        namespace="ns",
        name=name or f"{service}-1",
        service=named(service),
        family=family,
        ports=tuple(SlicePort(each.name, each.protocol, 8000 + each.port) for each in ports),
        endpoints=tuple(endpoint(e) if isinstance(e, str) else e for e in endpoints),
        changed_at=changed_at,
    )


@pytest.fixture
def tracker() -> ServiceTracker:
    return ServiceTracker(node_name="here", families=[V4], since=100.0)


def four(tracker: ServiceTracker) -> Update:
    assert tracker.pending
    return tracker.take()[V4]


def reached(update: Update, name: str, port: ObjectPort = HTTP) -> list[str]:
    return [str(each) for each in update.view.ports[key(name, port)].backends.reachable]


def test_it_is_synced_when_both_were_listed(tracker: ServiceTracker) -> None:
    states = [tracker.synced]
    tracker.put_service(service("a"))
    tracker.put_slice(slice_of("a"))
    states.append(tracker.synced)
    tracker.replace_services([service("a")])
    states.append(tracker.synced)
    tracker.replace_slices([])
    assert [*states, tracker.synced] == [False, False, False, True]
    assert repr(tracker) == "<ServiceTracker 1 services, 0 slices>"


def test_an_empty_cluster_is_pending_once(tracker: ServiceTracker) -> None:
    assert not tracker.pending
    tracker.replace_services([])
    tracker.replace_slices([])
    update = four(tracker)
    assert update.view.ports == {}
    assert update.changed == set()
    assert not tracker.pending


def test_services_and_slices_make_ports_in_either_order(tracker: ServiceTracker) -> None:
    tracker.replace_slices([slice_of("a", "10.0.0.2", "10.0.0.1"), slice_of("none", "10.0.0.9")])
    tracker.replace_services([service("b", ip="10.96.0.2"), service("a", HTTP, DNS)])
    update = four(tracker)
    assert list(map(str, update.view.ports)) == ["ns/a:dns", "ns/a:http", "ns/b:http"]
    assert reached(update, "a") == ["10.0.0.1:8080", "10.0.0.2:8080"]
    assert reached(update, "a", DNS) == []
    assert update.changed == {named("a"), named("b")}
    assert update.view.endpoints == 2
    assert update.services == 2
    assert update.endpoint_slices == 2


def test_what_did_not_change_is_the_same_object(tracker: ServiceTracker) -> None:
    tracker.replace_services([service("a"), service("b", HTTP, DNS)])
    tracker.replace_slices(
        [slice_of("a", "10.0.0.1"), slice_of("b", "10.0.0.2", ports=(HTTP, DNS))]
    )
    before = four(tracker).view.ports
    tracker.put_slice(slice_of("b", "10.0.0.2", "10.0.0.3", ports=(HTTP,)))
    tracker.put_slice(slice_of("b", "10.0.0.2", name="b-dns", ports=(DNS,)))
    update = four(tracker)
    after = update.view.ports
    assert update.changed == {named("b")}
    assert after[key("a")] is before[key("a")]
    assert after[key("b", DNS)] is before[key("b", DNS)]
    assert after[key("b")] is not before[key("b")]
    assert not update.udp
    assert before[key("b")].backends.cluster != after[key("b")].backends.cluster  # not touched


def test_a_listing_of_the_same_is_no_change(tracker: ServiceTracker) -> None:
    def listing() -> None:
        tracker.replace_services([service("a")])
        tracker.replace_slices([slice_of("a", "10.0.0.1")])

    listing()
    before = four(tracker)
    listing()
    assert not tracker.pending
    after = tracker.take()[V4]
    assert after.changed == set()
    assert after.view.ports == before.view.ports
    assert (after.services, after.endpoint_slices) == (0, 0)


def test_what_changes_there_and_back_is_no_change(tracker: ServiceTracker) -> None:
    tracker.replace_services([service("a")])
    tracker.replace_slices([slice_of("a", "10.0.0.1")])
    before = four(tracker).view.ports[key("a")]
    tracker.put_service(service("a", ip="10.96.0.9"))
    tracker.put_service(service("a"))
    update = four(tracker)
    assert update.changed == set()
    assert update.view.ports[key("a")] is before
    assert update.services == 2


def test_a_listing_without_it_drops(tracker: ServiceTracker) -> None:
    tracker.replace_services([service("a"), service("b")])
    tracker.replace_slices([slice_of("a", "10.0.0.1"), slice_of("b", "10.0.0.2")])
    four(tracker)
    tracker.replace_services([service("b")])
    tracker.replace_slices([])
    update = four(tracker)
    assert list(update.view.ports) == [key("b")]
    assert update.changed == {named("a"), named("b")}
    assert update.view.endpoints == 0


def test_services_come_and_go(tracker: ServiceTracker) -> None:
    tracker.replace_services([])
    tracker.replace_slices([])
    tracker.hear_services(ObjectBatch(put=[service("c"), service("a")]))
    assert tracker.pending_services == 2
    assert list(map(str, four(tracker).view.ports)) == ["ns/a:http", "ns/c:http"]
    assert tracker.pending_services == 0
    tracker.hear_services(ObjectBatch(put=[service("b")], drop=[named("a"), named("none")]))
    update = four(tracker)
    assert list(map(str, update.view.ports)) == ["ns/b:http", "ns/c:http"]
    assert update.changed == {named("a"), named("b")}
    tracker.drop_service(named("a"))
    assert not tracker.pending
    # One that is not ours any more goes too.
    tracker.put_service(ServiceObject(name=named("b")))
    assert list(four(tracker).view.ports) == [key("c")]


def test_slices_come_and_go(tracker: ServiceTracker) -> None:
    tracker.hear_services(ObjectBatch(put=[service("a")], complete=True))
    tracker.hear_slices(ObjectBatch(put=[slice_of("a", "10.0.0.1")], complete=True))
    four(tracker)
    more = slice_of("a", "10.0.0.2", name="a-2")
    tracker.hear_slices(ObjectBatch(put=[more]))
    assert tracker.pending_slices == 1
    assert reached(four(tracker), "a") == ["10.0.0.1:8080", "10.0.0.2:8080"]
    tracker.hear_slices(ObjectBatch(drop=[("ns", "a-1"), ("ns", "none")]))
    assert reached(four(tracker), "a") == ["10.0.0.2:8080"]
    tracker.hear_slices(ObjectBatch(complete=True))
    update = four(tracker)
    assert update.view.ports[key("a")].backends.exist is False


def test_a_port_that_is_renamed_is_another(tracker: ServiceTracker) -> None:
    tracker.replace_services([service("a")])
    tracker.replace_slices([slice_of("a", "10.0.0.1")])
    four(tracker)
    web = replace(HTTP, name="web")
    tracker.put_service(service("a", web))
    update = four(tracker)
    assert list(update.view.ports) == [key("a", web)]
    assert reached(update, "a", web) == []
    assert update.view.endpoints == 0
    tracker.put_slice(slice_of("a", "10.0.0.1", ports=(web,)))
    assert reached(four(tracker), "a", web) == ["10.0.0.1:8080"]


def test_endpoints_that_are_not_used_count_but_change_nothing(tracker: ServiceTracker) -> None:
    tracker.replace_services([service("a")])
    tracker.replace_slices([slice_of("a", "10.0.0.1")])
    four(tracker)
    idle = endpoint("10.0.0.2", ready=False, serving=False)
    tracker.put_slice(slice_of("a", "10.0.0.1", idle))
    update = four(tracker)
    assert update.view.endpoints == 2
    assert update.changed == set()


def test_families_are_apart() -> None:
    tracker = ServiceTracker(node_name="here", families=[V4, V6])
    both = service("a", cluster_ips=("10.96.0.1", "fd00::1"))
    tracker.replace_services([both, service("b")])
    tracker.replace_slices([slice_of("a", "10.0.0.1")])
    taken = tracker.take()
    assert list(taken) == [V4, V6]
    assert taken[V6].view.family is V6
    assert taken[V6].changed == {named("a")}
    assert taken[V6].view.ports[key("a")].port.cluster_ip == "fd00::1"
    tracker.put_slice(slice_of("a", "fd00::9", name="six", family=V6))
    taken = tracker.take()
    assert taken[V4].changed == set()
    assert taken[V4].endpoint_slices == 0
    assert taken[V6].changed == {named("a")}
    assert reached(taken[V6], "a") == ["[fd00::9]:8080"]


def test_a_family_that_is_not_asked_for_is_nothing(tracker: ServiceTracker) -> None:
    tracker.replace_services([])
    tracker.replace_slices([])
    tracker.take()
    tracker.put_slice(slice_of("a", "fd00::1", family=V6))
    tracker.drop_slice("ns", "a-1")
    assert not tracker.pending


def test_a_slice_that_goes_over_changes_both_services(tracker: ServiceTracker) -> None:
    tracker.replace_services([service("a"), service("b")])
    tracker.replace_slices([slice_of("a", "10.0.0.1", name="s")])
    four(tracker)
    tracker.put_slice(slice_of("b", "10.0.0.1", name="s"))
    update = four(tracker)
    assert update.changed == {named("a"), named("b")}
    assert reached(update, "a") == []
    assert reached(update, "b") == ["10.0.0.1:8080"]


def test_changed_endpoints_of_udp_ports_are_told(tracker: ServiceTracker) -> None:
    tracker.replace_services([service("a"), service("d", DNS, HTTP)])
    tracker.replace_slices([slice_of("a", "10.0.0.1")])
    assert four(tracker).udp  # the kernel may remember what was before us
    tracker.put_slice(slice_of("a", "10.0.0.2"))
    assert not four(tracker).udp
    tracker.put_slice(slice_of("d", "10.0.0.3", ports=(DNS,)))
    assert four(tracker).udp
    leaving = endpoint("10.0.0.3", ready=False, serving=True, terminating=True)
    tracker.put_slice(slice_of("d", leaving, "10.0.0.4", ports=(DNS,)))
    update = four(tracker)
    assert update.udp
    # No new flow goes to the one that leaves, but flows that are there may stay.
    backends = update.view.ports[key("d", DNS)].backends
    assert [each.ip for each in backends.reachable] == ["10.0.0.4"]
    assert [each.ip for each in backends.serving] == ["10.0.0.3", "10.0.0.4"]
    tracker.put_service(service("d", DNS, replace(HTTP, port=81)))
    assert not four(tracker).udp
    tracker.drop_service(named("d"))
    assert four(tracker).udp


def test_times_of_changes_are_told_once(tracker: ServiceTracker) -> None:
    tracker.replace_services([service("a"), service("b")])
    tracker.replace_slices([slice_of("a", "10.0.0.1", changed_at=99.0)])  # before our time
    assert four(tracker).triggers == ()
    tracker.put_slice(slice_of("a", "10.0.0.2", changed_at=101.0))
    tracker.put_slice(slice_of("a", "10.0.0.2", changed_at=102.0))  # no change
    tracker.put_slice(slice_of("a", "10.0.0.3", changed_at=103.0))
    tracker.put_slice(slice_of("b", "10.0.0.4", changed_at=104.0))
    tracker.put_slice(slice_of("b", "10.0.0.5", name="b-2"))
    assert sorted(four(tracker).triggers) == [101.0, 103.0, 104.0]
    tracker.put_slice(slice_of("a", "10.0.0.6", changed_at=105.0))
    tracker.drop_slice("ns", "a-1")  # its time is not that of its end
    assert four(tracker).triggers == ()
    for at in range(1000):
        tracker.put_slice(slice_of("b", f"10.0.{at % 2}.1", changed_at=200.0 + at))
    assert len(four(tracker).triggers) == 100


def test_the_zone_of_the_node_chooses(tracker: ServiceTracker) -> None:
    a, b = (endpoint(f"10.0.0.{i}", zone_hints=frozenset(zone)) for i, zone in ((1, "a"), (2, "b")))
    tracker.replace_services([service("hinted"), service("plain")])
    tracker.replace_slices([slice_of("hinted", a, b), slice_of("plain", "10.0.0.9")])
    assert reached(four(tracker), "hinted") == ["10.0.0.1:8080", "10.0.0.2:8080"]
    tracker.set_node({ZONE_LABEL: "b"})
    update = four(tracker)
    assert update.changed == {named("hinted")}
    assert reached(update, "hinted") == ["10.0.0.2:8080"]
    tracker.set_node({ZONE_LABEL: "b", "other": "label"})
    assert not tracker.pending
    tracker.set_node({})
    assert reached(four(tracker), "hinted") == ["10.0.0.1:8080", "10.0.0.2:8080"]


def test_health_ports_and_what_is_ready_here() -> None:
    tracker = ServiceTracker(node_name="here", families=[V4, V6])
    checked = service(
        "a",
        HTTP,
        cluster_ips=("10.96.0.1", "fd00::1"),
        external_local=True,
        health_check_node_port=32000,
    )
    other = replace(HTTP, name="other", port=81)
    here = [endpoint(f"10.0.0.{i}", node="here") for i in (1, 2)]
    leaving = endpoint("10.0.0.3", node="here", ready=False, terminating=True)
    far = endpoint("10.0.0.4", node="there")
    tracker.replace_services([checked, service("b")])
    tracker.replace_slices(
        [
            # Two ports of two pods are two, not four; a port that the Service has not counts.
            slice_of("a", *here, leaving, far, ports=(HTTP, other)),
            slice_of("a", endpoint("fd00::2", node="here"), family=V6, name="six"),
            slice_of("b", *here),
        ]
    )
    assert tracker.health_ports() == {}  # not before it is taken
    tracker.take()
    assert tracker.health_ports() == {named("a"): 32000}
    assert tracker.local_ready() == {named("a"): 2}
    tracker.put_slice(slice_of("a", leaving, far))
    tracker.drop_slice("ns", "six")
    tracker.take()
    assert tracker.local_ready() == {named("a"): 0}
    tracker.put_service(replace(checked, health_check_node_port=0))
    tracker.take()
    assert tracker.health_ports() == {}
    assert tracker.local_ready() == {}
    tracker.put_service(checked)
    tracker.take()
    assert tracker.health_ports() == {named("a"): 32000}
    tracker.drop_service(named("a"))
    tracker.take()
    assert tracker.health_ports() == {}
