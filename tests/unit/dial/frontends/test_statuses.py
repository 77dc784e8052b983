"""The tables from a failed dial to an HTTP status are complete, and say what they promise."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from isthmus.dial.frontends.statuses import (
    HTTP_STATUS,
    KONNECTIVITY_HTTP_STATUS,
    explain,
    status_for,
)
from isthmus.errors import DialError, DialFailure
from isthmus.values import HostPort


@pytest.mark.parametrize("table", [HTTP_STATUS, KONNECTIVITY_HTTP_STATUS])
def test_every_failure_has_a_status_that_says_failure(table: dict[DialFailure, int]) -> None:
    assert table.keys() == set(DialFailure)
    assert all(HTTPStatus(status) >= 400 for status in table.values())


@pytest.mark.parametrize(
    ("failure", "ours", "go"),
    [
        (DialFailure.DENIED, 403, 502),
        (DialFailure.NO_AGENT, 503, 500),
        (DialFailure.TOO_MANY, 503, 503),
        (DialFailure.TIMED_OUT, 504, 504),
        (DialFailure.REFUSED, 502, 502),
        (DialFailure.UNREACHABLE, 502, 502),
        (DialFailure.UNRESOLVED, 502, 502),
        (DialFailure.AGENT_LOST, 502, 502),
        (DialFailure.INTERNAL, 502, 502),
    ],
)
def test_the_status_depends_on_compat(failure: DialFailure, ours: int, go: int) -> None:
    assert status_for(failure) == ours
    assert status_for(failure, compat="konnectivity") == go


def test_the_sentence_names_destination_and_reason() -> None:
    target = HostPort("fd00::1", 443)
    assert explain(DialFailure.REFUSED, target) == "cannot dial [fd00::1]:443: connection refused"
    assert explain(DialFailure.UNRESOLVED, HostPort("db.internal", 5432), "NXDOMAIN") == (
        "cannot dial db.internal:5432: name not resolved: NXDOMAIN"
    )


def test_the_sentence_is_the_one_in_the_log() -> None:
    target = HostPort("10.0.0.1", 443)
    assert explain(DialFailure.DENIED, target, "rule 3") == str(
        DialError(DialFailure.DENIED, target, "rule 3")
    )
