"""Which addresses are the node's, and which of them take node ports."""

from __future__ import annotations

import pytest

from isthmus.programs.node_proxy.kernel.host import (
    has_loopback,
    node_ips,
    ranges_of,
    within,
)
from isthmus.programs.node_proxy.rules.model import IpFamily

V4, V6 = IpFamily.IPV4, IpFamily.IPV6


@pytest.mark.parametrize(
    ("addresses", "bound", "primary", "v4", "v6"),
    [
        ((), "0.0.0.0", V4, "127.0.0.1", "::1"),
        (("10.0.0.1",), "0.0.0.0", V4, "10.0.0.1", "::1"),
        (("fd00::1",), "0.0.0.0", V6, "127.0.0.1", "fd00::1"),
        (("fd00::1", "10.0.0.1"), "0.0.0.0", V6, "10.0.0.1", "fd00::1"),
        (("10.0.0.1", "10.0.0.2", "fd00::1"), "::", V4, "10.0.0.1", "fd00::1"),
        (("10.0.0.1",), "10.9.9.9", V4, "10.9.9.9", "::1"),
        (("10.0.0.1", "fd00::1"), "fd00::9", V6, "10.0.0.1", "fd00::9"),
    ],
)
def test_node_addresses(
    addresses: tuple[str, ...], bound: str, primary: IpFamily, v4: str, v6: str
) -> None:
    found = node_ips(addresses, bound)
    assert found.primary is primary
    assert found.of == {V4: v4, V6: v6}


def test_a_loopback_address_is_nobodys() -> None:
    assert not node_ips((), "0.0.0.0").known
    assert node_ips(("10.0.0.1",), "0.0.0.0").known


@pytest.mark.parametrize(
    ("ranges", "family", "found"),
    [
        ((), V4, None),
        (("10.0.0.0/8",), V4, ("10.0.0.0/8",)),
        (("10.0.0.0/8",), V6, None),  # a family without any is not limited
        (("10.0.0.0/8", "0.0.0.0/0"), V4, None),
        (("primary",), V4, ("10.0.0.1/32",)),
        (("primary",), V6, None),  # ::1 says that it is not known
    ],
)
def test_ranges(ranges: tuple[str, ...], family: IpFamily, found: tuple[str, ...] | None) -> None:
    assert ranges_of(ranges, family, ("10.0.0.1", "::1")) == found


def test_primary_in_both_families() -> None:
    assert ranges_of(("primary",), V6, ("10.0.0.1", "fd00::1")) == ("fd00::1/128",)


@pytest.mark.parametrize(
    ("ranges", "loopback"),
    [
        (None, True),
        (("10.0.0.0/8",), False),
        (("127.0.0.0/8",), True),
        (("127.0.0.1/32",), True),
        (("128.0.0.0/1",), False),
        (("64.0.0.0/2",), True),
        (("fd00::/8",), False),
    ],
)
def test_loopback_in_ranges(ranges: tuple[str, ...] | None, loopback: bool) -> None:
    assert has_loopback(ranges) is loopback


def test_addresses_within_ranges_are_sorted_by_value() -> None:
    addresses = ("10.0.0.10", "10.0.0.9", "192.168.0.1", "10.0.0.9")
    assert within(addresses, ("10.0.0.0/8",)) == ("10.0.0.9", "10.0.0.10")
    assert within(addresses, ("172.16.0.0/12",)) == ()
    assert within(addresses, None) is None
