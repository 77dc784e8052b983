"""The pace of the feed, and its times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from isthmus.frame.dashboard.feed import EVERY_S, rest_s, rfc3339


@pytest.mark.parametrize(("took_s", "rest"), [(0.0, EVERY_S), (0.05, 1.0), (0.1, 2.0), (9.0, 10.0)])
def test_what_takes_long_is_done_less_often(took_s: float, rest: float) -> None:
    assert rest_s(took_s) == rest


def test_times_have_milliseconds_and_are_utc() -> None:
    noon = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    assert rfc3339(noon) == "2026-01-01T12:00:00.123Z"
    assert rfc3339(noon.astimezone(timezone(timedelta(hours=2)))) == "2026-01-01T12:00:00.123Z"
