"""Patterns and networks against slower ways to say the same, and documents of any text."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, ip_network

from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.settings_entitlements import parse
from isthmus.errors import ConfigError
from isthmus.settings.identifiers import Identifiers
from isthmus.settings.rules_entitlements import BY_NAME, Entitlements, Grants, Rule
from isthmus.text.patterns import Pattern
from isthmus.values import Identity

SHOWN = Identity("x")
DOCUMENT = """\
apiVersion: isthmus.dev/v1alpha1
kind: AgentIdentityBinding
rules:
- subject: {commonName: "agent-*", organization: o}
  agentIDs: ["{commonName}", "edge-*"]
  identifiers: {ipv4: [10.0.0.0/8], ipv6: ["fd00::/8"], host: ["*.x"], defaultRoute: false}
  networks: [cluster]
"""

few = st.text(alphabet="a*", min_size=1, max_size=5) | st.text("ab.*", min_size=1, max_size=8)
# Few bits in play, so that containment happens often.
network = st.builds(
    lambda bits, length: ip_network((bits << 28, length), strict=False),
    st.integers(0, 15),
    st.integers(0, 6),
)


@given(few, few)
def test_a_pattern_is_the_plain_regular_expression(text: str, value: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, text.split("*"))), value) is not None
    assert Pattern(text).covers(value, {}) is expected


@given(few, few, few)
def test_what_is_put_in_is_literal(before: str, inside: str, value: str) -> None:
    literal = "".join(".*" if char == "*" else re.escape(char) for char in before)
    expected = re.fullmatch(literal + re.escape(inside), value) is not None
    assert Pattern(before + "{node}").covers(value, {"node": (inside,)}) is expected


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_a_pattern_or_a_value_error(text: str, value: str) -> None:
    try:
        pattern = Pattern(text, fold=True)
    except ValueError:
        return
    assert pattern.covers(value, {"node": ("n",)}) in (True, False)


def slots(net: IPv4Network) -> set[int]:
    """The sixty-fourths of all addresses that a network of at most six bits holds."""
    first = int(net.network_address) >> 26
    return set(range(first, first + (1 << 6 - net.prefixlen)))


@given(st.lists(network, max_size=5), network)
def test_a_network_is_covered_when_each_of_its_addresses_is(
    listed: list[IPv4Network], claimed: IPv4Network
) -> None:
    rule = Rule(
        subject=(("commonName", Pattern("*")),),
        agent_ids=(Pattern("*"),),
        grants=Grants(cidr=tuple(listed), ipv4=tuple(listed)),
    )
    judge = Entitlements(rules=(rule,)).judge
    held = set().union(*map(slots, listed))
    assert (judge(SHOWN, "a", Identifiers(cidr=(str(claimed),))) == "") is (slots(claimed) <= held)
    first = str(claimed.network_address)
    inside = int(claimed.network_address) >> 26 in held
    for claim in (Identifiers(ipv4=(first,)), Identifiers(host=(first,))):
        assert (judge(SHOWN, "a", claim) == "") is inside


@given(
    st.builds(Identity, st.text(), st.tuples(st.text()), st.sampled_from(["certificate", "token"])),
    st.text(),
    st.text(alphabet="ipv46hostcdr=&.:/%012f", max_size=60),
    st.text(),
)
def test_any_claim_has_an_answer_of_one_printable_line(
    identity: Identity, agent_id: str, query: str, network: str
) -> None:
    try:
        claim = Identifiers.read_claim(query)
    except ValueError:
        claim = Identifiers()
    said = BY_NAME.judge(identity, agent_id, claim, network, node="n")
    assert said.isprintable()


def read(text: str) -> None:
    try:
        parse(text, "b.yaml")
    except ConfigError as error:
        assert all(line.startswith("b.yaml:") for line in str(error).splitlines())


@given(
    st.one_of(st.text(max_size=200), st.text(alphabet="{}[]:,-&*!|>'\"%# \n\ta1\\Ux", max_size=60))
)
def test_any_text_is_a_document_or_a_config_error(text: str) -> None:
    read(text)


@given(
    st.integers(0, len(DOCUMENT)), st.integers(0, 12), st.text("{}[]:,-&*! \n\"'a1~", max_size=6)
)
def test_a_damaged_document_is_one_or_a_config_error(at: int, cut: int, put: str) -> None:
    read(DOCUMENT[:at] + put + DOCUMENT[at + cut :])
