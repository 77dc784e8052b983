"""EndpointSlices read and kept: what kube-proxy's endpointslicecache_test asks, and more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import (
    Endpoint,
    IpFamily,
    PortProtocol,
    SliceEndpoint,
    SliceObject,
    SlicePort,
)
from isthmus.programs.node_proxy.rules.reading import read_slice, slice_key
from isthmus.programs.node_proxy.rules.tracker import EndpointsByPort, SliceCache

SVC = ServiceName("ns1", "svc1")
FAR = 999


def made(
    service: str,
    namespace: str,
    number: int,
    count: int,
    *,
    unready: int = FAR,
    leaving: int = FAR,
    hosts: tuple[str, ...] = (),
    ports: tuple[int | None, ...] = (80,),
    name: str = "",
) -> dict[str, Any]:
    """A slice with endpoints 10.0.number.1 and so on; every so many unready, or leaving."""

    def endpoint(i: int) -> dict[str, Any]:
        gone = i % leaving == 0
        return {
            "addresses": [f"10.0.{number}.{i}"],
            "conditions": {
                "ready": not (gone or i % unready == 0),
                "serving": gone or i % unready != 0,
                "terminating": gone,
            },
            **({"nodeName": hosts[i % len(hosts)]} if hosts else {}),
        }

    return {
        "metadata": {
            "namespace": namespace,
            "name": name or f"{service}-{number}",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [
            {"name": f"port-{i}", "port": port, "protocol": "TCP"} for i, port in enumerate(ports)
        ],
        "endpoints": [endpoint(i) for i in range(1, count + 1)],
    }


def read(given: dict[str, Any]) -> SliceObject:
    found = read_slice(json.dumps(given).encode(), [])
    assert found is not None
    assert read_slice(given, []) == found
    return found


def endpoints(*given: dict[str, Any], node: str = "") -> EndpointsByPort:
    cache = SliceCache()
    for each in given:
        cache.put(read(each))
    return cache.endpoints(SVC, IpFamily.IPV4, node)


def texts(found: EndpointsByPort, port: int = 0) -> list[str]:
    return [str(each) for each in found[f"port-{port}", PortProtocol.TCP]]


def test_every_port_has_every_endpoint() -> None:
    found = endpoints(
        made("svc1", "ns1", 1, 3, hosts=("host1", "host2"), ports=(80, 443)), node="host1"
    )
    assert found.keys() == {("port-0", PortProtocol.TCP), ("port-1", PortProtocol.TCP)}
    assert texts(found) == ["10.0.1.1:80", "10.0.1.2:80", "10.0.1.3:80"]
    assert texts(found, 1) == ["10.0.1.1:443", "10.0.1.2:443", "10.0.1.3:443"]
    assert [each.local for each in found["port-0", PortProtocol.TCP]] == [False, True, False]


def test_a_program_that_does_not_know_its_node_has_nothing_local() -> None:
    given = made("svc1", "ns1", 1, 2)
    assert not any(each.local for each in endpoints(given)["port-0", PortProtocol.TCP])


def test_slices_of_a_service_are_one() -> None:
    two = endpoints(made("svc1", "ns1", 1, 2), made("svc1", "ns1", 2, 2))
    assert texts(two) == ["10.0.1.1:80", "10.0.1.2:80", "10.0.2.1:80", "10.0.2.2:80"]
    overlapping = endpoints(made("svc1", "ns1", 1, 3), made("svc1", "ns1", 1, 4, name="other"))
    assert texts(overlapping) == ["10.0.1.1:80", "10.0.1.2:80", "10.0.1.3:80", "10.0.1.4:80"]


def test_endpoints_are_sorted_by_their_text() -> None:
    found = endpoints(made("svc1", "ns1", 1, 10))
    assert texts(found)[:3] == ["10.0.1.10:80", "10.0.1.1:80", "10.0.1.2:80"]


def test_slices_of_others_are_apart() -> None:
    found = endpoints(
        made("svc1", "ns1", 1, 3), made("svc2", "ns1", 2, 3), made("svc1", "ns2", 3, 3)
    )
    assert texts(found) == ["10.0.1.1:80", "10.0.1.2:80", "10.0.1.3:80"]


def test_one_address_at_two_ports_is_two_endpoints() -> None:
    found = endpoints(
        made("svc1", "ns1", 1, 2, name="a"), made("svc1", "ns1", 1, 2, ports=(8080,), name="b")
    )
    assert texts(found) == ["10.0.1.1:80", "10.0.1.1:8080", "10.0.1.2:80", "10.0.1.2:8080"]


def test_ports_without_a_number_or_name_are_ignored() -> None:
    assert endpoints(made("svc1", "ns1", 1, 3, ports=(None,))) == {}
    assert endpoints(made("svc1", "ns1", 1, 3, ports=(0,))) == {}
    given = made("svc1", "ns1", 1, 3)
    given["ports"][0]["name"] = None
    notes: list[str] = []
    found = read_slice(given, notes)
    assert found is not None
    assert found.ports == ()
    assert notes == ["EndpointSlice ns1/svc1-1: port without a name"]
    # The API would have given a file's port the empty name.
    found = read_slice(given, [], from_file=True)
    assert found is not None
    assert found.ports == (SlicePort("", PortProtocol.TCP, 80),)
    given["ports"][0]["name"] = ""
    assert ("", PortProtocol.TCP) in endpoints(given)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (2, 0, 1)])
@pytest.mark.parametrize("apart", [False, True])
def test_of_two_at_one_place_the_one_that_stays_wins(order: tuple[int, ...], apart: bool) -> None:
    states = [
        {"ready": False, "serving": True, "terminating": True},
        {"ready": True, "serving": True, "terminating": False},
        {"ready": False, "serving": False, "terminating": True},
    ]
    all_of_them = [{"addresses": ["10.0.1.1"], "conditions": states[i]} for i in order]
    if apart:
        given = [
            {**made("svc1", "ns1", 1, 0, name=f"slice-{i}"), "endpoints": [each]}
            for i, each in enumerate(all_of_them)
        ]
    else:
        given = [{**made("svc1", "ns1", 1, 0), "endpoints": all_of_them}]
    assert endpoints(*given)["port-0", PortProtocol.TCP] == (Endpoint(ip="10.0.1.1", port=80),)


def test_the_order_in_which_slices_came_is_no_matter() -> None:
    ready = made("svc1", "ns1", 1, 1, name="a")
    unready = made("svc1", "ns1", 1, 1, unready=1, name="b")
    assert endpoints(ready, unready) == endpoints(unready, ready)


def test_conditions_that_are_not_said() -> None:
    given = made("svc1", "ns1", 1, 0)
    given["endpoints"] = [
        {"addresses": ["10.0.0.1"]},
        {"addresses": ["10.0.0.2"], "conditions": {}},
        {"addresses": ["10.0.0.3"], "conditions": {"ready": None, "terminating": None}},
        {"addresses": ["10.0.0.4"], "conditions": {"ready": False}},
        {"addresses": ["10.0.0.5"], "conditions": {"serving": False, "terminating": True}},
    ]
    states = [(e.ready, e.serving, e.terminating) for e in read(given).endpoints]
    assert states == [(True, True, False)] * 3 + [(False, True, False), (True, False, True)]


def test_only_the_first_address_counts() -> None:
    given = made("svc1", "ns1", 1, 0)
    given["endpoints"] = [{"addresses": ["10.0.0.1", "10.0.0.2"]}]
    assert texts(endpoints(given)) == ["10.0.0.1:80"]


def test_bad_addresses_are_left_out_and_said() -> None:
    given = made("svc1", "ns1", 1, 0)
    bad: list[list[str] | None] = [None, [], ["x"], ["fd00::1"], ["10.0.0.300"]]
    given["endpoints"] = [{"addresses": each} for each in bad] + [{"addresses": ["010.0.0.1"]}]
    notes: list[str] = []
    found = read_slice(given, notes)
    assert found is not None
    assert found.endpoints == (SliceEndpoint(address="10.0.0.1"),)
    assert len(notes) == 5
    assert notes[2] == "EndpointSlice ns1/svc1-1: invalid IPv4 address: 'x'"


def test_ipv6_is_written_canonically() -> None:
    given = {**made("svc1", "ns1", 1, 0), "addressType": "IPv6"}
    given["endpoints"] = [{"addresses": ["FD00:0:0::1"]}]
    cache = SliceCache()
    cache.put(read(given))
    (found,) = cache.endpoints(SVC, IpFamily.IPV6, "")["port-0", PortProtocol.TCP]
    assert str(found) == "[fd00::1]:80"
    assert cache.endpoints(SVC, IpFamily.IPV4, "") == {}


def test_hints_are_read_and_shared() -> None:
    given = made("svc1", "ns1", 1, 2)
    for each in given["endpoints"]:
        each["hints"] = {"forZones": [{"name": "a"}, {"name": "b"}], "forNodes": [{"name": "n"}]}
    one, two = read(given).endpoints
    assert one.zone_hints == {"a", "b"}
    assert one.node_hints == {"n"}
    assert one.zone_hints is two.zone_hints


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T00:01:00.25Z", 60.25),
        ("1970-01-01T01:01:00.250000000+01:00", 60.25),
        ("1970-01-01", 0.0),
        ("1970-13-01T00:01:00Z", 0.0),
        ("soon", 0.0),
        ("", 0.0),
    ],
)
def test_the_time_of_the_change_behind_it(text: str, at: float) -> None:
    given = made("svc1", "ns1", 1, 1)
    given["metadata"]["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": text}
    assert read(given).changed_at == at


NOT_OURS: dict[str, dict[str, Any]] = {
    "names instead of addresses": {"addressType": "FQDN"},
    "no kind of address": {"addressType": None},
    "of pods that only DNS knows": {
        "metadata": {
            "namespace": "ns1",
            "name": "x",
            "labels": {"kubernetes.io/service-name": "s", "service.kubernetes.io/headless": ""},
        }
    },
    # The API allows both; whoever made it has another use for it.
    "without the label of a Service": {"metadata": {"namespace": "ns", "name": "x"}},
    "with an empty label of a Service": {
        "metadata": {"namespace": "ns", "name": "x", "labels": {"kubernetes.io/service-name": ""}}
    },
}


@pytest.mark.parametrize("change", NOT_OURS.values(), ids=NOT_OURS.keys())
def test_slices_that_are_not_ours_are_nothing_and_nothing_is_said(change: dict[str, Any]) -> None:
    notes: list[str] = []
    assert read_slice({**made("svc1", "ns1", 1, 1), **change}, notes) is None
    assert notes == []


@pytest.mark.parametrize(
    "meta",
    [
        {"namespace": "ns", "name": "x", "labels": {"kubernetes.io/service-name": "two words"}},
        {"name": "x", "labels": {"kubernetes.io/service-name": "s"}},
        {"namespace": "ns", "labels": {"kubernetes.io/service-name": "s"}},
    ],
)
def test_slices_of_no_service_are_nothing_and_that_is_said(meta: dict[str, Any]) -> None:
    notes: list[str] = []
    assert read_slice({**made("svc1", "ns1", 1, 1), "metadata": meta}, notes) is None
    assert len(notes) == 1


def test_lists_may_be_null_as_go_writes_empty_ones() -> None:
    assert read({**made("svc1", "ns1", 1, 1), "ports": None, "endpoints": None}).endpoints == ()


def test_a_name_is_read_of_what_else_cannot_be() -> None:
    given = {**made("svc1", "ns1", 1, 1), "endpoints": 5}
    notes: list[str] = []
    assert read_slice(given, notes) is None
    assert notes[0].startswith("EndpointSlice ns1/svc1-1: Expected")
    assert slice_key(given) == ("ns1", "svc1-1")
    assert slice_key({"metadata": {"name": "x"}}) is None
    assert slice_key(b"{") is None


def test_the_cache_says_what_differs() -> None:
    cache = SliceCache()
    first = read(made("svc1", "ns1", 1, 2))
    assert cache.put(first) == [first]
    assert cache.put(read(made("svc1", "ns1", 1, 2))) == []
    assert cache.put(read(made("svc1", "ns1", 1, 3))) == [read(made("svc1", "ns1", 1, 3))]
    assert cache.drop(("ns1", "none")) == []
    assert len(cache) == 1
    assert cache.drop(first.key) == [read(made("svc1", "ns1", 1, 3))]
    assert len(cache) == 0
    assert cache.endpoints(SVC, IpFamily.IPV4, "") == {}
    assert cache._of == {}  # nothing is left of Services that went


def test_a_slice_may_go_over_to_another_service() -> None:
    cache = SliceCache()
    old, new = read(made("svc1", "ns1", 1, 2)), read(made("svc2", "ns1", 1, 2, name="svc1-1"))
    cache.put(old)
    assert cache.put(new) == [new, old]
    assert cache.endpoints(SVC, IpFamily.IPV4, "") == {}
    assert cache.endpoints(ServiceName("ns1", "svc2"), IpFamily.IPV4, "") != {}
