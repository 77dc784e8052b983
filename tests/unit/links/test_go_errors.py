"""Dial failures as Go says them: read from its texts, and written so that it reads them."""

from __future__ import annotations

import pytest

from isthmus.errors import DialFailure
from isthmus.links.go_errors import detail_in, failure_in, go_text
from isthmus.values import HostPort

TARGET = HostPort("10.0.0.1", 443)


# As Go's net package writes them (net/dial.go, net/dnsclient.go, syscall's errno texts on Linux).
@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("dial tcp 10.0.0.1:443: connect: connection refused", DialFailure.REFUSED),
        ("dial tcp 10.0.0.1:443: i/o timeout", DialFailure.TIMED_OUT),
        ("dial tcp 10.0.0.1:443: connect: connection timed out", DialFailure.TIMED_OUT),
        ("context deadline exceeded", DialFailure.TIMED_OUT),
        ("dial tcp 10.0.0.1:443: connect: no route to host", DialFailure.UNREACHABLE),
        ("dial tcp 10.0.0.1:443: connect: network is unreachable", DialFailure.UNREACHABLE),
        ("dial tcp: lookup nowhere on 10.0.0.2:53: no such host", DialFailure.UNRESOLVED),
        ("dial tcp: lookup x on 10.0.0.2:53: server misbehaving", DialFailure.UNRESOLVED),
        ("dial tcp 10.0.0.1:443: socket: too many open files", DialFailure.TOO_MANY),
        ("Dial TCP: Connect: Connection Refused", DialFailure.REFUSED),
        ("dial tcp 10.0.0.1:443: connect: permission denied", DialFailure.DENIED),
        ("something else went wrong", DialFailure.INTERNAL),
        ("", DialFailure.INTERNAL),
    ],
)
def test_what_go_says_is_understood(text: str, failure: DialFailure) -> None:
    assert failure_in(text, TARGET) is failure


@pytest.mark.parametrize("failure", DialFailure)
def test_every_failure_can_be_said_and_is_understood_as_the_same(failure: DialFailure) -> None:
    text = go_text(failure, TARGET, "because")
    assert text.startswith("dial tcp")
    assert "10.0.0.1" in text
    assert failure_in(text, TARGET) is failure


@pytest.mark.parametrize("failure", DialFailure)
@pytest.mark.parametrize("words", ["timeout", "denied", "unreachable", "no-such-host"])
def test_neither_a_name_nor_a_detail_is_taken_for_the_failure(
    failure: DialFailure, words: str
) -> None:
    target = HostPort(f"{words}.example", 443)
    text = go_text(failure, target, "timeout, connection refused, denied by policy")
    assert failure_in(text, target) is failure


def test_a_detail_of_ours_comes_out_as_it_went_in_and_what_go_says_stays() -> None:
    ours = go_text(DialFailure.DENIED, TARGET, "10.0.0.1:443: it is not listed")
    assert detail_in(ours, TARGET) == "10.0.0.1:443: it is not listed"
    for text in ("dial tcp 10.0.0.1:443: connect: connection refused", "denied by somebody", ""):
        assert detail_in(text, TARGET) == text


def test_gos_server_finds_the_words_it_looks_for() -> None:
    assert "timeout" in go_text(DialFailure.TIMED_OUT, TARGET, "")
    assert "too many open files" in go_text(DialFailure.TOO_MANY, TARGET, "")


def test_texts_are_gos_own() -> None:
    assert go_text(DialFailure.REFUSED, HostPort("::1", 80), "ECONNREFUSED") == (
        "dial tcp [::1]:80: connect: connection refused"
    )
    assert go_text(DialFailure.UNRESOLVED, HostPort("nowhere", 80), "") == (
        "dial tcp: lookup nowhere: no such host"
    )
