"""What an agent's two lists say of addresses and names."""

from __future__ import annotations

import pytest

from isthmus.dial.settings_endpoint_lists import UNLISTED, EndpointLists
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.options import compose


def lists(*, allow: str = "", deny: str = "") -> EndpointLists:
    """The lists of an agent with these flags, each a text with blanks in between."""
    settings = compose(
        AgentSettings,
        endpoint_allow=tuple(allow.split()),
        endpoint_deny=tuple(deny.split()),
        ca_cert="ca.crt",
    )
    return settings.endpoints.endpoint_lists


def entry(made: EndpointLists, host: str, port: int = 443) -> str:
    """The entry that refuses an address; empty: it may be dialed."""
    refusal = made.refuse_address(host, port)
    return refusal.entry if refusal is not None else ""


@pytest.mark.parametrize(
    ("host", "by"),
    [
        ("169.254.169.254", "169.254.0.0/16"),
        ("169.254.0.1", "169.254.0.0/16"),
        ("::ffff:169.254.169.254", "169.254.0.0/16"),
        ("::ffff:a9fe:a9fe", "169.254.0.0/16"),
        ("64:ff9b::169.254.169.254", "169.254.0.0/16"),
        ("64:ff9b::a9fe:a9fe", "169.254.0.0/16"),
        ("64:ff9b:1::a9fe:a9fe", "169.254.0.0/16"),
        ("64:ff9b:1:a9fe:a9:fe00::", "169.254.0.0/16"),  # a prefix of 48 bits, RFC 6052 §2.4
        ("fe80::1", "fe80::/10"),
        ("fe80::1%eth0", "fe80::/10"),
        ("febf::1", "fe80::/10"),
        ("fd00:ec2::254", "fd00:ec2::254"),
        ("fd00:0ec2:0:0:0:0:0:254", "fd00:ec2::254"),
        ("fd00:ec2::253", ""),
        ("169.253.255.255", ""),
        ("10.0.0.1", ""),
        ("127.0.0.1", ""),
        ("::1", ""),
        ("0.0.0.0", ""),
        ("64:ff9b::10.0.0.1", ""),
    ],
)
def test_what_is_denied_by_default(host: str, by: str) -> None:
    assert entry(lists(), host) == by


@pytest.mark.parametrize(
    ("allow", "deny", "host", "port", "by"),
    [
        # The more specific goes before.
        ("10.1.0.0/16", "10.0.0.0/8", "10.1.2.3", 443, ""),
        ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", 443, "10.1.0.0/16"),
        ("10.0.0.5:443", "10.0.0.5", "10.0.0.5", 443, ""),
        ("10.0.0.5:443", "10.0.0.5", "10.0.0.5", 80, "10.0.0.5"),
        ("10.0.0.5", "10.0.0.5:22", "10.0.0.5", 22, "10.0.0.5:22"),
        ("10.0.0.5", "10.0.0.5", "10.0.0.5", 22, "10.0.0.5"),
        # What is denied by default is allowed by exactly that, and by nothing wider.
        ("169.254.169.254", "", "169.254.169.254", 80, ""),
        ("169.254.0.0/16", "", "169.254.169.254", 80, ""),
        ("fd00:ec2::254", "", "fd00:ec2::254", 80, ""),
        ("0.0.0.0/0 ::/0", "", "169.254.169.254", 80, "169.254.0.0/16"),
        ("0.0.0.0/0 ::/0", "", "fe80::1", 80, "fe80::/10"),
        ("169.254.169.254", "169.254.169.254", "169.254.169.254", 80, "169.254.169.254"),
        # Anything that is allowed leaves the rest not allowed.
        ("10.0.0.0/8", "", "192.0.2.1", 443, UNLISTED),
        ("10.0.0.0/8:443", "", "10.0.0.1", 80, UNLISTED),
        ("10.0.0.0/8:8000-8999", "", "10.0.0.1", 8999, ""),
        ("10.0.0.0/8:8000-8999", "", "10.0.0.1", 9000, UNLISTED),
        ("[fd00::/8]:443", "", "fd00::1", 443, ""),
        ("[fd00::/8]:443", "", "fd00::1", 80, UNLISTED),
        ("*.example.com", "", "10.0.0.1", 443, UNLISTED),
        # What an address embeds is what it counts as.
        ("10.0.0.0/8", "", "64:ff9b::10.0.0.1", 443, ""),
        ("10.0.0.0/8", "", "64:ff9b::192.0.2.1", 443, UNLISTED),
        # A local translator's prefix may have any length: every reading has to be allowed.
        ("10.0.0.0/8", "", "64:ff9b:1:808:8:800:a00:1", 443, UNLISTED),
        ("", "64:ff9b::/96", "64:ff9b::10.0.0.1", 443, "64:ff9b::/96"),
        # Any address is the loopback address.
        ("", "loopback", "127.0.0.1", 8094, "loopback"),
        ("", "loopback", "127.8.8.8", 8094, "loopback"),
        ("", "loopback", "0.0.0.0", 8094, "loopback"),
        ("", "loopback", "::", 8094, "loopback"),
        ("", "loopback", "::1", 8094, "loopback"),
        ("", "loopback:8094", "::1", 8094, "loopback:8094"),
        ("", "loopback:8094", "::1", 8095, ""),
        ("", "loopback", "::ffff:127.0.0.1", 8094, "loopback"),
    ],
)
def test_which_entry_decides(allow: str, deny: str, host: str, port: int, by: str) -> None:
    assert entry(lists(allow=allow, deny=deny), host, port) == by


@pytest.mark.parametrize(
    ("allow", "deny", "name", "by"),
    [
        ("", "*.example.com", "db.example.com", "*.example.com"),
        ("", "*.example.com", "DB.Example.COM.", "*.example.com"),
        ("", "*.example.com", "example.com", ""),
        ("", "*.example.com", "notexample.com", ""),
        ("db.example.com", "*.example.com", "db.example.com", ""),
        ("*.db.example.com", "*.example.com", "a.db.example.com", ""),
        ("", "*", "anything", "*"),
        ("", "metadata.google.internal", "metadata.google.internal", "metadata.google.internal"),
        ("10.0.0.0/8", "", "anything", ""),  # its addresses decide
    ],
)
def test_names(allow: str, deny: str, name: str, by: str) -> None:
    refusal = lists(allow=allow, deny=deny).refuse_name(name, 443)
    assert (refusal.entry if refusal is not None else "") == by


@pytest.mark.parametrize(
    ("allow", "deny", "name", "host", "by"),
    [
        ("", "", "rebound.example", "169.254.169.254", "169.254.0.0/16"),
        ("*.example", "", "rebound.example", "169.254.169.254", "169.254.0.0/16"),
        ("*.example", "", "db.example", "192.0.2.1", ""),
        ("10.0.0.0/8", "", "db.example", "10.0.0.1", ""),
        ("10.0.0.0/8", "", "db.example", "192.0.2.1", UNLISTED),
        ("", "10.0.0.0/8", "db.example", "10.0.0.1", "10.0.0.0/8"),
    ],
)
def test_what_a_name_resolves_to(allow: str, deny: str, name: str, host: str, by: str) -> None:
    refusal = lists(allow=allow, deny=deny).refuse_found(name, host, 443)
    assert (refusal.entry if refusal is not None else "") == by


def test_a_refusal_names_the_list_and_the_address() -> None:
    denied = lists().refuse_address("fd00:ec2::254", 80)
    assert denied is not None
    assert denied.why == "fd00:ec2::254 of the agent's --endpoint-deny has [fd00:ec2::254]:80"
    unlisted = lists(allow="10.0.0.0/8").refuse_address("192.0.2.1", 80)
    assert unlisted is not None
    assert unlisted.why == "the agent's --endpoint-allow does not have 192.0.2.1:80"
