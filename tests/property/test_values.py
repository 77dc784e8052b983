"""Values that are text on the outside: what is written reads back, and nothing else is raised."""

from __future__ import annotations

import contextlib
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.settings.identifiers import Identifiers
from isthmus.text.durations import format_duration, parse_duration
from isthmus.values import HostPort

label = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,8}[a-z0-9_])?", fullmatch=True)
# The last label begins with a letter: a name that ends in a number is an address in disguise.
last = st.from_regex(r"[a-z]([a-z0-9_-]{0,8}[a-z0-9_])?", fullmatch=True)
name = st.builds(lambda labels, end: ".".join([*labels, end]), st.lists(label, max_size=3), last)
ipv4 = st.integers(0, 2**32 - 1).map(lambda number: str(IPv4Address(number)))
ipv6 = st.integers(0, 2**128 - 1).map(lambda number: str(IPv6Address(number)))
cidr = st.one_of(
    st.builds(
        lambda host, bits: str(ip_network(f"{host}/{bits}", False)), ipv4, st.integers(0, 32)
    ),
    st.builds(
        lambda host, bits: str(ip_network(f"{host}/{bits}", False)), ipv6, st.integers(0, 128)
    ),
)
identifiers = st.builds(
    Identifiers,
    ipv4=st.lists(ipv4, max_size=3).map(tuple),
    ipv6=st.lists(ipv6, max_size=3).map(tuple),
    host=st.lists(name, max_size=3).map(tuple),
    cidr=st.lists(cidr, max_size=3).map(tuple),
    default_route=st.booleans(),
)
duration_like = st.text(alphabet="0123456789.-+hmsnuµ ", max_size=20)


# Up to about eleven days a float of seconds still tells nanoseconds apart.
@given(st.integers(-(10**15), 10**15))
def test_a_duration_reads_back(nanoseconds: int) -> None:
    seconds = nanoseconds / 1e9
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.one_of(duration_like, st.text(max_size=80)))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    again = parse_duration(format_duration(seconds))
    assert again == pytest.approx(seconds, rel=1e-9, abs=1e-9)


part = st.tuples(st.integers(0, 999), st.sampled_from(["h", "m", "s", "ms"]))


@given(st.lists(part, min_size=1, max_size=10))
def test_parts_of_a_duration_add_up(parts: list[tuple[int, str]]) -> None:
    texts = [f"{number}{unit}" for number, unit in parts]
    assert parse_duration("".join(texts)) == pytest.approx(sum(map(parse_duration, texts)))


@given(identifiers)
def test_identifiers_read_back(value: Identifiers) -> None:
    assert Identifiers.parse(value.to_query()) == value
    assert Identifiers.read_claim(value.to_query()) == value


@given(st.one_of(st.text(max_size=60), st.text(alphabet="hostipvcdr46=&%:/.-+;", max_size=40)))
def test_any_text_is_identifiers_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        Identifiers.read_claim(text)
    try:
        strict = Identifiers.parse(text)
    except ValueError:
        return
    assert strict == Identifiers.read_claim(text)
    assert Identifiers.parse(strict.to_query()) == strict


@given(st.one_of(name, ipv4, ipv6), st.integers(1, 65535))
def test_a_host_and_port_read_back(host: str, port: int) -> None:
    value = HostPort(host, port)
    assert HostPort.parse(str(value)) == value


@given(st.one_of(st.text(max_size=40), st.text(alphabet="[]:.0123456789abcf%-", max_size=30)))
def test_any_text_is_a_host_and_port_or_a_value_error(text: str) -> None:
    try:
        value = HostPort.parse(text)
    except ValueError:
        return
    assert HostPort.parse(str(value)) == value


@given(st.one_of(st.integers(max_value=0), st.integers(min_value=65536)))
def test_no_other_port_exists(port: int) -> None:
    with pytest.raises(ValueError, match="port out of range"):
        HostPort("a", port)
