"""The bounded-frequency runner: when it is due, and that the loop keeps to it."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.programs.node_proxy.family_sync import Frequency, Runner


def frequency(now: float = 0.0) -> Frequency:
    return Frequency(min_s=1.0, retry_s=30.0, max_s=3600.0, now=now)


def test_the_first_request_runs_at_once() -> None:
    it = frequency(now=5.0)
    assert it.due_at() == 3605.0
    it.request()
    assert it.due_at() == 5.0


def test_the_shortest_time_counts_from_the_end_of_a_run() -> None:
    it = frequency()
    it.request()
    it.began()
    it.request()
    it.ended(now=100.0, worked=True)
    assert it.due_at() == 101.0


def test_what_was_requested_before_a_run_is_done_by_it() -> None:
    it = frequency()
    it.request()
    it.request()
    it.began()
    it.ended(now=10.0, worked=True)
    assert it.due_at() == 10.0 + 3600.0


def test_a_failed_run_is_tried_again() -> None:
    it = frequency()
    it.request()
    it.began()
    it.ended(now=10.0, worked=False)
    assert it.due_at() == 40.0
    it.request()
    assert it.due_at() == 11.0


def test_a_success_ends_the_retries() -> None:
    it = frequency()
    it.began()
    it.ended(now=10.0, worked=False)
    it.began()
    it.ended(now=40.0, worked=True)
    assert it.due_at() == 3640.0


def test_a_retry_never_comes_before_the_shortest_time_nor_after_the_longest() -> None:
    short = Frequency(min_s=60.0, retry_s=30.0, max_s=3600.0, now=0.0)
    short.ended(now=0.0, worked=False)
    assert short.due_at() == 60.0
    long = Frequency(min_s=1.0, retry_s=7200.0, max_s=3600.0, now=0.0)
    long.ended(now=0.0, worked=False)
    assert long.due_at() == 3600.0


def test_the_longest_time_is_not_shorter_than_the_shortest() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Frequency(min_s=2.0, retry_s=1.0, max_s=1.0, now=0.0)


def test_its_repr_says_when() -> None:
    it = frequency()
    it.request()
    assert repr(it) == "<Frequency requested, due at 0>"


def test_the_loop_runs_what_is_requested_and_retries_what_failed() -> None:
    answers = [False, True, True]

    async def scenario() -> int:
        runs = 0
        done = asyncio.Event()

        async def work() -> bool:
            nonlocal runs
            runs += 1
            if runs == 2:
                runner.request()  # while it runs: once more
            if runs == 3:
                done.set()
            return answers[runs - 1]

        runner = Runner(work, min_s=0.0, retry_s=0.001)
        task = asyncio.create_task(runner.run())
        runner.request()
        runner.request()
        async with asyncio.timeout(20):
            await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return runs

    assert asyncio.run(scenario()) == 3
