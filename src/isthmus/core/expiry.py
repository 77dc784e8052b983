"""How a certificate stands: well, to be renewed, or in danger. One rule for whoever shows it.

Days alone are no rule: a certificate that lives for a day is renewed every few hours, and never has
30 days left. So a share of its life counts where that is less. ``isthmus status``, ``isthmus pki
show``, the dashboard (by the snapshot) and ``isthmus doctor`` ask here.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

_WARN, _BAD = timedelta(days=30), timedelta(days=7)
_WARN_SHARE, _BAD_SHARE = 3, 10


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
    if left <= min(_BAD, life / _BAD_SHARE):
        return Standing.BAD
    return Standing.WARN if left <= min(_WARN, life / _WARN_SHARE) else Standing.OK
