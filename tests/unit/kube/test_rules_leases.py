"""Leases without an API: who is valid when, who is collected, and what a label may be."""

from __future__ import annotations

import pytest

from isthmus.kube.rules_leases import (
    Doomed,
    Lease,
    check_selector,
    count_valid,
    expired,
    lease_name,
    next_expiry,
    parse_labels,
    server_count,
    to_selector,
)
from isthmus.values import ServerId


def lease(
    name: str, renewed_at: float | None = 1000.0, duration_s: int | None = 30, version: str = "1"
) -> Lease:
    return Lease(name=name, renewed_at=renewed_at, duration_s=duration_s, resource_version=version)


@pytest.mark.parametrize(
    ("given", "now", "valid"),
    [
        (lease("a"), 1000.0, True),
        (lease("a"), 1029.999, True),
        (lease("a"), 1030.0, False),  # the end is not valid: (time)+duration > now
        (lease("a"), 900.0, True),  # a clock that is ahead of ours
        (lease("a", duration_s=0), 1000.0, False),
        (lease("a", duration_s=None), 1000.0, False),
        (lease("a", renewed_at=None), 1000.0, False),
        (lease("a", renewed_at=None, duration_s=None), 0.0, False),
    ],
)
def test_a_lease_is_valid_until_its_duration_is_over(given: Lease, now: float, valid: bool) -> None:
    assert given.is_valid(now=now) is valid


def test_counting() -> None:
    leases = [lease("a"), lease("b", 1010.0), lease("c", None), lease("d", duration_s=None)]
    assert [count_valid(leases, now=now) for now in (1000, 1029, 1030, 1040, 9999)] == [
        2, 2, 1, 1, 1,
    ]  # fmt: skip
    assert count_valid([], now=0) == 1


def test_the_next_expiry_is_the_first_of_those_to_come() -> None:
    leases = [lease("a"), lease("b", 1010.0), lease("c", None)]
    assert next_expiry(leases, now=1000) == 1030
    assert next_expiry(leases, now=1030) == 1040
    assert next_expiry(leases, now=1040) is None
    assert next_expiry([], now=0) is None


def test_only_expired_leases_of_others_are_collected_at_the_version_seen() -> None:
    leases = [
        lease("dead", 900.0, version="7"),
        lease("mine", 900.0),
        lease("alive"),
        lease("mute", duration_s=None),
        lease("timeless", renewed_at=None),
    ]
    assert expired(leases, now=1000, own="mine") == [Doomed(name="dead", resource_version="7")]


@pytest.mark.parametrize(
    ("announced", "leases", "source", "count"),
    [
        (3, None, "default", 3),
        (0, None, "default", 1),
        (0, None, "max", 1),
        (3, 2, "default", 2),
        (3, 2, "", 2),
        (3, 2, "max", 3),
        (2, 3, "max", 3),
        (5, 1, "default", 1),
        (0, 0, "default", 1),
        (0, 0, "max", 1),
    ],
)
def test_how_many_servers_there_are(
    announced: int, leases: int | None, source: str, count: int
) -> None:
    assert server_count(announced, leases, source) == count


def test_the_name_of_a_lease() -> None:
    assert lease_name(ServerId("a1-b.c")) == "konnectivity-proxy-server-a1-b.c"


@pytest.mark.parametrize("name", ["", "Server", "a_b", "a b", "-", "a.", "ä", "x" * 228, "a\n"])
def test_an_id_that_no_lease_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be used in a Lease name"):
        lease_name(ServerId(name))


def test_labels_and_the_selector_that_finds_them() -> None:
    text = "k8s-app=konnectivity-server"
    assert parse_labels(text) == {"k8s-app": "konnectivity-server"}
    assert to_selector(parse_labels(text)) == text
    two = parse_labels("example.com/app=x, tier=")
    assert two == {"example.com/app": "x", "tier": ""}
    assert to_selector(two) == "example.com/app=x,tier="


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not key=value"),
        ("k8s-app", "'k8s-app' is not key=value"),
        ("=x", "'=x' is not key=value"),
        ("a=b,", "'' is not key=value"),
        ("a==b", "'=b' is not a valid label value"),
        ("a in (b)", "'a in (b)' is not key=value"),
        ("a!=b", "'a!' is not a valid label key"),
        ("a=b c", "'b c' is not a valid label value"),
        ("a=" + "x" * 64, "is not a valid label value"),
        ("Ex.com/a=b", "'Ex.com/a' is not a valid label key"),
        ("/a=b", "'/a' is not a valid label key"),
        ("a=b,a=c", "'a' is repeated"),
    ],
)
def test_labels_that_are_none(text: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_labels(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "k8s-app=konnectivity-server",
        "a==b",
        "a != b",
        "a,!b",
        "zone in (a, b),tier notin (x),n>1,m<2",
        "example.com/a",
        "a=",
        "a in ()",
    ],
)
def test_selectors(text: str) -> None:
    assert check_selector(f"  {text} ") == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "every Lease"),
        ("  ", "every Lease"),
        ("a=b,,c", "'' is not a valid label key"),
        ("a in (b", "is not a valid label key"),
        ("a in b", "is not a valid label key"),
        ("=b", "is not a valid label key"),
        ("a=b=c", "'b=c' is not a valid label value"),
        ("a in (b c)", "'b c' is not a valid label value"),
        ("a>x", "'x' is not a whole number"),
        ("!", "'' is not a valid label key"),
        ("!!a", "'!a' is not a valid label key"),
    ],
)
def test_selectors_that_are_none(text: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_selector(text)
    assert why in str(caught.value)
