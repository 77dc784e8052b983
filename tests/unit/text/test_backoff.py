"""Delays between attempts: longer each time, never above the cap, jittered by a fifth."""

from __future__ import annotations

import pytest

from isthmus.text.pacing import Backoff


def delays(chance: float, count: int = 8) -> list[float]:
    backoff = Backoff(first_s=1.0, cap_s=4.0, chance=lambda: chance)
    return [backoff.next_s() for _ in range(count)]


def test_it_grows_by_half_up_to_the_cap() -> None:
    assert delays(0.5, 6) == pytest.approx([1.0, 1.5, 2.25, 3.375, 4.0, 4.0])


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.8), (1.0, 1.2)])
def test_jitter_is_a_fifth_either_way(chance: float, factor: float) -> None:
    assert delays(chance) == pytest.approx([delay * factor for delay in delays(0.5)])


def test_success_starts_over() -> None:
    backoff = Backoff(first_s=1.0, cap_s=4.0, chance=lambda: 0.5)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 1.0
