"""Who takes from which pot, when it is empty, and what a reload changes."""

from __future__ import annotations

import pytest

from isthmus.dial.rules_policy import Match, Per, Question, Share
from isthmus.dial.rules_shares import MOST_IDLE, Full, Hold, Limit, ShareTable, applying
from isthmus.text.pacing import TokenBucket
from isthmus.text.patterns import Pattern
from isthmus.values import HostPort, Identity


def asked(name: str = "ann", network: str = "east", groups: tuple[str, ...] = ()) -> Question:
    return Question(
        requester=Identity(name, groups), network=network, target=HostPort("10.0.0.1", 443)
    )


def taken(table: ShareTable, question: Question, now: float = 0.0) -> Hold:
    got = table.take(question, now=now)
    assert isinstance(got, Hold)
    return got


def refused(table: ShareTable, question: Question, now: float = 0.0) -> Full:
    got = table.take(question, now=now)
    assert isinstance(got, Full)
    return got


def test_of_each_kind_the_first_that_matches_applies() -> None:
    batch = Match(groups=(Pattern("batch"),))
    shares = (
        Share(name="batch", match=batch, max_tunnels=1),
        Share(name="rest", max_tunnels=9),
        Share(name="east", per=Per.NETWORK, match=Match(networks=(Pattern("east"),))),
        Share(name="all", per=Per.SHARE, max_tunnels=100),
    )
    names = [share.name for share in applying(shares, asked(groups=("batch",)))]
    assert names == ["batch", "east", "all"]
    assert [share.name for share in applying(shares, asked(network="west"))] == ["rest", "all"]


def test_each_requester_has_its_own_tunnels() -> None:
    table = ShareTable([Share(name="s", max_tunnels=2)])
    first, _ = taken(table, asked("ann")), taken(table, asked("ann"))
    full = refused(table, asked("ann"))
    assert (full.share.name, full.limit) == ("s", Limit.TUNNELS)
    assert full.why == "certificate:ann have 2 tunnels, the most of share s"
    taken(table, asked("bob"))
    first.release()
    first.release()  # twice is once
    taken(table, asked("ann"))
    refused(table, asked("ann"))


def test_those_of_a_network_have_them_together() -> None:
    table = ShareTable([Share(name="s", per=Per.NETWORK, max_tunnels=1)])
    taken(table, asked("ann", "east"))
    assert refused(table, asked("bob", "east")).why.startswith("east have 1 tunnels")
    taken(table, asked("bob", "west"))


def test_all_of_a_share_have_them_together() -> None:
    table = ShareTable([Share(name="s", per=Per.SHARE, max_tunnels=1)])
    taken(table, asked("ann", "east"))
    assert refused(table, asked("bob", "west")).why.startswith("all have 1 tunnels")


def test_what_one_pot_refuses_is_taken_from_none() -> None:
    table = ShareTable(
        [
            Share(name="dials", per=Per.SHARE, dials_per_s=1, dial_burst=2),
            Share(name="tunnels", max_tunnels=1),
        ]
    )
    taken(table, asked("ann"))
    for _ in range(10):
        assert refused(table, asked("ann")).limit is Limit.TUNNELS
    taken(table, asked("bob"))  # the second dial of the burst is still there
    assert refused(table, asked("eve")).limit is Limit.DIALS


def test_dials_come_back_with_time() -> None:
    table = ShareTable([Share(name="s", dials_per_s=2, dial_burst=3)])
    for _ in range(3):
        taken(table, asked()).release()
    full = refused(table, asked(), now=0.25)
    assert full.limit is Limit.DIALS
    assert full.why == "certificate:ann dial more than 2 times a second, the most of share s"
    taken(table, asked(), now=0.5)
    refused(table, asked(), now=0.5)


def test_a_reload_changes_the_pots_that_are_in_use() -> None:
    table = ShareTable([Share(name="s", max_tunnels=1, bytes_per_s=100, burst_bytes=100)])
    hold = taken(table, asked())
    refused(table, asked())
    [pot] = table.replace([Share(name="s", max_tunnels=2, bytes_per_s=200)], now=1.0)
    assert pot.tunnels == 1 and pot is hold.pots[0]
    taken(table, asked(), now=1.0)
    refused(table, asked(), now=1.0)
    assert pot.to_target is not None
    pot.to_target.spend(401, now=1.0)
    assert pot.to_target.wait_s(now=1.0) == pytest.approx(301.0 / 200.0, abs=0.6)


def test_a_share_that_is_gone_limits_nobody() -> None:
    table = ShareTable([Share(name="s", max_tunnels=1, bytes_per_s=100, burst_bytes=100)])
    hold = taken(table, asked())
    [pot] = table.replace([], now=1.0)
    assert pot.to_target is None and pot.refuse(now=1.0) is None
    taken(table, asked())
    hold.release()
    assert pot.tunnels == 0 and len(table) == 0


def test_pots_that_nobody_uses_are_forgotten() -> None:
    table = ShareTable([Share(name="s", max_tunnels=1, dials_per_s=1, dial_burst=1)])
    kept = taken(table, asked("kept"))
    for number in range(5 * MOST_IDLE):
        taken(table, asked(f"r{number}"), now=float(number)).release()
    assert len(table) <= 2 * MOST_IDLE
    assert refused(table, asked("kept"), now=1e9)
    kept.release()


def test_a_bucket_is_never_emptied_by_a_clock_that_goes_back() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0, now=10.0)
    assert bucket.has(now=10.0)
    bucket.take()
    assert not bucket.has(now=5.0)
    assert bucket.has(now=11.0)
