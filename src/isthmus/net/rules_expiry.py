"""How a certificate stands: good, to be renewed, or about to end. One rule for every judge.

Days alone are no rule: a certificate that lives for a day is renewed every few hours, and never has
30 days left. So a share of its life counts where that is less. ``isthmus status``, ``isthmus pki
show``, the dashboard (by the snapshot), ``isthmus doctor`` and the alerts go by it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

#: A certificate needs attention when less than this is left, or less than this part of its life.
WARN, WARN_SHARE = timedelta(days=30), 3
BAD, BAD_SHARE = timedelta(days=7), 10


class Standing(Enum):
    """How a certificate stands."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


def standing(*, not_before: datetime | None, not_after: datetime, now: datetime) -> Standing:
    """Judge by what is left: 30 days or a third of its life warn, 7 days or a tenth are bad.

    ``not_before`` None is not known: then days count. What is not valid, or not yet, is bad.
    """
    left = not_after - now
    life = not_after - not_before if not_before is not None else timedelta.max
    if (not_before is not None and now < not_before) or left < timedelta(0):
        return Standing.BAD
    if left <= min(BAD, life / BAD_SHARE):
        return Standing.BAD
    return Standing.WARN if left <= min(WARN, life / WARN_SHARE) else Standing.OK
