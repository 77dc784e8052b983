"""What an address means, and that all who compare addresses take a spelling for the same."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_network

import pytest

from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.rules_policy import Effect, Match, Policy, PolicyRule, Question, decide
from isthmus.dial.settings_destinations import parse_destinations
from isthmus.dial.settings_endpoint_lists import ALLOW, DENY, EndpointLists, parse_entries
from isthmus.dial.settings_networks import ClusterNetwork, Networks, Nowhere
from isthmus.hosting.rules import contains
from isthmus.net.rules_near import host_of
from isthmus.net.rules_proxies import ProxyRules
from isthmus.programs.apiserver_proxy.plan import ProxyPlan
from isthmus.text.addresses import is_loopback, plain_address, reached, reached_address
from isthmus.values import ANONYMOUS, HostPort

LOOPBACK, LOOPBACK_V6, INSIDE = "127.0.0.1", "::1", "10.1.2.3"

#: Spellings of an address that the kernel itself connects to it by.
SAME = [
    ("127.0.0.1", LOOPBACK),
    ("0.0.0.0", LOOPBACK),
    ("::ffff:0.0.0.0", LOOPBACK),
    ("::ffff:0:0", LOOPBACK),
    ("::ffff:127.0.0.1", LOOPBACK),
    ("::FFFF:7f00:1", LOOPBACK),
    ("0:0:0:0:0:ffff:7f00:0001", LOOPBACK),
    ("::1", LOOPBACK_V6),
    ("0000:0:0::0001", LOOPBACK_V6),
    ("::", LOOPBACK_V6),
    ("0:0:0:0:0:0:0:0", LOOPBACK_V6),
    ("10.1.2.3", INSIDE),
    ("::ffff:10.1.2.3", INSIDE),
]
#: Those of a translator.
TRANSLATED = [
    ("64:ff9b::7f00:1", LOOPBACK),
    ("64:ff9b::0.0.0.0", LOOPBACK),
    ("64:ff9b::10.1.2.3", INSIDE),
    ("0064:FF9B:0::a01:203", INSIDE),
]
#: Those of a tunnel's end, or of a translator that may mean something else.
TUNNELLED = [
    ("::127.0.0.1", LOOPBACK),
    ("::ffff:0:127.0.0.1", LOOPBACK),
    ("2002:7f00:1::", LOOPBACK),
    ("2002::1", LOOPBACK),
    ("2002:a01:203::5", INSIDE),
    ("2001:0:a01:203::1", INSIDE),  # Teredo, its server
    ("2001:0:808:808:0:0:f5fe:fdfc", INSIDE),  # Teredo, its client, whose bits are inverted
    ("fd00::5efe:10.1.2.3", INSIDE),  # ISATAP
    ("64:ff9b:1::10.1.2.3", INSIDE),
    ("64:ff9b:1:a01:2:300::", INSIDE),
]
#: What is an address for some resolvers only, and refused by everybody.
REFUSED = [
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "127.000.000.001",
    "127.0.0.01",
    "127.0.0.1.",
    "0",
    "0.0",
    "0x0",
    "00000000",
    "::ffff:127.1",
    "::ffff:0177.0.0.1",
    "::1%lo",
    "fe80::1%eth0",
    "::1%",
    "127.0.0.1%lo",
    "１２７.0.0.1",
    "127。0。0。1",
    "::ffff:0x7f.1",
    "0:0:0:0:0:0:0:0:1",
]

PORT = 443
DIRECT = NetworkConnection(protocol=NetworkProtocol.DIRECT)


def policy(of: str, effect: Effect) -> Callable[[str], bool]:
    """Whether a policy with one rule for an address lets another be dialed."""
    other = Effect.DENY if effect is Effect.ALLOW else Effect.ALLOW
    rule = PolicyRule(name="one", effect=effect, match=Match(cidrs=(ip_network(of),)))
    everything = ClusterNetwork(name="all", cidrs=(ip_network("0.0.0.0/0"), ip_network("::/0")))

    def allows(host: str) -> bool:
        target = HostPort(host, PORT)
        found = set()
        # The default, and a last rule that says the same.
        for rules, default in (
            ((rule,), other),
            ((rule, PolicyRule(name="rest", effect=other)), effect),
        ):
            made = Policy(rules=rules, default=default)
            asked = Question(requester=ANONYMOUS, network="", target=target)
            found.add(made.decide(asked).allowed)
            deciding = [it.rule.name for it in made.verdicts(asked) if it.decides]
            assert deciding == [made.decide(asked).rule] or made.decide(asked).rule == "(default)"
            through = decide(
                Networks([everything]), made, target=target, requester=ANONYMOUS, asked="",
                claimed=lambda _: (),
            )  # fmt: skip
            found.add(through.allowed)
        (answer,) = found
        return answer

    return allows


def denying(of: str) -> dict[str, Callable[[str], bool]]:
    """Everybody who can deny an address: whether it lets another be dialed."""
    lists = EndpointLists(deny=parse_entries(DENY, [of]))
    return {
        "policy": policy(of, Effect.DENY),
        "endpoint list": lambda host: lists.refuse_address(host, PORT) is None,
        "endpoint list, by a name": lambda host: lists.refuse_found("a.b", host, PORT) is None,
        "hosted networks": lambda host: not contains(str(ip_network(of)), host),
    }


def allowing(of: str) -> dict[str, Callable[[str], bool]]:
    """Everybody who can allow one address and no other: whether it lets another be dialed."""
    lists = EndpointLists(allow=parse_entries(ALLOW, [of]))
    listed = parse_destinations([str(HostPort(of, PORT))])
    network = ClusterNetwork(name="one", cidrs=(ip_network(of),))
    networks = Networks([network, ClusterNetwork(name="two", cidrs=(ip_network("192.0.2.0/24"),))])
    config = ConnectivityConfig(
        networks={"one": NetworkConfig(name="one", connection=DIRECT, cidrs=(ip_network(of),))}
    )
    return {
        "policy": policy(of, Effect.ALLOW),
        "endpoint list": lambda host: lists.refuse_address(host, PORT) is None,
        "endpoint list, by a name": lambda host: lists.refuse_found("a.b", host, PORT) is None,
        "destinations": lambda host: listed.judge(HostPort(host, PORT)).target is not None,
        "destinations, by a name": lambda host: listed.covering(host, PORT) is not None,
        "network": network.holds,
        "networks": lambda host: networks.holding(host) is network,
        "networks, a route": lambda host: (
            not isinstance(networks.route(HostPort(host, PORT), "", lambda _: ()), Nowhere)
        ),
        "client": lambda host: config.network_of(HostPort(host, PORT)) is not None,
    }


def connecting(of: str) -> dict[str, Callable[[str], bool]]:
    """Everybody who only asks where the kernel connects: whether that is this address."""
    at = f"[{of}]" if ":" in of else of
    rules = ProxyRules.from_environment({"HTTPS_PROXY": "http://p:1", "NO_PROXY": f"{at},{of}/128"})
    plan = ProxyPlan(listen=((of, PORT),))
    return {
        "near": lambda host: host_of(host) == host_of(of),
        "proxies": lambda host: rules.proxy_for(host, PORT) is None,
        "apiserver-proxy": lambda host: plan.leads_to_itself(HostPort(host, PORT)),
    }


@pytest.mark.parametrize(("spelled", "means"), [*SAME, *TRANSLATED, *TUNNELLED])
def test_a_denied_address_is_denied_in_every_spelling(spelled: str, means: str) -> None:
    verdicts = {who: allows(spelled) for who, allows in denying(means).items()}
    assert not any(verdicts.values()), verdicts


@pytest.mark.parametrize(("spelled", "means"), [*SAME, *TRANSLATED])
def test_an_allowed_address_is_allowed_in_every_spelling(spelled: str, means: str) -> None:
    verdicts = {who: allows(spelled) for who, allows in allowing(means).items()}
    assert all(verdicts.values()), verdicts


@pytest.mark.parametrize(("spelled", "means"), TUNNELLED)
def test_allowing_an_address_allows_no_tunnel_to_it(spelled: str, means: str) -> None:
    verdicts = {who: allows(spelled) for who, allows in allowing(means).items()}
    assert not any(verdicts.values()), verdicts


@pytest.mark.parametrize(
    "other", ["192.0.2.9", "2001:db8::1", "64:ff9b::192.0.2.9", "2002:c000:209::"]
)
@pytest.mark.parametrize("of", [LOOPBACK, LOOPBACK_V6, INSIDE])
def test_another_address_is_another(other: str, of: str) -> None:
    assert all(allows(other) for allows in denying(of).values())
    others = {
        who: allows(other) for who, allows in allowing(of).items() if who != "networks, a route"
    }
    assert not any(others.values()), others


@pytest.mark.parametrize(("spelled", "means"), SAME)
def test_where_the_kernel_connects_is_one_answer(spelled: str, means: str) -> None:
    verdicts = {who: is_it(spelled) for who, is_it in connecting(means).items()}
    assert all(verdicts.values()), verdicts
    assert reached_address(spelled) == ip_address(means)


@pytest.mark.parametrize("spelled", REFUSED)
def test_what_only_some_resolvers_read_is_refused(spelled: str) -> None:
    with pytest.raises(ValueError, match=r"host|address|zone"):
        HostPort(spelled, PORT)
    with pytest.raises(ValueError, match=r"host|address|brackets|port"):
        HostPort.parse(f"{spelled}:{PORT}")


def test_any_address_as_it_is_spelled_can_be_denied_too() -> None:
    for text, host in (("0.0.0.0/8", "0.0.0.0"), ("::/128", "::")):
        lists = EndpointLists(deny=parse_entries(DENY, [text]))
        assert lists.refuse_address(host, PORT) is not None


def test_a_range_of_a_translator_can_be_allowed_as_such() -> None:
    """Behind NAT64 every IPv4 address has one of these, and they are what a resolver gives."""
    rules = (
        PolicyRule(
            name="nat64", effect=Effect.ALLOW, match=Match(cidrs=(ip_network("64:ff9b::/96"),))
        ),
        PolicyRule(name="rest", effect=Effect.DENY),
    )
    asked = Question(requester=ANONYMOUS, network="", target=HostPort("64:ff9b::10.1.2.3", PORT))
    assert Policy(rules=rules).decide(asked).rule == "nat64"
    loopback = PolicyRule(
        name="loopback", effect=Effect.DENY, match=Match(cidrs=(ip_network("10.0.0.0/8"),))
    )
    found = Policy(rules=(*rules, loopback)).decide(asked)
    assert (found.allowed, found.rule) == (True, "nat64")
    found = Policy(rules=(rules[0], loopback, rules[1])).decide(asked)
    assert (found.allowed, found.rule) == (False, "loopback")


def test_destinations_are_dialed_as_the_kernel_takes_them_and_translators_as_they_are() -> None:
    listed = parse_destinations(["127.0.0.1:443", "10.1.2.3:443"])
    assert listed.judge(HostPort("::ffff:0.0.0.0", 443)).target == HostPort("127.0.0.1", 443)
    nat64 = HostPort("64:ff9b::a01:203", 443)
    assert listed.judge(nat64).target == nat64


def test_an_address_after_a_lookup_may_have_a_zone() -> None:
    lists = EndpointLists(deny=parse_entries(DENY, ["fe80::/10"]))
    assert lists.refuse_found("a.b", "fe80::1%eth0", PORT) is not None
    assert parse_destinations(["[fe80::/10]:443"]).covering("fe80::1%eth0", PORT) is None


def test_who_listens_at_any_address_does_not_listen_at_loopback() -> None:
    assert all(
        map(is_loopback, ("localhost", "LocalHost.", "127.9.9.9", "::1", "::ffff:127.0.0.1"))
    )
    others = ("0.0.0.0", "::", "", "10.0.0.1", "127.0.0.1%x", "127.1", "localhost.evil")
    assert not any(map(is_loopback, others))
    assert plain_address("::ffff:0.0.0.0").is_unspecified


def test_the_forms_of_rfc_6052() -> None:
    # §2.4: 192.0.2.33 below prefixes of several lengths, here with the well-known and local ones.
    wanted = ip_address("192.0.2.33")
    for text in ("64:ff9b::192.0.2.33", "64:ff9b:1:c000:2:2100::", "64:ff9b:1:0:c0:2:2100:0"):
        assert wanted in reached(text).translated, text
