"""Whether the clock of this machine is right, by what others say."""

from __future__ import annotations

from datetime import datetime, timedelta

from isthmus.tools.doctor.finding import Asked, Check, Finding

_WARN, _FAIL = timedelta(seconds=5), timedelta(minutes=1)


def judge_skew(about: str, theirs: datetime, ours: datetime) -> Finding:
    """Compare the time of a peer with ours; a Date has whole seconds."""
    asked = Asked(Check.CLOCK, about, "compared its time with ours")
    skew = ours - theirs
    far = abs(skew)
    seen = f"ours is {far.total_seconds():.0f} s {'ahead' if skew > timedelta(0) else 'behind'}"
    todo = "see that NTP runs on both machines (timedatectl, chronyc tracking)"
    if far > _FAIL:
        return asked.fail(f"{seen}: tokens, Leases and new certificates are judged wrongly", todo)
    if far > _WARN:
        return asked.warn(seen, todo)
    return asked.ok("the same, but for a few seconds")
