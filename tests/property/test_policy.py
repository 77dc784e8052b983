"""Networks and rules against slower ways to say the same, and documents and flags of any text."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_policy import BY_DEFAULT, Effect, Match, Policy, PolicyRule, Ports, Question
from isthmus.dial.settings_networks import ClusterNetwork, Networks, Nowhere, parse_networks
from isthmus.dial.settings_policy import parse
from isthmus.errors import ConfigError
from isthmus.settings.identifiers import Identifiers
from isthmus.text.addresses import IpNetwork
from isthmus.text.patterns import Pattern
from isthmus.values import HostPort, Identity

DOCUMENT = """\
apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
default: deny
rules:
- name: a
  effect: allow
  match: {requesters: ["uid:*"], groups: [g], networks: [n], cidrs: [10.0.0.0/8], ports: [1-2]}
- {name: b, effect: deny, match: {hosts: ["*.x"]}}
"""
FLAG = "east=10.0.0.0/8,fd00::/8;via=server:kep://h:1?ca=a&half-close=false"

# Few bits in play, so that containment happens often.
v4 = st.builds(
    lambda bits, length: ip_network((bits << 28, length), strict=False),
    st.integers(0, 15),
    st.integers(0, 6),
)
v6 = st.builds(
    lambda bits, length: ip_network((bits << 124, length), strict=False),
    st.integers(0, 15),
    st.integers(0, 6),
)
cidrs = st.lists(v4 | v6, min_size=1, max_size=4).map(tuple)
address = st.integers(0, 15).map(lambda bits: IPv4Address(bits << 28 | 7)) | st.integers(0, 15).map(
    lambda bits: IPv6Address(bits << 124 | 7)
)


def mapped(address: IPv4Address | IPv6Address) -> str:
    """An IPv4 address as IPv6 has it."""
    return f"::ffff:{address}" if isinstance(address, IPv4Address) else str(address)


def overlap(a: IpNetwork, b: IpNetwork) -> bool:
    return a.version == b.version and a.overlaps(b)


@given(st.lists(cidrs, max_size=4), st.lists(address, max_size=8))
def test_an_address_is_in_the_network_that_lists_it(
    listed: list[tuple[IpNetwork, ...]], addresses: list[IPv4Address | IPv6Address]
) -> None:
    networks = [ClusterNetwork(name=f"n{i}", cidrs=nets) for i, nets in enumerate(listed)]
    flat = [cidr for nets in listed for cidr in nets]
    clash = any(overlap(a, b) for i, a in enumerate(flat) for b in flat[:i])
    try:
        made = Networks(networks)
    except ValueError:
        assert clash
        return
    assert not clash
    for each in addresses:
        holding = [it for it in networks if any(each in cidr for cidr in it.cidrs)]
        assert len(holding) <= 1
        for text in (str(each), mapped(each)):
            found = made.holding(text)
            assert [found] == holding if holding else found is None
            assert all(it.holds(text) is (it in holding) for it in networks)


@given(st.lists(cidrs, min_size=2, max_size=3), st.lists(v4 | v6, max_size=3))
def test_an_agent_that_names_no_network_is_never_in_two(
    listed: list[tuple[IpNetwork, ...]], claims: list[IpNetwork]
) -> None:
    networks = [ClusterNetwork(name=f"n{i}", cidrs=nets) for i, nets in enumerate(listed)]
    try:
        made = Networks(networks)
    except ValueError:
        return
    found = made.network_of_agent("", Identifiers(cidr=tuple(map(str, claims))))
    if isinstance(found, Nowhere):
        return
    for other in networks:
        if other is not found:
            assert not any(overlap(claim, cidr) for claim in claims for cidr in other.cidrs)


name = st.sampled_from(["a.x", "b.x", "a.y"])
host = name | address.map(str)
matches = st.builds(
    Match,
    requesters=st.lists(st.sampled_from(["uid:0", "uid:*", "certificate:*"]), max_size=2).map(
        lambda texts: tuple(map(Pattern, texts))
    ),
    networks=st.lists(st.sampled_from(["n", "m", "*"]), max_size=1).map(
        lambda texts: tuple(map(Pattern, texts))
    ),
    cidrs=st.lists(v4 | v6, max_size=2).map(tuple),
    hosts=st.lists(st.sampled_from(["*", "*.x", "a.*"]), max_size=2).map(
        lambda texts: tuple(Pattern(text, fold=True) for text in texts)
    ),
    ports=st.lists(st.builds(Ports, st.integers(1, 3), st.integers(3, 5)), max_size=2).map(tuple),
)
rules = st.lists(
    st.builds(PolicyRule, name=st.uuids().map(str), effect=st.sampled_from(Effect), match=matches),
    max_size=6,
).map(tuple)
questions = st.builds(
    Question,
    requester=st.sampled_from(
        [Identity("0", kind="uid"), Identity("0"), Identity("1", kind="uid")]
    ),
    network=st.sampled_from(["n", "m", ""]),
    target=st.builds(HostPort, host, st.integers(1, 6)),
)


def covers(match: Match, asked: Question) -> bool:
    """Said once more, plainly."""
    text, who = asked.target.host, str(asked.requester)
    try:
        place = ip_address(text)
    except ValueError:
        there = any(it.covers(text, {}) for it in match.hosts)
    else:
        there = any(place in cidr for cidr in match.cidrs)
    return (
        (not match.requesters or any(it.covers(who, {}) for it in match.requesters))
        and (not match.networks or any(it.covers(asked.network, {}) for it in match.networks))
        and (
            not match.ports
            or any(asked.target.port in range(it.low, it.high + 1) for it in match.ports)
        )
        and (not (match.cidrs or match.hosts) or there)
    )


@given(rules, st.sampled_from(Effect), questions)
def test_the_first_rule_that_matches_decides(
    rules: tuple[PolicyRule, ...], default: Effect, asked: Question
) -> None:
    policy = Policy(rules=rules, default=default)
    first = next((rule for rule in rules if covers(rule.match, asked)), None)
    decision = policy.decide(asked)
    assert decision.rule == (BY_DEFAULT if first is None else first.name)
    assert decision.allowed is ((default if first is None else first.effect) is Effect.ALLOW)
    assert bool(decision.why) is not decision.allowed
    deciding = [it.rule for it in policy.verdicts(asked) if it.decides]
    assert deciding == ([] if first is None else [first])


@given(st.text(max_size=200), st.integers(0, len(DOCUMENT)), st.integers(0, 20))
def test_any_document_is_a_policy_or_a_sentence(text: str, at: int, cut: int) -> None:
    for document in (text, DOCUMENT[:at] + text[:5] + DOCUMENT[at + cut :]):
        try:
            assert isinstance(parse(document, "p.yaml"), Policy)
        except ConfigError as error:
            assert str(error).startswith("p.yaml:")


@given(st.text(max_size=60), st.integers(0, len(FLAG)), st.integers(0, 10))
def test_any_flag_is_networks_or_a_sentence(text: str, at: int, cut: int) -> None:
    for flag in (text, f"n={text}", FLAG[:at] + text[:4] + FLAG[at + cut :]):
        try:
            found = parse_networks([flag])
            assert found is None or len(found)
        except ConfigError as error:
            assert str(error).startswith("--cluster-network")


def test_the_plain_way_is_about_the_same_thing() -> None:
    """The two agree above because each can say yes and no."""
    asked = Question(
        requester=Identity("0", kind="uid"), network="n", target=HostPort("16.0.0.7", 3)
    )
    assert covers(Match(cidrs=(IPv4Network("16.0.0.0/8"),)), asked)
    assert not covers(Match(cidrs=(IPv4Network("32.0.0.0/8"),)), asked)
