"""Rulesets of iptables: whatever is jumped to is there, and changes add up to the whole."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.detectors import NOTHING_LOCAL, Interfaces, SourceRanges
from isthmus.programs.node_proxy.rules.iptables.ruleset import (
    IptablesRenderer,
    TableWrite,
    cleanup_writes,
    full_writes,
    parse_saved,
)
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
)
from isthmus.programs.node_proxy.rules.settings import LARGE_CLUSTER_ENDPOINTS, RuleSettings
from isthmus.programs.node_proxy.rules.tracker import categorize_endpoints

ADDRESSES = st.sampled_from(["9.9.9.1", "9.9.9.2"])
ENDPOINTS = st.builds(
    Endpoint,
    ip=st.sampled_from([f"10.1.0.{each}" for each in range(4)]),
    port=st.sampled_from([80, 81]),
    local=st.booleans(),
    ready=st.booleans(),
    serving=st.booleans(),
    terminating=st.booleans(),
)
KEYS = st.builds(
    PortKey,
    st.builds(ServiceName, st.just("ns"), st.sampled_from(["a", "b", "c"])),
    st.sampled_from(["", "p"]),
    st.sampled_from(list(PortProtocol)),
)
SETTINGS = st.builds(
    RuleSettings,
    family=st.just(IpFamily.IPV4),
    detector=st.sampled_from(
        [
            NOTHING_LOCAL,
            SourceRanges(("10.0.0.0/8",)),
            SourceRanges(("10.1.0.0/16", "10.2.0.0/16")),
            Interfaces(prefixes=("veth", "cali")),
        ]
    ),
    masquerade_all=st.booleans(),
    localhost_node_ports=st.booleans(),
    accounting=st.booleans(),
    node_ip=st.sampled_from(["", "192.0.2.1"]),
    node_port_addresses=st.sampled_from([None, (), ("192.0.2.1", "127.0.0.1")]),
)
BUILT_IN = {
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
}
TARGETS = {"ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "MASQUERADE", "DNAT"}


@st.composite
def backed_ports(draw: st.DrawFn) -> BackedPort:
    """Any port that there can be."""
    port = ServicePort(
        key=draw(KEYS),
        cluster_ip=draw(st.sampled_from(["172.30.0.1", "172.30.0.2"])),
        port=draw(st.sampled_from([80, 443])),
        node_port=draw(st.sampled_from([0, 30000, 30001])),
        external_ips=tuple(draw(st.lists(ADDRESSES, max_size=2, unique=True))),
        load_balancer_ips=tuple(draw(st.lists(ADDRESSES, max_size=2, unique=True))),
        source_ranges=tuple(draw(st.lists(st.just("192.0.2.0/24"), max_size=1))),
        affinity_s=draw(st.sampled_from([0, 0, 10, 20])),
        internal_local=draw(st.booleans()),
        external_local=draw(st.booleans()),
        health_check_node_port=draw(st.sampled_from([0, 31000])),
    )
    every = st.lists(ENDPOINTS, max_size=4, unique_by=lambda each: (each.ip, each.port))
    found = tuple(sorted(draw(every), key=str))
    chosen = categorize_endpoints(found, port, node_name="here", zone="")
    return BackedPort(port=port, backends=chosen)


@st.composite
def views(draw: st.DrawFn) -> list[ServiceView]:
    """Views one after the other, of which some ports stay the same objects."""
    known = draw(st.lists(backed_ports(), min_size=1, max_size=8))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        chosen = draw(st.lists(st.sampled_from(known), max_size=8))
        ports = {each.port.key: each for each in sorted(chosen, key=lambda each: str(each.port))}
        if draw(st.booleans()):
            ports = {key: replace(each) for key, each in ports.items()}
        size = draw(st.sampled_from([0, 0, LARGE_CLUSTER_ENDPOINTS + 1]))
        found.append(ServiceView(family=IpFamily.IPV4, ports=ports, endpoints=size))
    return found


class Kernel:
    """Tables as the kernel has them, which refuses what the kernel would refuse."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, list[str]]] = {
            table: {chain: [] for chain in chains} for table, chains in BUILT_IN.items()
        }

    def restore(self, *writes: TableWrite) -> None:
        for write in writes:
            if not write:
                continue
            chains = self.tables[write.table]
            for line in write.text().splitlines():
                self._do(chains, line)
            self._check(chains)

    def _do(self, chains: dict[str, list[str]], line: str) -> None:
        word, _, rest = line.partition(" ")
        chain, _, rule = rest.partition(" ")
        if line.startswith(":"):
            chains[word[1:]] = []
        elif word == "-A":
            chains[chain].append(rule)
        elif word == "-I":
            chains[chain].insert(0, rule)
        elif word == "-D":
            chains[chain].remove(rule)
        elif word == "-X":
            assert chains.pop(chain) == []
        else:
            assert line.startswith("*") or line == "COMMIT"

    def _check(self, chains: dict[str, list[str]]) -> None:
        for rule in (rule for rules in chains.values() for rule in rules):
            words = rule.split()
            if "-j" in words:
                target = words[len(words) - words[::-1].index("-j")]
                assert target in chains or target in TARGETS, rule

    def saved(self) -> str:
        lines = []
        for table, chains in self.tables.items():
            lines.append(f"*{table}")
            lines += [f":{chain} - [0:0]" for chain in chains]
            lines += [f"-A {chain} {rule}" for chain, rules in chains.items() for rule in rules]
            lines.append("COMMIT")
        return "\n".join(lines) + "\n"


@given(views(), SETTINGS)
def test_changes_make_the_whole(found: list[ServiceView], settings: RuleSettings) -> None:
    kernel, renderer = Kernel(), IptablesRenderer(settings)
    for number, view in enumerate(found):
        rendering = renderer.render(view)
        if number == 0:
            kernel.restore(*full_writes(rendering.ruleset, parse_saved(kernel.saved())))
        else:
            before = kernel.tables["filter"].copy()
            kernel.restore(rendering.filter)
            after = kernel.tables["filter"].copy()
            kernel.restore(rendering.filter_back)
            assert kernel.tables["filter"] == before
            kernel.restore(rendering.filter, rendering.nat)
            assert kernel.tables["filter"] == after
        whole = Kernel()
        alone = IptablesRenderer(settings).render(view).ruleset
        whole.restore(*full_writes(alone, parse_saved(whole.saved())))
        assert kernel.tables == whole.tables
        counted = {t: sum(map(len, chains.values())) for t, chains in alone.tables().items()}
        assert counted == rendering.ruleset.counts()


@given(views(), SETTINGS, SETTINGS)
def test_a_full_sync_heals_anything(
    found: list[ServiceView], settings: RuleSettings, others: RuleSettings
) -> None:
    kernel, whole = Kernel(), Kernel()
    first, last = (
        IptablesRenderer(others).render(found[0]),
        IptablesRenderer(settings).render(found[-1]),
    )
    kernel.restore(*full_writes(first.ruleset, parse_saved(kernel.saved())))
    kernel.restore(*full_writes(last.ruleset, parse_saved(kernel.saved())))
    whole.restore(*full_writes(last.ruleset, parse_saved(whole.saved())))
    firewall = [kernel, whole]
    for each in firewall:  # which stays as it is where we need it no more
        each.tables["filter"].pop("KUBE-FIREWALL")
    assert kernel.tables == whole.tables


@given(views(), SETTINGS)
def test_cleanup_leaves_nothing(found: list[ServiceView], settings: RuleSettings) -> None:
    kernel = Kernel()
    ruleset = IptablesRenderer(settings).render(found[0]).ruleset
    kernel.restore(*full_writes(ruleset, parse_saved(kernel.saved())))
    writes, kept = cleanup_writes(parse_saved(kernel.saved()))
    for write in writes:  # jumps go before the chains that they lead to
        kernel.restore(write)
    assert not kept
    kernel.tables["filter"].pop("KUBE-FIREWALL")
    for chain in ("INPUT", "OUTPUT"):
        assert kernel.tables["filter"].pop(chain) == ["-j KUBE-FIREWALL"]
    clean = Kernel()
    for chain in ("INPUT", "OUTPUT"):
        clean.tables["filter"].pop(chain)
    assert kernel.tables == clean.tables
