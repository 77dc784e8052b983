"""One verdict on a certificate, for status, dashboard and doctor alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from isthmus.frame import views
from isthmus.frame.finding import Asked, CheckId, CheckState
from isthmus.frame.model.snapshot import to_json
from isthmus.net.certificates import Lifetime
from isthmus.net.contexts import HotContext
from isthmus.net.rules_expiry import Standing, standing
from isthmus.tools.doctor.certificates import judge_expiry
from isthmus.tools.watching.status_report import Heard, report

NOW = datetime(2031, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
CASES = [
    (365 * DAY, 31 * DAY, Standing.OK),
    (365 * DAY, 29 * DAY, Standing.WARN),
    (365 * DAY, 6 * DAY, Standing.BAD),
    (365 * DAY, -DAY, Standing.BAD),
    # A day's certificate is well until a third of the day is left.
    (DAY, 20 * HOUR, Standing.OK),
    (DAY, 7 * HOUR, Standing.WARN),
    (DAY, 2 * HOUR, Standing.BAD),
    (30 * DAY, 12 * DAY, Standing.OK),
    (30 * DAY, 9 * DAY, Standing.WARN),
    (DAY, 2 * DAY, Standing.BAD),  # not valid yet
]


@pytest.mark.parametrize(("life", "left", "expected"), CASES)
def test_one_verdict_everywhere(life: timedelta, left: timedelta, expected: Standing) -> None:
    end = NOW + left
    start = end - life
    assert standing(not_before=start, not_after=end, now=NOW) is expected
    # What the doctor says.
    found = judge_expiry(Asked(CheckId.EXPIRY, "it", "looked"), start, end, NOW)
    words = {
        Standing.OK: CheckState.OK,
        Standing.WARN: CheckState.WARNING,
        Standing.BAD: CheckState.FAILED,
    }
    assert found.state is words[expected]
    # What status says of a snapshot, which the dashboard shows as it is.
    certificate = {"file": "a", "notBefore": start.isoformat(), "notAfter": end.isoformat()}
    heard = Heard(
        address="x", program="server", id="x", snapshot={"certificates": [certificate]}
    )  # fmt: skip
    (shown,) = report(heard, now=NOW).certificates
    assert shown.standing is expected
    assert bool(report(heard, now=NOW).ending_soon) is (expected is not Standing.OK)


def test_without_a_start_days_count() -> None:
    for left, expected in ((31, Standing.OK), (29, Standing.WARN), (6, Standing.BAD)):
        assert standing(not_before=None, not_after=NOW + left * DAY, now=NOW) is expected


def test_the_snapshot_says_it() -> None:
    class Context(HotContext):
        def __init__(self) -> None:
            now = datetime.now(UTC).timestamp()
            self._lifetimes = {"a.crt": Lifetime(now - 86000, now + 400)}

    (view,) = views.certificates([Context()])
    assert to_json(view)["standing"] == "bad"
