"""What nodes may reach: what was asked, however it is spelled, against what is listed."""

from __future__ import annotations

import pytest

from isthmus.dial.settings_destinations import DENIED, Destinations, Ruling, parse_destinations
from isthmus.values import HostPort

LISTED = parse_destinations(
    [
        "localhost:6443",
        "Api.Example.com:443",
        "rooted.example.com.:443",
        "127.0.0.1:6444",
        "10.0.0.0/28:6443",
        "[fd00::/64]:6443",
        "[::1]:6445",
    ]
)


def judged(host: str, port: int) -> Ruling:
    return LISTED.judge(HostPort(host, port))


def rule(host: str, port: int) -> str:
    """Which destination permits it; "resolve" when its addresses decide, empty when none."""
    ruling = judged(host, port)
    if ruling.target is None:
        return ""
    return "resolve" if ruling.by is None else str(ruling.by)


@pytest.mark.parametrize(
    ("host", "port", "by"),
    [
        ("10.0.0.1", 6443, "10.0.0.0/28:6443"),
        ("10.0.0.15", 6443, "10.0.0.0/28:6443"),
        ("10.0.0.16", 6443, ""),
        ("10.0.0.1", 6444, ""),
        ("127.0.0.1", 6444, "127.0.0.1:6444"),
        ("127.0.0.1", 6443, ""),  # localhost is listed with this port, its address is not
        ("127.0.0.2", 6444, ""),
        ("fd00::1", 6443, "[fd00::/64]:6443"),
        ("FD00:0:0:0:0:0:0:1", 6443, "[fd00::/64]:6443"),
        ("fd00:0:0:1::1", 6443, ""),
        ("::1", 6445, "[::1]:6445"),
        # Where the kernel connects to what is asked decides, not how it is written.
        ("::ffff:127.0.0.1", 6444, "127.0.0.1:6444"),
        ("::ffff:7f00:1", 6444, "127.0.0.1:6444"),
        ("::ffff:10.0.0.5", 6443, "10.0.0.0/28:6443"),
        ("::ffff:10.0.0.16", 6443, ""),
        ("::127.0.0.1", 6444, ""),  # IPv4-compatible, which no kernel translates
        ("0.0.0.0", 6444, "127.0.0.1:6444"),
        ("::ffff:0.0.0.0", 6444, "127.0.0.1:6444"),
        ("::", 6445, "[::1]:6445"),
        ("0.0.0.0", 6443, ""),
    ],
)
def test_addresses(host: str, port: int, by: str) -> None:
    assert rule(host, port) == by


@pytest.mark.parametrize(
    ("host", "port", "by"),
    [
        ("localhost", 6443, "localhost:6443"),
        ("LocalHost", 6443, "localhost:6443"),
        ("localhost.", 6443, "localhost:6443"),
        ("api.example.com", 443, "Api.Example.com:443"),
        ("API.EXAMPLE.COM.", 443, "Api.Example.com:443"),
        ("rooted.example.com", 443, "rooted.example.com.:443"),
        ("localhost", 6444, "resolve"),  # an address with this port is listed
        ("localhost", 443, ""),  # no address with this port is
        ("localhost.example.com", 443, ""),
        ("xapi.example.com", 443, ""),
        ("other.example.com", 6443, "resolve"),
    ],
)
def test_names(host: str, port: int, by: str) -> None:
    assert rule(host, port) == by


def test_what_is_dialed_is_spelled_as_it_is_listed() -> None:
    assert judged("API.example.COM.", 443).target == HostPort("Api.Example.com", 443)
    assert judged("rooted.example.com", 443).target == HostPort("rooted.example.com.", 443)
    assert judged("::ffff:10.0.0.5", 6443).target == HostPort("10.0.0.5", 6443)
    assert judged("0.0.0.0", 6444).target == HostPort("127.0.0.1", 6444)
    assert judged("other", 6443).target == HostPort("other", 6443)


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f.1", "0x7f000001", "017700000001", "127.1", "127.0.0.1.", "0x7f.0.0.0x1",
     "127.0.0.01", "127.0.0.1%lo", "::1%lo", "①27.0.0.1", "127。0。0。1", "", " 127.0.0.1"],
)  # fmt: skip
def test_what_a_resolver_may_read_as_an_address_is_no_name(host: str) -> None:
    with pytest.raises(ValueError):
        HostPort(host, 6443)


@pytest.mark.parametrize(
    ("host", "port", "by"),
    [
        ("10.0.0.3", 6443, "10.0.0.0/28:6443"),
        ("::ffff:10.0.0.3", 6443, "10.0.0.0/28:6443"),
        ("0.0.0.0", 6444, "127.0.0.1:6444"),
        ("10.0.0.3", 443, "None"),
        ("192.0.2.1", 6443, "None"),
        ("fd00::2%eth0", 6443, "None"),
    ],
)
def test_what_a_name_resolved_to(host: str, port: int, by: str) -> None:
    assert str(LISTED.covering(host, port)) == by


def test_nothing_listed_is_everything_denied() -> None:
    nothing = Destinations()
    assert not nothing
    for asked in (HostPort("localhost", 6443), HostPort("127.0.0.1", 6443), HostPort("::1", 1)):
        assert nothing.judge(asked) is DENIED
        assert nothing.covering("127.0.0.1", asked.port) is None


def test_every_ipv6_address_is_no_ipv4_address() -> None:
    every = parse_destinations(["[::/0]:1"])
    assert every.judge(HostPort("::ffff:10.0.0.1", 1)) is DENIED
    assert every.judge(HostPort("fd00::1", 1)).by is not None
