"""Measures the rows in a process of its own: CPU time of one thread, the least of five.

Prints a JSON object: for each row the bytes, the milliseconds for them, and how many times as long
four times as many took. A ratio that is good enough is not measured again: more tries only make the
least time less. One that is not is measured again from the beginning, twice: on a busy machine
caches and clocks differ between the two halves of a round, and what is quadratic is so each time.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from rows import Row, Work, broken_rows, rows

LEAST_NS = 20_000_000
TRIES = 5
ROUNDS = 3
MOST_RATIO = 6.0
_FIRST_BYTES = 4096
_MOST_BYTES = 1 << 18  # four times as much is still in the caches of a CPU


def took(work: Work, times: int = 1) -> int:
    """CPU nanoseconds of this thread."""
    gc.collect()
    gc.disable()
    try:
        before = time.thread_time_ns()
        for _ in range(times):
            work()
        return time.thread_time_ns() - before
    finally:
        gc.enable()


def measure(row: Row) -> dict[str, float]:
    """Find a size, or how often, that takes long enough; then four times as much."""
    n = _FIRST_BYTES if row.most is None else row.most // 4
    times = 1
    work = row.make(n)
    work()  # what is made once is made now
    while (spent := took(work, times)) < LEAST_NS:
        # Not far past it in one step: what is quadratic grows faster than this thinks.
        more = min(3.0, LEAST_NS * 1.2 / max(spent, 1))
        if row.most is not None:
            times = max(times + 1, int(times * more))
        elif n < _MOST_BYTES:
            n = min(_MOST_BYTES, max(n + 1, int(n * more)))
            work = row.make(n)
        else:  # it cuts first: the rest is free
            times = max(times + 1, int(times * more))
    large = row.make(4 * n)
    least, ratio = one_round(work, large, times)
    for _ in range(ROUNDS - 1):
        if ratio > MOST_RATIO:
            least, ratio = one_round(work, large, times)
    return {"bytes": n, "times": times, "ms": least / 1e6, "ratio": ratio}


def one_round(work: Work, large: Work, times: int) -> tuple[int, float]:
    """The least time of the smaller of two, and how many times as long the larger takes."""
    least = min(took(work, times) for _ in range(TRIES))
    ratio = took(large, times) / least
    for _ in range(TRIES - 1):
        if ratio > MOST_RATIO:
            ratio = min(ratio, took(large, times) / least)
    return least, ratio


def main() -> None:
    """Measure all, or those whose names have a word."""
    gc.collect()
    gc.freeze()  # what is imported is looked through no more
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    table = {"rows": list(rows()), "broken": list(broken_rows())}
    found = {
        kind: {row.name: measure(row) for row in some if word in row.name}
        for kind, some in table.items()
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
