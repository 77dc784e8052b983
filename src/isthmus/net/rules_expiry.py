"""The state of a certificate: good, due for renewal, or about to expire. One rule for all uses.

Days alone are not enough: a certificate that is valid for a day is renewed every few hours, and
never has 30 days left. A part of its lifetime therefore counts if that is less. ``isthmus status``,
``isthmus pki show``, the dashboard (through the snapshot), ``isthmus doctor`` and the alerts use
it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

#: A certificate needs attention with less than this left, or less than this part of its lifetime.
WARN, WARN_SHARE = timedelta(days=30), 3
BAD, BAD_SHARE = timedelta(days=7), 10


class Standing(Enum):
    """The state of a certificate."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


def standing(*, not_before: datetime | None, not_after: datetime, now: datetime) -> Standing:
    """Judge the remaining time: 30 days or a third of the lifetime warn, 7 days or a tenth are bad.

    ``not_before`` None is unknown: then only days count. An expired or not yet valid one is bad.
    """
    left = not_after - now
    life = not_after - not_before if not_before is not None else timedelta.max
    if (not_before is not None and now < not_before) or left < timedelta(0):
        return Standing.BAD
    if left <= min(BAD, life / BAD_SHARE):
        return Standing.BAD
    return Standing.WARN if left <= min(WARN, life / WARN_SHARE) else Standing.OK
