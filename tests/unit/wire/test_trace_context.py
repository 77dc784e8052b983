"""W3C Trace Context: the Recommendation's own examples, and what its tests send."""

from __future__ import annotations

import pytest

from isthmus.wire.request_metadata import (
    MAX_TRACESTATE_CHARS,
    TraceParent,
    is_traceparent,
    is_tracestate,
    parse_traceparent,
)

# §3.2.3 of the Recommendation.
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True)])
def test_the_examples_of_the_recommendation_are_read(flags: str, sampled: bool) -> None:
    text = f"00-{TRACE}-{PARENT}-{flags}"
    read = parse_traceparent(text)
    assert read == TraceParent(TRACE, PARENT, int(flags, 16))
    assert read.sampled is sampled
    assert str(read) == text


@pytest.mark.parametrize("more", ["", "-", "-what-comes-later"])
def test_a_later_version_is_read_as_far_as_it_is_known(more: str) -> None:
    assert parse_traceparent(f"cc-{TRACE}-{PARENT}-01{more}") == TraceParent(TRACE, PARENT, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{TRACE}-{PARENT}-01",  # §3.2.2.1: forbidden
        f"0-{TRACE}-{PARENT}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}0-{PARENT}-01",
        f"00-{TRACE}-{PARENT[:-1]}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-",  # version 00 has nothing more
        f"00-{TRACE}-{PARENT}-01-more",
        f"cc-{TRACE}-{PARENT}-01.more",
        f"00-{TRACE.upper()}-{PARENT}-01",  # §3.2.2.3: lower case
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f" 00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\n",
        f"00-{TRACE}-{PARENT}-0\N{ARABIC-INDIC DIGIT ONE}",
        f"00_{TRACE}_{PARENT}_01",
        f"cc-{TRACE}-{PARENT}-01-{'x' * 300}",
    ],
)
def test_what_is_not_valid_is_no_trace(text: str) -> None:
    assert parse_traceparent(text) is None
    assert not is_traceparent(text)


@pytest.mark.parametrize(
    "text",
    [
        "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",  # §3.3.1.5
        "congo=t61rcWkgMzE",
        "a=1 , b=2",
        "a=1,,b=2",  # §3.3.1.1: empty members are allowed
        "fw529a3039@dt=FfffAc",
        "0tenant@system=1",
        "k=" + "v" * 256,
        f"{'k' * 256}=1",
        "foo= 1",
        ",".join(f"k{n}=1" for n in range(32)),
    ],
)
def test_valid_states_are_passed_on(text: str) -> None:
    assert is_tracestate(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "foo",
        "=1",
        "foo=",
        "Foo=1",
        "foo=1,foo=2",
        "foo=bar=baz",
        "0foo=1",  # a digit first only with a tenant
        "foo@=1",
        "@dt=1",
        "foo@bar@baz=1",
        "k=" + "v" * 257,
        f"{'k' * 257}=1",
        "foo=\N{LATIN SMALL LETTER E WITH ACUTE}",
        "foo=1\r\nx: y",
        ",".join(f"k{n}=1" for n in range(33)),
        ",".join(f"k{n}={'v' * 20}" for n in range(30)),
    ],
)
def test_other_states_are_not(text: str) -> None:
    assert not is_tracestate(text)


def test_the_longest_state_fits_exactly() -> None:
    most = f"a={'v' * 253},b={'v' * 254}"
    assert len(most) == MAX_TRACESTATE_CHARS
    assert is_tracestate(most)
    assert not is_tracestate(f"{most}v")
