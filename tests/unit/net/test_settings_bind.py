"""Where an agent accepts node traffic: what can be said, and the sentence for what cannot."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.net.settings_bind import BindSettings, parse_bind_address
from isthmus.settings.parsing import listed, load


def settings(*uplinks: str, address: str = "10.0.0.1", interface: str = "isthmus0") -> BindSettings:
    texts = listed((address,))
    return BindSettings(address=texts, interface=interface, uplink_interface=uplinks)


def refusal(found: BindSettings) -> str:
    with pytest.raises(ConfigError) as caught:
        found.check()
    return str(caught.value)


def test_nothing_is_bound_unless_somebody_says_so() -> None:
    assert BindSettings().bound_addresses == ()
    assert BindSettings().check() == []


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "172.20.0.1", "192.168.7.7", "100.64.0.1", "fd00::1", "FD00:0::0001"]
)
def test_private_addresses_are_good(text: str) -> None:
    found = settings(address=text)
    assert found.check() == []
    assert found.bound_addresses == (ip_address(text),)


@pytest.mark.parametrize(
    "texts",
    [["10.0.0.1,fd00::1"], ["10.0.0.1", "fd00::1"], ["10.0.0.1,fd00::1", "FD00:0::1", "10.0.0.1"]],
)
def test_one_address_of_each_family(texts: list[str]) -> None:
    found = load(BindSettings, {"bind_address": texts}, {})
    assert found.check() == []
    assert found.bound_addresses == (IPv4Address("10.0.0.1"), IPv6Address("fd00::1"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10.0.0.1,10.0.0.2", "10.0.0.1 and 10.0.0.2 are both IPv4"),
        ("fd00::1,10.0.0.1,fd00::2", "fd00::1 and fd00::2 are both IPv6"),
    ],
)
def test_two_of_one_family_are_refused(text: str, said: str) -> None:
    assert said in refusal(settings(address=text))


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700::1111"])
def test_public_addresses_are_warned_about(text: str) -> None:
    (warning,) = settings(address=text).check()
    assert warning.startswith(f"--bind-address {text} is a public address: ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("127.0.0.1", "a loopback address"),
        ("127.99.0.1", "a loopback address"),
        ("::1", "a loopback address"),
        ("169.254.20.10", "a link-local address"),
        ("fe80::1", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("0.0.0.0", "the unspecified address"),
        ("::", "the unspecified address"),
        ("255.255.255.255", "the broadcast address"),
        ("0.1.2.3", 'an address of "this network", 0.0.0.0/8'),
    ],
)
def test_addresses_that_no_service_can_have_are_refused(text: str, why: str) -> None:
    assert refusal(settings(address=text)).startswith(f"--bind-address {text} is {why}; use ")


@pytest.mark.parametrize(
    "text", ["apiserver", "10.0.0", "10.0.0.1:6443", "10.0.0.1/32", "[fd00::1]", "fe80::1%eth0"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert refusal(settings(address=text)).startswith("--bind-address takes an IPv4 or IPv6 addr")


def test_a_mapped_address_is_written_as_what_it_is() -> None:
    said = refusal(settings(address="::ffff:10.0.0.1"))
    assert said == "--bind-address ::ffff:10.0.0.1 is an IPv4 address: write 10.0.0.1"


@given(st.ip_addresses())
def test_an_address_is_read_or_refused_and_never_another(
    address: IPv4Address | IPv6Address,
) -> None:
    try:
        found = parse_bind_address(str(address))
    except ConfigError as error:
        assert str(error).startswith(f"--bind-address {address} is ")
    else:
        assert found == address
        assert not found.is_loopback
        assert not found.is_link_local
        assert not found.is_multicast


@given(st.text())
def test_any_text_is_an_address_or_a_sentence(text: str) -> None:
    try:
        found = parse_bind_address(text)
    except ConfigError as error:
        assert str(error).startswith("--bind-address ")
    else:
        assert ip_address(text) == found


@pytest.mark.parametrize(
    "name", ["", "a" * 16, "eth0/1", "eth 0", "eth0:1", ".", "..", "eth*", 'a"b']
)
def test_names_that_no_interface_has_are_refused(name: str) -> None:
    for flag, found in (
        ("bind-interface", settings(interface=name)),
        ("uplink-interface", settings("eth1", name)),
    ):
        assert refusal(found).startswith(f"--{flag} requires an interface name of at most 15")


def test_uplinks_add_up() -> None:
    given_twice = {"bind_address": ["10.0.0.1"], "uplink_interface": ["eth0,bond0.7", "br-ex"]}
    found = load(BindSettings, given_twice, {})
    assert found.uplink_interface == ("eth0", "bond0.7", "br-ex")
    assert found.check() == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (settings("none", "eth0"), "--uplink-interface=none cannot be combined with an interface"),
        (settings("isthmus0"), "--uplink-interface isthmus0 is also the --bind-interface"),
        (settings("lo"), "--uplink-interface lo would drop the connections of this node"),
    ],
)
def test_uplinks_that_make_no_sense_are_refused(found: BindSettings, said: str) -> None:
    assert refusal(found) == said


def test_none_is_good_alone() -> None:
    assert settings("none").check() == []


def test_uplinks_without_an_address_are_said_to_be_in_vain() -> None:
    said = settings("eth0", address="").check()
    assert said == ["--uplink-interface has no effect without --bind-address"]
