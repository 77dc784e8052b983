"""Gates and destinations of any text, and the list against a slower way to say the same."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_network

from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.dial.settings_destinations import Destination, Destinations, parse_destination
from isthmus.errors import ConfigError
from isthmus.settings.gates import GATES, parse_gates
from isthmus.text.addresses import IpNetwork
from isthmus.values import HostPort, is_address

ports = st.integers(1, 3)
# Few bits in play, so that containment happens often.
addresses = st.one_of(
    st.builds(lambda bits: IPv4Address(bits << 28 | 1), st.integers(0, 15)),
    st.builds(lambda bits: IPv6Address(bits << 124 | 1), st.integers(0, 15)),
)
networks: st.SearchStrategy[IpNetwork] = st.one_of(
    st.builds(
        lambda bits, length: ip_network((bits << 28, length), strict=False),
        st.integers(0, 15),
        st.integers(0, 6),
    ),
    st.builds(
        lambda bits, length: ip_network((bits << 124, length), strict=False),
        st.integers(0, 15),
        st.integers(0, 6),
    ),
)
names = st.sampled_from(["a", "A.", "b.c", "B.C."])
listed = st.one_of(
    st.builds(Destination, network=networks, port=ports),
    st.builds(Destination, name=names, port=ports),
)
hosts = st.text("0123456789abcdefxABCDEFX.:-[]/%*", max_size=20)


@given(st.lists(listed, max_size=6), addresses, ports)
def test_an_address_is_permitted_when_some_network_has_it(
    destinations: list[Destination], address: IPv4Address | IPv6Address, port: int
) -> None:
    ruling = Destinations(destinations).judge(HostPort(str(address), port))
    found = [
        it
        for it in destinations
        if it.network is not None and it.port == port and address in it.network
    ]
    assert (ruling.by in found) if found else (ruling.target is None)


@given(st.lists(listed, max_size=6), names, ports)
def test_a_name_is_permitted_when_it_is_listed_and_looked_up_when_it_may_help(
    destinations: list[Destination], name: str, port: int
) -> None:
    ruling = Destinations(destinations).judge(HostPort(name, port))
    plain = name.lower().rstrip(".")
    found = [it for it in destinations if it.name.lower().rstrip(".") == plain and it.port == port]
    if found:
        assert ruling.by in found
        assert ruling.target == HostPort(ruling.by.name, port)
    else:
        assert ruling.by is None
        may_help = any(it.network is not None and it.port == port for it in destinations)
        assert (ruling.target is not None) is may_help


@given(listed)
def test_what_is_written_is_read_again(destination: Destination) -> None:
    assert parse_destination(str(destination)) == destination


@given(st.one_of(st.text(max_size=40), st.builds("{}:{}".format, hosts, st.integers(-1, 70000))))
@example("[::ffff:0:0/96]:1")
@example("1.2.3.4/08:1")
def test_any_text_is_a_destination_or_one_sentence(text: str) -> None:
    try:
        read = parse_destination(text)
    except ConfigError as error:
        assert str(error).startswith("--allowed-destination ")
    else:
        assert parse_destination(str(read)) == read


@given(hosts)
@example("0x7f.1")
@example("2130706433")
@example("1.2.3.0x")
def test_nothing_that_the_system_reads_as_an_address_passes_as_a_name(host: str) -> None:
    try:
        asked = HostPort(host, 1)
    except ValueError:
        return
    if is_address(host):
        return
    try:
        socket.getaddrinfo(asked.host, 1, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return
    raise AssertionError(f"{host!r} is an address to getaddrinfo")


@given(st.lists(st.text(max_size=40), max_size=4))
@example(["AllAlpha=true"])
def test_any_text_is_a_list_of_gates_or_one_sentence(texts: list[str]) -> None:
    try:
        gates = parse_gates(texts)
    except ConfigError as error:
        assert str(error).startswith("--feature-gates: ")
    else:
        assert gates.keys() == GATES.keys()
