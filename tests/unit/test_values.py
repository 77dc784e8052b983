"""Targets and identities: what is allowed, how it is written, and what must not slip through."""

from __future__ import annotations

import pytest

from isthmus.errors import DialError, DialFailure, LinkError, LinkStage
from isthmus.values import ANONYMOUS, HostPort, Identity, is_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("example.com:443", "example.com", 443),
        ("example.com.:1", "example.com.", 1),
        ("kube_dns.kube-system.svc:53", "kube_dns.kube-system.svc", 53),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[2001:db8::1]:80", "2001:db8::1", 80),
        ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80),
    ],
)
def test_what_reads_writes_back(text: str, host: str, port: int) -> None:
    read = HostPort.parse(text)
    assert (read.host, read.port) == (host, port)
    assert str(read) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("example.com", "no port"),
        ("example.com:", "not a port"),
        ("example.com:http", "not a port"),
        ("example.com:+80", "not a port"),
        ("example.com:٤٤٣", "not a port"),
        ("example.com:000080", "not a port"),
        ("example.com:0", "out of range"),
        ("example.com:65536", "out of range"),
        (":80", "empty"),
        ("::1:80", "needs brackets"),
        ("[::1:80", "brackets"),
        ("[10.0.0.1]:80", "brackets"),
        ("[example.com]:80", "brackets"),
        ("[fe80::1%eth0]:80", "brackets"),
        ("exa mple.com:80", "not a host"),
        ("-a.com:80", "not a host"),
        ("a..b:80", "not a host"),
        ("a/b:80", "not a host"),
        ("a@b:80", "not a host"),
        ("a\nb:80", "not a host"),
        ("a.com\n:80", "not a host"),
        ("ä.example:80", "not a host"),
        ("x" * 64 + ":80", "not a host"),
        ("a." * 127 + "com:80", "too long"),
    ],
)
def test_what_does_not_read(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        HostPort.parse(text)


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0x7f.1", "0x7f000001", "010.0.0.1", "1.2.3.256", "1.2.3.4."]
)
def test_addresses_in_disguise_are_no_names(host: str) -> None:
    with pytest.raises(ValueError):
        HostPort(host, 80)


@pytest.mark.parametrize("host", ["10.0.0.1", "255.255.255.255", "::", "2001:db8::1"])
def test_literal_addresses(host: str) -> None:
    assert is_address(host)
    assert HostPort(host, 1).host == host


@pytest.mark.parametrize(
    "host", ["", "a", "10.0.0", "10.0.0.256", "fe80::1%eth0", ":", "10.0.0.1\n"]
)
def test_what_is_no_literal_address(host: str) -> None:
    assert not is_address(host)


def test_identities_say_how_they_were_proved() -> None:
    assert str(Identity("kube-apiserver")) == "certificate:kube-apiserver"
    assert str(Identity("0", kind="uid")) == "uid:0"
    assert str(ANONYMOUS) == "none:anonymous"


def test_errors_carry_their_reason() -> None:
    error = DialError(DialFailure.REFUSED, HostPort("::1", 80), "by the firewall")
    assert str(error) == "cannot dial [::1]:80: connection refused: by the firewall"
    assert (error.reason, error.detail) == (DialFailure.REFUSED, "by the firewall")
    assert str(DialError(DialFailure.TIMED_OUT, HostPort("a", 1))) == "cannot dial a:1: timed out"
    assert LinkError("gone").stage is LinkStage.LOST
