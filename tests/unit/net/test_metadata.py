"""The addresses where clouds keep credentials: one list, and how one of them is allowed."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from isthmus.dial.settings_endpoint_lists import DENIED_BY_DEFAULT
from isthmus.errors import ConfigError
from isthmus.net.rules_metadata import METADATA, NO_METADATA, MetadataGuard
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings

DENIED = [
    "169.254.169.254",
    "169.254.170.2",
    "fe80::a9fe:a9fe",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:c1::a9fe:a9fe",
    "fd00:a9fe:a9fe::1",
    "fd00:42::42",
    "168.63.129.16",
    "::ffff:169.254.169.254",
    "::ffff:100.100.100.200",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::168.63.129.16",
    "2002:a9fe:a9fe::",
]


@pytest.mark.parametrize("host", DENIED)
def test_denied_unless_exactly_that_is_allowed(host: str) -> None:
    assert "clouds serve credentials at" in NO_METADATA.refuse(host)
    wide = MetadataGuard(map(ip_network, ("0.0.0.0/0", "::/0", "169.0.0.0/8", "fd00::/8")))
    assert wide.refuse(host)
    assert not MetadataGuard(map(ip_network, METADATA)).refuse(host)


def test_one_that_is_allowed_is_no_other() -> None:
    guard = MetadataGuard([ip_network("169.254.20.10")])
    assert not guard.refuse("169.254.20.10")
    assert not guard.refuse("::ffff:169.254.20.10")
    assert guard.refuse("169.254.20.11")
    assert guard.refuse("100.100.100.200")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.1", "192.0.0.191", "fd00:ec2::253"])
def test_others_are_dialed(host: str) -> None:
    assert NO_METADATA.refuse(host) == ""


def test_agents_have_the_same_list() -> None:
    assert DENIED_BY_DEFAULT == METADATA


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.0.0.1", "not denied"),
        ("0.0.0.0/0", "not denied"),
        ("x", "x: is not"),
    ],
)
def test_what_a_sidecar_cannot_allow(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        _ = Socks5ProxySettings(allow_metadata_address=(text,)).metadata_allowed


def test_what_a_sidecar_allows() -> None:
    given = Socks5ProxySettings(allow_metadata_address=("169.254.20.10", "fd00:ec2::254"))
    assert given.metadata_allowed == (ip_network("169.254.20.10"), ip_network("fd00:ec2::254"))
