"""What clients say about their requests, in headers; typed as they stand on the wire."""

from __future__ import annotations

import pytest

from isthmus.values import NOTHING, RequestMetadata
from isthmus.wire.request_metadata import (
    MAX_GROUP_BYTES,
    MAX_GROUPS,
    MAX_VALUE_BYTES,
    headers_of,
    metadata_in,
)

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

SAID = [
    (b"isthmus-network", b"cluster"),
    (b"isthmus-user", b"system:serviceaccount:kube-system:cm"),
    (b"isthmus-tenant", b"Z%C3%BCrich%20West"),
    (b"isthmus-object", b"/api/v1/namespaces/default/pods/x"),
    (b"isthmus-group", b"system:masters"),
    (b"isthmus-group", b"a%2Cb%25"),
    (b"traceparent", PARENT.encode()),
    (b"tracestate", b"congo=t61rcWkgMzE"),
]
MEANT = RequestMetadata(
    network="cluster",
    user="system:serviceaccount:kube-system:cm",
    groups=("system:masters", "a,b%"),
    tenant="Zürich West",
    object="/api/v1/namespaces/default/pods/x",
    traceparent=PARENT,
    tracestate="congo=t61rcWkgMzE",
)


def test_everything_that_can_be_said_is_read() -> None:
    assert metadata_in(SAID) == MEANT
    assert metadata_in([(name.upper(), value) for name, value in SAID]) == MEANT
    assert metadata_in([(b"host", b"x"), *SAID, (b"user-agent", b"y")]) == MEANT


def test_what_is_written_is_read_again() -> None:
    written = headers_of(MEANT)
    assert metadata_in(written) == MEANT
    assert all(value.isascii() and name == name.lower() for name, value in written)
    assert headers_of(NOTHING) == []


def test_a_request_that_says_nothing_gets_the_one_value_for_it() -> None:
    assert metadata_in([]) is NOTHING
    assert metadata_in([(b"host", b"x"), (b"isthmus-other", b"y")]) is NOTHING


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"%",
        b"%zz",
        b"100%",
        b"%ff",  # no UTF-8
        b"%c3",
        b"a b",  # a blank has to be encoded
        b"\xc3\xbc",  # so has everything above ASCII
        b"a%0Ab",
        b"a%00b",
        b"%E2%80%AEevil",  # right-to-left override
        b"x" * (MAX_VALUE_BYTES + 1),
        b"%C3%BC" * (MAX_VALUE_BYTES // 2 + 1),
    ],
)
def test_garbage_counts_as_not_said(value: bytes) -> None:
    kept = (b"isthmus-tenant", b"t")
    for name in (b"isthmus-user", b"isthmus-group", b"isthmus-network", b"isthmus-object"):
        assert metadata_in([(name, value), kept]) == RequestMetadata(tenant="t")


def test_the_longest_value_is_read() -> None:
    assert metadata_in([(b"isthmus-user", b"x" * MAX_VALUE_BYTES)]).user == "x" * MAX_VALUE_BYTES
    assert metadata_in([(b"isthmus-user", b"%C3%BC" * (MAX_VALUE_BYTES // 2))]).user


def test_who_says_it_twice_has_not_said_it() -> None:
    twice = [(b"isthmus-user", b"alice"), (b"isthmus-user", b"root")]
    assert metadata_in(twice) == NOTHING
    assert metadata_in([(b"traceparent", PARENT.encode())] * 2) == NOTHING


def test_groups_are_all_there_or_none() -> None:
    many = [(b"isthmus-group", b"g%d" % number) for number in range(MAX_GROUPS)]
    assert len(metadata_in(many).groups) == MAX_GROUPS
    assert metadata_in([*many, (b"isthmus-group", b"one-more")]).groups == ()
    long = [
        (b"isthmus-group", b"%d" % number + b"x" * (MAX_VALUE_BYTES - 1))
        for number in range(MAX_GROUP_BYTES // MAX_VALUE_BYTES)
    ]
    assert len(metadata_in(long).groups) == len(long)
    assert metadata_in([*long, (b"isthmus-group", b"x")]).groups == ()
    assert metadata_in([(b"isthmus-group", b"a")] * 3).groups == ("a",)


def test_a_state_without_a_valid_parent_is_not_read() -> None:
    assert metadata_in([(b"tracestate", b"a=1")]) == NOTHING
    assert metadata_in([(b"traceparent", b"00-x"), (b"tracestate", b"a=1")]) == NOTHING
    bad_state = [(b"traceparent", PARENT.encode()), (b"tracestate", b"A=1")]
    assert metadata_in(bad_state) == RequestMetadata(traceparent=PARENT)


def test_states_in_several_headers_are_one() -> None:
    said = [(b"traceparent", PARENT.encode()), (b"tracestate", b"a=1"), (b"tracestate", b"b=2")]
    assert metadata_in(said).tracestate == "a=1,b=2"


def test_a_trace_is_no_claim() -> None:
    traced = RequestMetadata(traceparent=PARENT, tracestate="a=1")
    assert not traced.claims
    assert traced.only_trace() is traced
    assert MEANT.claims
    assert MEANT.only_trace() == RequestMetadata(traceparent=PARENT, tracestate="congo=t61rcWkgMzE")


@pytest.mark.parametrize(
    ("asking", "why"),
    [
        (RequestMetadata(user="x" * (MAX_VALUE_BYTES + 1)), "the user is longer than 1024 bytes"),
        (RequestMetadata(tenant="a\nb"), "the tenant has unprintable characters"),
        (RequestMetadata(groups=tuple(map(str, range(MAX_GROUPS + 1)))), "more than 32 groups"),
        (RequestMetadata(groups=("x" * 1000,) * 5), "or 4096 bytes of them"),
    ],
)
def test_what_nobody_would_read_is_not_written(asking: RequestMetadata, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        headers_of(asking)
