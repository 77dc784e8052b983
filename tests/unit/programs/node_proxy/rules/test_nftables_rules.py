"""Rulesets for nftables, every kind of Service in every kind of settings, as whole texts.

Run with UPDATE_GOLDEN=1 to write what is expected anew, and read the difference. The kinds of
``every-kind`` are those of kube-proxy's own golden test, line by line the same as there, but for
the rule behind each that balances.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.detectors import BridgePorts, Interfaces, SourceRanges
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
)
from isthmus.programs.node_proxy.rules.nftables.base import NftContainer
from isthmus.programs.node_proxy.rules.nftables.ports import port_rules
from isthmus.programs.node_proxy.rules.nftables.ruleset import (
    ExistingTable,
    NftablesChanges,
    NftablesRenderer,
    difference,
    rebuilt,
    renewed,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

GOLDEN = Path(__file__).parents[4] / "golden" / "nftables"
V4, V6 = IpFamily.IPV4, IpFamily.IPV6
LOCAL = True


def backed(
    name: str,
    cluster_ip: str,
    ends: Sequence[tuple[str, bool]] = (),
    *,
    protocol: PortProtocol = PortProtocol.TCP,
    elsewhere: bool = False,
    **fields: object,
) -> BackedPort:
    """A port 80 of a Service ns/name; ``elsewhere`` are endpoints that this node may not use."""
    key = PortKey(ServiceName(*name.split("/")), "p80", protocol)
    port = ServicePort(key=key, cluster_ip=cluster_ip, port=80, **fields)  # type: ignore[arg-type]
    found = tuple(Endpoint(ip=ip, port=80, local=local) for ip, local in ends)
    near = tuple(each for each in found if each.local)
    return BackedPort(
        port=port,
        backends=ChosenEndpoints(
            cluster=found if port.uses_cluster_endpoints else (),
            local=near if port.uses_local_endpoints else (),
            reachable=found if port.uses_cluster_endpoints else near,
            exist=bool(found) or elsewhere,
        ),
    )


def every_kind() -> list[BackedPort]:
    """The Services of kube-proxy's TestOverallNFTablesRules."""
    return [
        backed("ns1/svc1", "172.30.0.41", [("10.180.0.1", LOCAL)]),
        backed(
            "ns2/svc2", "172.30.0.42", [("10.180.0.2", False)], node_port=3001,
            external_ips=("192.168.99.22",), load_balancer_ips=("1.2.3.4",), external_local=True,
        ),
        backed("ns3/svc3", "172.30.0.43", [("10.180.0.3", LOCAL)], node_port=3003),
        backed(
            "ns4/svc4", "172.30.0.44", [("10.180.0.4", False), ("10.180.0.5", LOCAL)],
            external_ips=("192.168.99.33",),
        ),
        backed(
            "ns5/svc5", "172.30.0.45", [("10.180.0.3", LOCAL)], node_port=3002,
            load_balancer_ips=("5.6.7.8",), source_ranges=("203.0.113.0/25",), affinity_s=10800,
        ),
        backed("ns6/svc6", "172.30.0.46"),
    ]  # fmt: skip


def more_kinds() -> list[BackedPort]:
    """What that test leaves out."""
    return [
        # Local policies, with an endpoint here and one elsewhere.
        backed(
            "a/both-local", "172.30.1.1", [("10.1.0.1", LOCAL), ("10.2.0.1", False)],
            internal_local=True, external_local=True, node_port=30001,
        ),
        backed("a/internal-none-here", "172.30.1.2", elsewhere=True, internal_local=True),
        backed("a/nothing-anywhere", "172.30.1.3", node_port=30002, external_ips=("9.9.9.9",)),
        backed(
            "a/sticky-local", "172.30.1.4", [("10.1.0.2", LOCAL), ("10.2.0.2", False)],
            external_local=True, node_port=30003, affinity_s=60,
        ),
        backed(
            "a/node-in-range", "172.30.1.5", load_balancer_ips=("1.1.1.1", "1.1.1.2"),
            source_ranges=("192.168.0.0/24", "203.0.113.0/25"),
        ),
        backed("a/udp", "172.30.1.6", [("10.1.0.3", LOCAL)], protocol=PortProtocol.UDP),
        backed("a/sctp", "172.30.1.7", [("10.1.0.3", False)], protocol=PortProtocol.SCTP),
    ]  # fmt: skip


def sixes() -> list[BackedPort]:
    return [
        backed("ns1/svc1", "fd00:30::41", [("fd00:180::1", LOCAL)], node_port=3001),
        backed(
            "ns5/svc5", "fd00:30::45", [("fd00:180::3", LOCAL)], load_balancer_ips=("2001::1",),
            source_ranges=("2001:db8::/64",), affinity_s=10800, external_local=True,
        ),
        backed("ns6/svc6", "fd00:30::46"),
    ]  # fmt: skip


KUBE_PROXY = RuleSettings(
    family=V4,
    detector=SourceRanges(("10.0.0.0/8",)),
    node_ip="192.168.0.2",
    node_port_addresses=("192.168.0.2", "127.0.0.1"),
    service_cidrs=("172.30.0.0/16", "fd00:30::/112"),
)
CASES = {
    "every-kind": (every_kind(), KUBE_PROXY),
    "more-kinds": (more_kinds(), replace(KUBE_PROXY, node_port_addresses=None)),
    "ipv6": (
        sixes(),
        replace(
            KUBE_PROXY,
            family=V6,
            detector=SourceRanges(("fd00:180::/64",)),
            node_ip="2001:db8::2",
            node_port_addresses=("2001:db8::2", "::1"),
        ),
    ),
    "ipv6-every-address": (sixes(), RuleSettings(family=V6)),
    "nothing-local": (every_kind()[:2], RuleSettings(family=V4)),
    "several-ranges": (
        every_kind()[:2],
        RuleSettings(family=V4, detector=SourceRanges(("10.1.0.0/16", "10.5.0.0/16"))),
    ),
    "interfaces": (
        every_kind()[:2],
        RuleSettings(family=V4, detector=Interfaces(prefixes=("cali", "veth")), masquerade_bit=15),
    ),
    "bridge": (every_kind()[:2], RuleSettings(family=V4, detector=BridgePorts(("veth", "tap")))),
    "any-bridge-port": (every_kind()[:2], RuleSettings(family=V4, detector=BridgePorts())),
    "masquerade-all": (every_kind()[:2], replace(KUBE_PROXY, masquerade_all=True)),
    "empty": ([], RuleSettings(family=V4)),
}


def view(ports: Sequence[BackedPort], family: IpFamily = V4) -> ServiceView:
    return ServiceView(family=family, ports={each.port.key: each for each in ports})


def rendered(ports: Sequence[BackedPort], settings: RuleSettings) -> NftablesRenderer:
    renderer = NftablesRenderer(settings)
    renderer.advance(view(ports, settings.family))
    return renderer


@pytest.mark.parametrize("name", CASES)
def test_as_expected(name: str) -> None:
    ports, settings = CASES[name]
    found = rebuilt(rendered(ports, settings).ruleset())
    expected = GOLDEN / f"{name}.nft"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(found)
    assert found == expected.read_text()


def test_what_is_the_same_is_written_once() -> None:
    # Two ports of one Service share its cluster IP, two Services an endpoint on this node.
    one = backed("a/one", "172.30.0.1", [("10.1.0.1", LOCAL)])
    two = backed("a/two", "172.30.0.1", [("10.1.0.1", LOCAL)], external_ips=("9.9.9.9",))
    two = replace(two, port=replace(two.port, port=81))
    renderer = rendered([one, two], KUBE_PROXY)
    found = renderer.ruleset().elements
    assert list(found[NftContainer.CLUSTER_IPS]) == ["172.30.0.1"]
    assert len(found[NftContainer.HAIRPIN]) == 1
    # As long as one of them is there, so are they.
    changes = renderer.advance(view([two]))
    assert {each.container for each in changes.elements_removed} == {NftContainer.SERVICE_IPS}
    changes = renderer.advance(view([]))
    assert NftContainer.CLUSTER_IPS in {each.container for each in changes.elements_removed}


def test_a_disputed_address_is_the_same_ports_in_any_order() -> None:
    one = backed("a/one", "172.30.0.1", [("10.1.0.1", LOCAL)], external_ips=("9.9.9.9",))
    two = backed("a/two", "172.30.0.2", [("10.1.0.2", LOCAL)], external_ips=("9.9.9.9",))
    first, second = rendered([one, two], KUBE_PROXY), rendered([two, one], KUBE_PROXY)
    assert first.ruleset().elements == second.ruleset().elements


def test_one_endpoint_less_is_one_chain_and_one_element() -> None:
    before = backed("a/b", "172.30.0.1", [("10.3.0.1", LOCAL), ("10.2.0.1", False)], node_port=3001)
    after = backed("a/b", "172.30.0.1", [("10.2.0.1", False)], node_port=3001)
    others = more_kinds()
    renderer = rendered([before, *others], KUBE_PROXY)
    changes = renderer.advance(view([after, *others]))
    (chain,) = changes.chains
    assert chain.startswith("service-")
    assert difference(V4, changes).splitlines() == [
        "delete element ip kube-proxy hairpin-connections {",
        "10.3.0.1 . 10.3.0.1 . tcp . 80",
        "}",
        f"flush chain ip kube-proxy {chain}",
        f"add rule ip kube-proxy {chain} {changes.chains[chain][0]}",
        f"add rule ip kube-proxy {chain} meta l4proto tcp dnat to 10.2.0.1:80",
    ]


def test_an_equal_port_changes_nothing() -> None:
    renderer = rendered(every_kind(), KUBE_PROXY)
    changes = renderer.advance(view(every_kind()))
    assert not changes
    assert difference(V4, changes) == ""


def test_another_timeout_makes_the_set_and_the_rules_that_look_into_it_anew() -> None:
    ends = [("10.1.0.1", LOCAL)]
    before = backed("a/b", "172.30.0.1", ends, affinity_s=10)
    renderer = rendered([before], KUBE_PROXY)
    changes = renderer.advance(view([backed("a/b", "172.30.0.1", ends, affinity_s=20)]))
    assert list(changes.affinity_removed) == list(changes.affinity_added)
    assert {name.partition("-")[0] for name in changes.chains} == {"service", "endpoint"}
    verbs = [line.split()[:2] for line in difference(V4, changes).splitlines()]
    assert verbs == [
        ["flush", "chain"], ["flush", "chain"], ["delete", "set"], ["add", "set"],
        ["add", "rule"], ["add", "rule"], ["add", "rule"], ["add", "rule"], ["add", "rule"],
    ]  # fmt: skip


def test_it_counts_ports_without_an_endpoint_here() -> None:
    away = backed(
        "a/b", "172.30.0.1", elsewhere=True, internal_local=True, external_local=True, node_port=1
    )
    renderer = rendered([away, backed("a/c", "172.30.0.2")], KUBE_PROXY)
    assert renderer.no_local == {"internal": 1, "external": 1}
    renderer.advance(view([]))
    assert not +renderer.no_local


def test_rules_are_counted() -> None:
    renderer = rendered(every_kind(), KUBE_PROXY)
    assert renderer.rules == renderer.ruleset().rules
    renderer.advance(view(every_kind()[2:]))
    assert renderer.rules == renderer.ruleset().rules


def test_without_endpoints_for_pods_nothing_goes_to_a_chain_that_is_not_there() -> None:
    odd = backed("a/b", "172.30.0.1", elsewhere=True, external_local=True, node_port=30000)
    rules = port_rules(odd, KUBE_PROXY)
    assert [name.partition("-")[0] for name in rules.chains] == ["external"]
    assert not any(rules.chains.values())


def test_over_what_was_found_clients_stay_where_they_are() -> None:
    sticky = backed("a/b", "172.30.0.1", [("10.1.0.1", LOCAL)], affinity_s=60)
    ruleset = rendered([sticky], KUBE_PROXY).ruleset()
    (kept,) = ruleset.affinity
    found = ExistingTable(
        chains=frozenset({*ruleset.chains, "service-X-old/one/tcp/", "services", "stranger"}),
        sets=frozenset({kept, "affinity-Y-old/one/tcp/__1.2.3.4/1", "cluster-ips"}),
        maps=frozenset({"service-ips"}),
        affinity={kept: 60, "affinity-Y-old/one/tcp/__1.2.3.4/1": 60},
    )
    lines = renewed(ruleset, found).splitlines()
    assert not [line for line in lines if f" set ip kube-proxy {kept}" in line]
    assert "delete set ip kube-proxy affinity-Y-old/one/tcp/__1.2.3.4/1" in lines
    assert "delete chain ip kube-proxy stranger" in lines
    assert "flush chain ip kube-proxy service-X-old/one/tcp/" in lines
    assert found.stale(ruleset) == {"service-X-old/one/tcp/"}


@pytest.mark.parametrize("affinity_s", [0, 60])
def test_behind_each_rule_that_balances_is_one_without_a_map(affinity_s: int) -> None:
    ends = [("10.1.0.1", LOCAL), ("10.2.0.1", False)]
    port = backed(
        "a/b", "172.30.0.1", ends, node_port=1, external_local=True, affinity_s=affinity_s
    )
    chains = port_rules(port, KUBE_PROXY).chains
    behind = [rules[-2:] for name, rules in chains.items() if name.startswith(("service", "local"))]
    assert len(behind) == 2
    for balancing, certain in behind:
        assert "numgen random mod" in balancing
        assert certain == "meta l4proto tcp dnat to 10.1.0.1:80"


HOOKED = "type nat hook prerouting priority -100 ;"


@pytest.mark.parametrize("head", [HOOKED, f"{HOOKED} policy drop ;", HOOKED.replace("1", "2")])
def test_over_what_was_found_only_what_is_fit_stays_hooked(head: str) -> None:
    ruleset = rendered(every_kind(), KUBE_PROXY).ruleset()
    found = ExistingTable(
        chains=frozenset({"nat-prerouting", "services"}),
        heads={"nat-prerouting": head},
        sets=frozenset({"cluster-ips", "stranger"}),
        maps=frozenset({"service-ips"}),
    )
    lines = renewed(ruleset, found).splitlines()
    assert [line for line in lines if line.startswith("delete chain")] == (
        [] if head == HOOKED else ["delete chain ip kube-proxy nat-prerouting"]
    )
    assert [
        line for line in lines if line.startswith(("flush set", "flush map", "delete set"))
    ] == [
        "flush map ip kube-proxy service-ips",
        "flush set ip kube-proxy cluster-ips",
        "delete set ip kube-proxy stranger",
    ]


@pytest.mark.parametrize("there", [False, True])
def test_the_bridges_table_stays_hooked_as_long_as_it_is_wanted(there: bool) -> None:
    wanted = rendered([], CASES["bridge"][1]).ruleset()
    lines = renewed(wanted, ExistingTable(), bridge_there=there).splitlines()
    assert ("flush table bridge isthmus-node-proxy-ip" in lines) is there
    assert not [line for line in lines if line.startswith("delete table")]
    unwanted = renewed(rendered([], KUBE_PROXY).ruleset(), ExistingTable(), bridge_there=there)
    assert ("delete table bridge isthmus-node-proxy-ip" in unwanted) is there


def test_no_changes_are_false() -> None:
    assert not NftablesChanges()
    assert NftablesChanges(chains_removed=("x",))
