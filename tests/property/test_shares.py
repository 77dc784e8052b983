"""Token buckets and pots against any order of dials, bytes and time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_policy import Per, Question, Share
from isthmus.dial.rules_shares import Hold, ShareTable
from isthmus.text.pacing import TokenBucket
from isthmus.values import HostPort, Identity

rates = st.floats(0.1, 1000.0)
steps = st.lists(st.floats(0.0, 5.0), min_size=1, max_size=60)


@given(rates, st.integers(1, 50), steps)
def test_never_more_than_rate_times_time_and_the_burst(
    rate: float, burst: int, waits: list[float]
) -> None:
    bucket = TokenBucket(rate=rate, burst=burst, now=100.0)
    now, given_ = 100.0, 0
    for wait in waits:
        now += wait
        for _ in range(3):
            if bucket.has(now=now):
                bucket.take()
                given_ += 1
        assert given_ <= burst + rate * (now - 100.0) + 1e-6


@given(rates, st.integers(1, 50), st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_who_waits_for_the_debt_to_be_paid_keeps_to_the_rate(
    rate: float, burst: int, sizes: list[int]
) -> None:
    bucket = TokenBucket(rate=rate, burst=burst, now=0.0)
    now, sent = 0.0, 0
    for size in sizes:
        # All that was sent before the last piece is within rate and burst.
        assert sent <= burst + rate * now + 1e-6 * (1 + sent)
        in_debt = bucket.spend(size, now=now)
        sent += size
        wait = bucket.wait_s(now=now)
        assert in_debt == (wait > 0)
        assert wait <= sum(sizes) / rate  # nobody waits for ever
        now += wait


dials = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["east", "west"]),
        st.booleans(),
        st.floats(0.0, 1.0),
    ),
    max_size=80,
)


@given(st.sampled_from(list(Per)), st.integers(1, 5), dials)
def test_the_tunnels_of_a_pot_are_never_too_many(
    per: Per, most: int, events: list[tuple[str, str, bool, float]]
) -> None:
    table = ShareTable([Share(name="s", per=per, max_tunnels=most)])
    share = table.shares[0]
    holds: dict[str, list[Hold]] = {}
    now = 0.0
    for name, network, ends, wait in events:
        now += wait
        question = Question(
            requester=Identity(name), network=network, target=HostPort("10.0.0.1", 1)
        )
        key = share.key(question)
        mine = holds.setdefault(key, [])
        if ends and mine:
            mine.pop().release()
            continue
        got = table.take(question, now=now)
        assert isinstance(got, Hold) == (len(mine) < most)
        if isinstance(got, Hold):
            mine.append(got)
    counted = Counter({pot.key: pot.tunnels for pot in table.pots})
    assert +counted == +Counter({key: len(mine) for key, mine in holds.items()})
