"""When everything that a node dials is denied."""

from __future__ import annotations

from isthmus.programs.agent.node_connections import Denials


def test_five_in_a_row_within_two_minutes() -> None:
    denials = Denials()
    for second in range(4):
        denials.denied("10.0.0.1:6443", now=float(second))
        assert denials.trouble(now=float(second)) == ""
    denials.denied("10.0.0.1:6443", now=100.0)
    assert denials.trouble(now=100.0).startswith(
        "the server denied the last 5 connections of the node, to 10.0.0.1:6443: check"
    )
    # Nobody dials any more: what is known is too old.
    assert denials.trouble(now=120.0) != ""
    assert denials.trouble(now=121.0) == ""


def test_what_was_not_denied_takes_it_back() -> None:
    denials = Denials()
    for second in range(9):
        denials.denied("10.0.0.1:6443", now=float(second))
    denials.other()
    assert denials.trouble(now=9.0) == ""
    # One target of several that is not permitted, beside one that works.
    for second in range(10, 40):
        denials.denied("10.0.0.2:6443", now=float(second))
        if second % 3 == 0:
            denials.other()
        assert denials.trouble(now=float(second)) == ""


def test_slow_denials_do_not_count_and_many_destinations_are_named() -> None:
    denials = Denials()
    for number in range(20):
        denials.denied("10.0.0.1:6443", now=number * 40.0)
        assert denials.trouble(now=number * 40.0) == ""
    for number in range(5):
        denials.denied(f"10.0.0.{number % 2}:6443", now=1000.0)
    assert "to 10.0.0.0:6443, 10.0.0.1:6443: check" in denials.trouble(now=1000.0)
