"""Differences of nftables' rulesets: applied one after the other they make the whole."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.detectors import SourceRanges
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
from isthmus.programs.node_proxy.rules.nftables.base import Element, NftContainer
from isthmus.programs.node_proxy.rules.nftables.compiling import (
    ForeignRuleError,
    RuleValueError,
    compiled,
)
from isthmus.programs.node_proxy.rules.nftables.ruleset import (
    NftablesChanges,
    NftablesRenderer,
    NftablesRuleset,
    difference,
    rebuilt,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

SETTINGS = RuleSettings(family=IpFamily.IPV4, detector=SourceRanges(("10.0.0.0/8",)))

# Few of everything, so that ports share and dispute what they use.
ADDRESSES = st.sampled_from(["9.9.9.1", "9.9.9.2"])
ENDPOINTS = st.builds(
    Endpoint,
    ip=st.sampled_from([f"10.1.0.{each}" for each in range(4)]),
    port=st.sampled_from([80, 81]),
    local=st.booleans(),
)
KEYS = st.builds(
    PortKey,
    st.builds(ServiceName, st.just("ns"), st.sampled_from(["a", "b", "c"])),
    st.sampled_from(["", "p"]),
    st.sampled_from(list(PortProtocol)),
)


@st.composite
def backed_ports(draw: st.DrawFn) -> BackedPort:
    """Any port that there could be, and some that there could not."""
    port = ServicePort(
        key=draw(KEYS),
        cluster_ip=draw(st.sampled_from(["172.30.0.1", "172.30.0.2"])),
        port=draw(st.sampled_from([80, 443])),
        node_port=draw(st.sampled_from([0, 30000, 30001])),
        external_ips=tuple(draw(st.lists(ADDRESSES, max_size=1))),
        load_balancer_ips=tuple(draw(st.lists(ADDRESSES, max_size=1))),
        source_ranges=tuple(draw(st.lists(st.just("192.0.2.0/24"), max_size=1))),
        affinity_s=draw(st.sampled_from([0, 0, 10, 20])),
        internal_local=draw(st.booleans()),
        external_local=draw(st.booleans()),
    )
    every = st.lists(ENDPOINTS, max_size=3, unique_by=lambda each: (each.ip, each.port))
    found = tuple(sorted(draw(every), key=str))
    near = tuple(each for each in found if each.local)
    return BackedPort(
        port=port,
        backends=ChosenEndpoints(
            cluster=found if port.uses_cluster_endpoints else (),
            local=near if port.uses_local_endpoints else (),
            reachable=found if port.uses_cluster_endpoints else near,
            exist=bool(found) or draw(st.booleans()),
        ),
    )


@st.composite
def views(draw: st.DrawFn) -> list[ServiceView]:
    """Views one after the other, of which some ports stay the same objects."""
    known = draw(st.lists(backed_ports(), min_size=1, max_size=8))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        chosen = draw(st.lists(st.sampled_from(known), max_size=8))
        ports = {each.port.key: each for each in chosen}
        if draw(st.booleans()):
            ports = {key: replace(each) for key, each in ports.items()}
        found.append(ServiceView(family=IpFamily.IPV4, ports=ports))
    return found


class Model:
    """The table as the kernel would have it, which takes no command that the kernel refuses."""

    def __init__(self) -> None:
        self.elements: dict[tuple[NftContainer, str], Element] = {}
        self.chains: dict[str, tuple[str, ...]] = {}
        self.affinity: dict[str, int] = {}

    def apply(self, changes: NftablesChanges) -> None:
        for element in changes.elements_removed:
            assert self.elements.pop((element.container, element.key)) == element
        for name in changes.chains_removed:
            del self.chains[name]
        for name in changes.chains.keys() - changes.added:
            assert name in self.chains
            self.chains[name] = ()
        for name in changes.affinity_removed:
            assert not any(f"@{name} " in rule for rule in self._rules()), "in use"
            del self.affinity[name]
        for name, limit in changes.affinity_added.items():
            assert name not in self.affinity
            self.affinity[name] = limit
        assert not changes.added & self.chains.keys()
        self.chains |= changes.chains
        for element in changes.elements_added:
            assert (element.container, element.key) not in self.elements
            self.elements[element.container, element.key] = element
        self.check_references()

    def check_references(self) -> None:
        """Whatever a rule or an element names is there."""
        named = [each.value for each in self.elements.values()] + self._rules()
        for text in named:
            words = text.split()
            for verb, target in pairwise(words):
                if verb == "goto" and target != "reject-chain":
                    assert target in self.chains
            for word in words:
                if word.startswith("@affinity-"):
                    assert word[1:] in self.affinity

    def _rules(self) -> list[str]:
        return [rule for rules in self.chains.values() for rule in rules]


def picture(ruleset: NftablesRuleset) -> dict[str, object]:
    return {
        "elements": {
            (container, key): each
            for container, found in ruleset.elements.items()
            for key, each in found.items()
        },
        "chains": dict(ruleset.chains),
        "affinity": dict(ruleset.affinity),
    }


@given(views())
def test_differences_make_the_whole(sequence: list[ServiceView]) -> None:
    renderer, model = NftablesRenderer(SETTINGS), Model()
    for view in sequence:
        model.apply(renderer.advance(view))
        fresh = NftablesRenderer(SETTINGS)
        fresh.advance(view)
        assert picture(renderer.ruleset()) == picture(fresh.ruleset()) == vars(model)
        assert renderer.rules == fresh.rules == renderer.ruleset().rules
        assert +renderer.no_local == +fresh.no_local


@given(views())
def test_the_same_view_again_is_no_difference(sequence: list[ServiceView]) -> None:
    renderer = NftablesRenderer(SETTINGS)
    for view in sequence:
        renderer.advance(view)
        again = replace(view, ports={key: replace(each) for key, each in view.ports.items()})
        changes = renderer.advance(again)
        assert not changes
        assert difference(IpFamily.IPV4, changes) == ""


SAID = """
add delete flush table chain set map element rule ip ip6 bridge t c s { } ; , . : @s != == type
ipv4_addr inet_proto verdict flags timeout 10s comment saddr daddr meta l4proto th dport vmap mark
and or xor 0x4000 ct state new status dnat to numgen random mod 2 fib local update drop jump goto
10.0.0.1 10.0.0.0/8 fd00::/8 80 tcp "x" "veth*" iifname masquerade reject 10.0.0.1:80 [fd00::1]:80
hook priority -100 prerouting nat
"""
WORDS = st.sampled_from(SAID.split())
TEXTS = st.lists(st.lists(WORDS, max_size=14).map(" ".join), max_size=4).map("\n".join)


@given(st.one_of(TEXTS, st.text()))
def test_any_text_is_compiled_or_told_as_somebody_elses(text: str) -> None:
    with suppress(ForeignRuleError, RuleValueError):
        compiled(text).finished()


@given(st.lists(backed_ports(), max_size=6))
def test_every_ruleset_of_ours_can_be_compiled(ports: list[BackedPort]) -> None:
    renderer = NftablesRenderer(SETTINGS)
    added = renderer.advance(
        ServiceView(family=IpFamily.IPV4, ports={each.port.key: each for each in ports})
    )
    whole = rebuilt(renderer.ruleset())
    removed = renderer.advance(ServiceView(family=IpFamily.IPV4, ports={}))
    for text in (whole, difference(IpFamily.IPV4, added), difference(IpFamily.IPV4, removed)):
        compiled(text).finished()
