"""Which endpoints a node uses: what kube-proxy's TestCategorizeEndpoints asks, as a table."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import Endpoint, PortKey, PortProtocol, ServicePort
from isthmus.programs.node_proxy.rules.tracker import categorize_endpoints


def ends(*texts: str) -> tuple[Endpoint, ...]:
    """Endpoints .0, .1 and so on, from words: ready, serving, leaving, local, zone=a+b, node=n."""
    return tuple(end(number, text.split()) for number, text in enumerate(texts))


def end(number: int, words: list[str]) -> Endpoint:
    hints = dict(word.split("=") for word in words if "=" in word)
    return Endpoint(
        ip=f"10.0.0.{number}",
        port=80,
        local="local" in words,
        ready="ready" in words,
        serving=bool({"ready", "serving", "leaving"} & set(words)),
        terminating="leaving" in words,
        zone_hints=frozenset(hints["zone"].split("+") if "zone" in hints else ()),
        node_hints=frozenset(hints["node"].split("+") if "node" in hints else ()),
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """The numbers of the endpoints that are to be in each list."""

    ends: tuple[Endpoint, ...] = ()
    itp_local: bool = False
    etp_local: bool = False
    node_port: int = 0
    zone: str = ""
    node: str = "node-0"
    cluster: str = ""
    local: str = ""
    exist: bool | None = None


SPREAD = ends("ready zone=a", "ready zone=b", "ready zone=c", "ready zone=a")
SPREAD_LOCAL = ends("ready local zone=a", "ready local zone=b", "ready zone=c", "ready zone=a")
PLACED = ends(
    "ready zone=a node=node-1",
    "ready zone=b node=node-2",
    "ready zone=c node=node-3",
    "ready zone=a node=node-4",
)
ONE_LOCAL = ends("ready local", "ready")
REMOTE = ends("ready", "ready")

CASES = {
    "hints for the zone are kept to": Case(ends=SPREAD, zone="a", cluster="03"),
    "eTP Local ignores hints": Case(
        ends=SPREAD_LOCAL, etp_local=True, node_port=8080, zone="a", cluster="03", local="01"
    ),
    "iTP Local ignores hints": Case(
        ends=SPREAD_LOCAL, itp_local=True, node_port=8080, zone="a", cluster="03", local="01"
    ),
    "a node without a zone": Case(ends=ends("ready zone=a"), cluster="0"),
    "a node in a zone that nobody is meant for": Case(
        ends=ends("ready zone=a"), zone="b", cluster="0"
    ),
    "one that is not ready in the zone": Case(
        ends=ends("ready zone=a", "ready zone=b", "ready zone=c", "zone=a"), zone="a", cluster="0"
    ),
    "none ready in the zone": Case(
        ends=ends("zone=a", "ready zone=b", "ready zone=c", "zone=a"), zone="a", cluster="12"
    ),
    "one ready without a hint": Case(
        ends=ends("ready zone=a", "ready zone=b", "ready", "ready zone=a"),
        zone="a",
        cluster="0123",
    ),
    "one not ready without a hint is no matter": Case(
        ends=ends("ready zone=a", "ready zone=b", ""), zone="a", cluster="0"
    ),
    "several zones each": Case(
        ends=ends("ready zone=a+b+c", "ready zone=b+c", "ready zone=b+d", "ready zone=c"),
        zone="c",
        cluster="013",
    ),
    "hints for the node go first": Case(ends=PLACED, zone="a", node="node-1", cluster="0"),
    "one without any hint": Case(
        ends=(PLACED[0], ends("", "ready")[1], *PLACED[2:]),
        zone="a",
        node="node-1",
        cluster="0123",
    ),
    "no hint for the node, so the zone": Case(ends=PLACED, zone="a", cluster="03"),
    "hints for nodes alone, none for ours": Case(
        ends=ends("ready node=node-1", "ready node=node-2"), zone="a", cluster="01"
    ),
    "hints and place both, merged": Case(
        ends=ends("ready local zone=a", "ready local zone=b", "ready zone=a", "ready zone=b"),
        etp_local=True,
        node_port=8080,
        zone="a",
        cluster="02",
        local="01",
    ),
    "no endpoints": Case(),
    "no endpoints, iTP Local": Case(itp_local=True),
    "iTP Local, all remote": Case(ends=REMOTE, itp_local=True, exist=True),
    "iTP Local, all local": Case(
        ends=ends("ready local", "ready local"), itp_local=True, local="01"
    ),
    "iTP Local, one local": Case(ends=ONE_LOCAL, itp_local=True, local="0"),
    "none ready": Case(ends=ends("", "")),
    "one ready": Case(ends=ends("", "ready"), cluster="1"),
    "all leaving": Case(ends=ends("leaving local", "leaving"), cluster="01"),
    "iTP Local, eTP Cluster": Case(
        ends=ONE_LOCAL, itp_local=True, node_port=8080, cluster="01", local="0"
    ),
    "iTP Cluster, eTP Local": Case(
        ends=ONE_LOCAL, etp_local=True, node_port=8080, cluster="01", local="0"
    ),
    "both Local": Case(
        ends=ONE_LOCAL, itp_local=True, etp_local=True, node_port=8080, cluster="01", local="0"
    ),
    "both Local, all remote": Case(
        ends=REMOTE, itp_local=True, etp_local=True, node_port=8080, cluster="01"
    ),
    "both Local, all remote and leaving": Case(
        ends=ends("leaving", "leaving"),
        itp_local=True,
        etp_local=True,
        node_port=8080,
        cluster="01",
    ),
    "iTP Local, all remote and leaving": Case(
        ends=ends("leaving", "leaving"), itp_local=True, exist=True
    ),
    "each policy falls back by itself": Case(
        ends=ends("ready", "local", "leaving local", "leaving"),
        etp_local=True,
        node_port=8080,
        cluster="0",
        local="2",
    ),
    "serving is not enough without leaving": Case(
        ends=ends("serving local", "serving"), etp_local=True, node_port=8080
    ),
    "of those that are not ready only those that leave": Case(
        ends=ends("serving local", "leaving local", "leaving", "serving"),
        etp_local=True,
        node_port=8080,
        cluster="12",
        local="1",
    ),
    "eTP Local without any way in": Case(ends=ONE_LOCAL, etp_local=True, cluster="01"),
}


def listed(numbers: str) -> list[str]:
    return [f"10.0.0.{number}" for number in numbers]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_endpoints_are_chosen(case: Case) -> None:
    port = ServicePort(
        key=PortKey(ServiceName("ns", "svc"), "p", PortProtocol.TCP),
        cluster_ip="10.96.0.1",
        port=80,
        node_port=case.node_port,
        internal_local=case.itp_local,
        external_local=case.etp_local,
    )
    got = categorize_endpoints(case.ends, port, node_name=case.node, zone=case.zone)
    assert [each.ip for each in got.cluster] == listed(case.cluster)
    assert [each.ip for each in got.local] == listed(case.local)
    both = "".join(sorted(set(case.cluster + case.local)))
    assert [each.ip for each in got.reachable] == listed(both)
    assert got.exist == (bool(both) if case.exist is None else case.exist)
    assert got.serving == tuple(each for each in case.ends if each.serving)


def test_where_all_are_used_there_is_one_list() -> None:
    port = ServicePort(
        key=PortKey(ServiceName("ns", "svc"), "p", PortProtocol.TCP),
        cluster_ip="10.96.0.1",
        port=80,
    )
    got = categorize_endpoints(REMOTE, port, node_name="n", zone="")
    assert got.cluster is REMOTE
    assert got.reachable is REMOTE
    assert got.serving is REMOTE
