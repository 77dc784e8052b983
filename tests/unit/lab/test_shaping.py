"""A bad line, with time moved by hand: delay, rate, queue, loss and order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.lab.relay import LEAST_QUEUE_BYTES, BadLine, queue_bytes
from isthmus.lab.topology import LineShape

#: A chance that no loss below 1 takes.
GOOD = math.nextafter(1.0, 0.0)
#: Times are summed in floating point, in any order.
TINY_S = 1e-6


def test_a_line_without_a_shape_passes_everything_at_once() -> None:
    line = BadLine(LineShape())
    assert [line.take(1500, now, GOOD) for now in (0.0, 0.0, 7.5)] == [0.0, 0.0, 7.5]
    assert (line.queue_bytes, line.waiting_bytes(0.0)) == (0, 0.0)


def test_delay_is_added_and_holds_nobody_up() -> None:
    line = BadLine(LineShape(delay_ms=50))
    assert [line.take(1500, now, GOOD) for now in (1.0, 1.0, 1.5)] == [1.05, 1.05, 1.55]


def test_frames_take_their_time_at_the_rate_one_after_the_other() -> None:
    line = BadLine(LineShape(rate_mbit=8))  # 1,000 bytes take a millisecond
    assert line.take(1000, 0.0, GOOD) == pytest.approx(0.001)
    assert line.take(500, 0.0, GOOD) == pytest.approx(0.0015)
    assert line.waiting_bytes(0.0) == pytest.approx(1500)
    assert line.waiting_bytes(0.001) == pytest.approx(500)
    assert line.take(1000, 0.0012, GOOD) == pytest.approx(0.0025)


def test_time_that_nobody_used_is_not_saved_up() -> None:
    line = BadLine(LineShape(rate_mbit=8, delay_ms=10))
    assert line.take(1000, 100.0, GOOD) == pytest.approx(100.011)
    assert line.take(1000, 100.0, GOOD) == pytest.approx(100.012)


def test_what_finds_the_queue_full_is_dropped_and_later_there_is_room_again() -> None:
    line = BadLine(LineShape(rate_mbit=8))
    fitting, rest = divmod(line.queue_bytes, 1000)
    for _ in range(fitting):
        assert line.take(1000, 0.0, GOOD) is not None
    assert line.take(1000, 0.0, GOOD) is None
    assert line.take(rest - 1, 0.0, GOOD) is not None  # a smaller one fits
    assert (line.dropped, line.lost) == (1, 0)
    assert line.take(1000, 0.0011, GOOD) is not None


def test_chance_below_the_loss_takes_a_frame_and_its_time_on_the_line_is_gone() -> None:
    line = BadLine(LineShape(rate_mbit=8, loss=0.25))
    assert line.take(1000, 0.0, 0.2499) is None
    assert line.take(1000, 0.0, 0.25) == pytest.approx(0.002)
    assert (line.lost, line.dropped) == (1, 0)


@pytest.mark.parametrize(("loss", "chance", "lost"), [(0.0, 0.0, False), (1.0, GOOD, True)])
def test_no_loss_takes_nothing_and_all_loss_everything(
    loss: float, chance: float, lost: bool
) -> None:
    assert (BadLine(LineShape(loss=loss)).take(100, 0.0, chance) is None) == lost


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (LineShape(delay_ms=1000), 0),
        (LineShape(rate_mbit=1), LEAST_QUEUE_BYTES),
        (LineShape(rate_mbit=20, delay_ms=50), 375_000),  # a round trip of 100 ms, and 50 ms
    ],
)
def test_a_queue_holds_a_round_trip_and_some(shape: LineShape, size: int) -> None:
    assert queue_bytes(shape) == BadLine(shape).queue_bytes == size


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (LineShape(delay_ms=-1), "a line's delay must be a number ≥ 0, not -1"),
        (LineShape(delay_ms=math.nan), "a line's delay must be a number ≥ 0, not nan"),
        (LineShape(rate_mbit=math.inf), "a line's rate must be a number ≥ 0, not inf"),
        (LineShape(loss=1.01), "a line's loss must be between 0 and 1, not 1.01"),
        (LineShape(loss=math.nan), "a line's loss must be between 0 and 1, not nan"),
    ],
)
def test_there_is_no_such_line(shape: LineShape, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        BadLine(shape)
    assert str(caught.value) == sentence


# Whatever comes.

shapes = st.builds(
    LineShape,
    delay_ms=st.floats(0, 500),
    loss=st.sampled_from([0.0, 0.01, 0.5]),
    rate_mbit=st.one_of(st.just(0.0), st.floats(0.1, 1000)),
)
#: Size, seconds since the one before, chance. Bursts of no pause at all are common.
frames = st.lists(
    st.tuples(
        st.integers(14, 9000),
        st.one_of(st.just(0.0), st.floats(0, 0.05)),
        st.floats(0, 1, exclude_max=True),
    ),
    max_size=200,
)


@given(shape=shapes, coming=frames)
def test_whatever_comes_order_delay_rate_and_queue_are_kept(
    shape: LineShape, coming: list[tuple[int, float, float]]
) -> None:
    line, now = BadLine(shape), 0.0
    passed: list[tuple[int, float]] = []
    for size, pause, chance in coming:
        now += pause
        free = line.queue_bytes - line.waiting_bytes(now)
        gone_before = line.dropped
        leaves = line.take(size, now, chance)
        if shape.rate_mbit:
            assert line.waiting_bytes(now) <= line.queue_bytes + 1
            if abs(free - size) > 1:  # dropped if, and only if, it does not fit
                assert (line.dropped > gone_before) == (size > free)
        if leaves is not None:
            assert leaves - now >= shape.delay_ms / 1e3 - TINY_S
            passed.append((size, leaves))
    assert [at for _, at in passed] == sorted(at for _, at in passed)
    assert len(passed) + line.lost + line.dropped == len(coming)
    if shape.rate_mbit:
        _rate_is_kept_over_every_window(passed, shape.rate_mbit * 1e6 / 8)


def _rate_is_kept_over_every_window(passed: list[tuple[int, float]], rate: float) -> None:
    # Over every window from one frame's last byte to a later one's: with sums of sizes so far,
    # sent - rate * time may never rise above what it was at the window's beginning.
    sent, lowest = 0, math.inf
    for size, at in passed:
        sent += size
        ahead = sent - rate * at
        assert ahead <= lowest + rate * TINY_S + 1e-3
        lowest = min(lowest, ahead)
