"""Both orders of --target: whatever the host is, what is written is what is read."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from hypothesis import assume, given
from hypothesis import strategies as st

from isthmus.dial.settings_targets import FLAG, Target, parse_target
from isthmus.errors import ConfigError
from isthmus.values import HostPort

ports = st.integers(1, 65535)
_labels = st.from_regex(r"[a-z0-9_]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
_names = st.lists(_labels, min_size=1, max_size=4).map(".".join)


def _is_host(text: str) -> bool:
    try:
        HostPort(text, 1)
    except ValueError:
        return False
    return True


hosts = st.one_of(
    _names.filter(_is_host),
    st.integers(0, 2**32 - 1).map(IPv4Address).map(str),
    st.integers(0, 2**128 - 1).map(IPv6Address).map(str),
)


@given(ports, hosts, ports)
def test_what_is_written_is_read_again(local_port: int, host: str, port: int) -> None:
    target = Target(local_port, HostPort(host, port))
    assert parse_target(str(target)) == (target, "")


@given(ports, hosts, ports)
def test_the_older_order_is_the_same_target(local_port: int, host: str, port: int) -> None:
    target = Target(local_port, HostPort(host, port))
    read, warning = parse_target(f"{target.destination}:{local_port}")
    assert read == target
    assert str(target) in warning


@given(ports, ports, ports)
def test_three_numbers_have_no_host(first: int, second: int, third: int) -> None:
    text = f"{first}:{second}:{third}"
    try:
        parse_target(text)
    except ConfigError as error:
        assert f"local port {first} to host {second}, port {third}" in str(error)
        assert f"host {first}, port {second}, from local port {third}" in str(error)
    else:
        raise AssertionError(text)


@given(st.text(alphabet="0123456789abz.:[]-_ é", max_size=40))
def test_any_text_is_a_target_or_one_sentence(text: str) -> None:
    try:
        target, warning = parse_target(text)
    except ConfigError as error:
        assert str(error).startswith(FLAG)
        assert "\n" not in str(error)
        return
    assert parse_target(str(target)) == (target, "")
    assume(warning)
    # The other reading of a text that is in the older order is never a target of its own.
    assert not text.partition(":")[0].isdigit()
