"""Profiles: what is in them, decoded; tests/interop/test_pprof.py shows them to Go's pprof."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from isthmus.frame.observe import profiles
from isthmus.frame.observe.profiles import (
    Frame,
    Profile,
    ProfileKind,
    cpu_profile,
    frame_of,
    heap_by_type,
    heap_traced,
    module_of,
)
from isthmus.wire import pprof_pb2

LIMIT_S = 20.0


class Read:
    """A decoded profile."""

    def __init__(self, body: bytes) -> None:
        self.message = pprof_pb2.Profile.FromString(gzip.decompress(body))
        self.strings = list(self.message.string_table)
        functions = {it.id: self.strings[it.name] for it in self.message.function}
        places = {it.id: functions[it.line[0].function_id] for it in self.message.location}
        self.kinds = [
            (self.strings[it.type], self.strings[it.unit]) for it in self.message.sample_type
        ]
        self.samples = [
            (
                [places[number] for number in it.location_id],
                list(it.value),
                {self.strings[label.key]: self.strings[label.str] for label in it.label},
            )
            for it in self.message.sample
        ]

    def values(self, function: str) -> list[int]:
        """The sum of the samples whose innermost call is this one."""
        found = [values for stack, values, _ in self.samples if stack[0].endswith(function)]
        return [sum(each) for each in zip(*found, strict=True)]


def test_a_profile_shares_its_strings_functions_and_places() -> None:
    profile = Profile(
        ProfileKind("samples", "count"), ProfileKind("cpu", "nanoseconds"), taken_at=2.0
    )
    inner, outer = Frame("a.inner", "a.py", 3, 1), Frame("a.outer", "a.py", 9, 7)
    profile.add([inner, outer], [1, 10], {"thread": "x"})
    profile.add([inner._replace(line=4), outer], [2, 20])
    assert len(profile) == 2
    read = Read(profile.to_bytes())
    assert read.strings[0] == "" and len(set(read.strings)) == len(read.strings)
    assert read.kinds == [("samples", "count"), ("cpu", "nanoseconds")]
    assert read.samples == [
        (["a.inner", "a.outer"], [1, 10], {"thread": "x"}),
        (["a.inner", "a.outer"], [2, 20], {}),
    ]
    assert [it.line[0].line for it in read.message.location] == [3, 9, 4]
    assert [it.start_line for it in read.message.function] == [1, 7]
    assert read.message.time_nanos == 2_000_000_000
    # Without this pprof asks /debug/pprof/symbol, or reads the interpreter's own symbols.
    assert read.message.mapping[0].has_functions
    assert profile.to_bytes() == profile.to_bytes()


def test_functions_have_the_names_of_their_modules() -> None:
    assert module_of("/x/site-packages/aiohttp/web.py") == "aiohttp.web"
    assert module_of("/x/site-packages/uvloop/__init__.py") == "uvloop"
    assert module_of("/home/src/isthmus/net/poller.py") == "isthmus.net.poller"
    assert module_of("<frozen importlib._bootstrap>") == "<frozen importlib._bootstrap>"
    code = frame_of.__code__
    assert frame_of(code, 1).function == "isthmus.frame.observe.profiles.frame_of"


def burn(cpu_s: float) -> None:
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        sum(range(1000))


async def measured_burning() -> Read:
    """A CPU profile of a loop that burns; it cannot end before the burning has."""
    asyncio.get_running_loop().call_soon(burn, 0.3)
    return Read(await cpu_profile(0.01))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_cpu_time_is_found_where_it_is_used(run: Callable[[Awaitable[Read]], Read]) -> None:
    read = run(measured_burning())
    assert read.kinds == [("samples", "count"), ("cpu", "nanoseconds")]
    ticks, used = read.values("test_pprof.burn")
    assert ticks >= 3 and used >= 100_000_000
    assert {labels["thread"] for _, _, labels in read.samples} >= {"MainThread"}
    # A last tick that is still on its way must not end the process.
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_IGN
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_a_loop_in_another_thread_is_measured_too() -> None:
    found: list[Read] = []
    thread = threading.Thread(
        target=lambda: found.append(uvloop.run(measured_burning())), name="elsewhere"
    )
    thread.start()
    thread.join(LIMIT_S)
    burnt = [labels for stack, _, labels in found[0].samples if stack[0].endswith(".burn")]
    assert {"thread": "elsewhere"} in burnt
    assert not [it for it in threading.enumerate() if it.name == "pprof"]


def test_a_cancelled_measurement_stops_the_timer() -> None:
    async def main() -> None:
        task = asyncio.create_task(cpu_profile(LIMIT_S))
        await asyncio.sleep(0)
        assert signal.getitimer(signal.ITIMER_PROF)[1] > 0
        task.cancel()
        await asyncio.wait({task})
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)

    uvloop.run(main())


class Alive:
    """Something to be counted."""


def test_the_heap_by_type_counts_what_is_alive() -> None:
    kept = [Alive() for _ in range(1234)]
    gc.collect()
    read = Read(uvloop.run(heap_by_type()))
    assert read.kinds == [("inuse_objects", "count"), ("inuse_space", "bytes")]
    count, size = read.values("test_pprof.Alive")
    assert count == len(kept) and size >= 16 * count
    assert not tracemalloc.is_tracing()


def test_the_heap_by_type_breaks_no_tuple_that_a_thread_makes() -> None:
    over = threading.Event()
    broken: list[SystemError] = []

    def make() -> None:
        try:
            while not over.is_set():
                tuple(len(os.listdir("/proc/self/fd")) for _ in range(20))
        except SystemError as error:
            broken.append(error)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for each in threads:
        each.start()
    kept: list[list[int]] = [[] for _ in range(100_000)]  # it takes a moment to look at them
    for _ in range(3):
        uvloop.run(heap_by_type())
    over.set()
    assert len(kept) == 100_000
    for each in threads:
        each.join()
    assert broken == []


def make_some() -> list[bytearray]:
    return [bytearray(1000) for _ in range(500)]


def test_the_traced_heap_tells_where_what_is_alive_was_made() -> None:
    kept: list[bytearray] = []

    async def main() -> bytes:
        asyncio.get_running_loop().call_soon(lambda: kept.extend(make_some()))
        return await heap_traced(0.01)

    read = Read(uvloop.run(main()))
    count, size = read.values("test_pprof.make_some")
    assert count >= 500 and size >= 500_000
    assert not tracemalloc.is_tracing()


def test_a_cancelled_trace_stops_tracing() -> None:
    async def main() -> None:
        task = asyncio.create_task(heap_traced(LIMIT_S))
        await asyncio.sleep(0)
        assert tracemalloc.is_tracing()
        task.cancel()
        await asyncio.wait({task})
        assert not tracemalloc.is_tracing()

    uvloop.run(main())


async def outer_wait() -> None:
    await inner_wait()


async def inner_wait() -> None:
    await asyncio.get_running_loop().create_future()


def test_every_task_with_its_whole_stack_and_every_thread() -> None:
    async def main() -> list[profiles.WaitingTask]:
        tasks = [asyncio.create_task(outer_wait(), name=f"waiter-{n}") for n in range(3)]
        await asyncio.sleep(0)
        found = profiles.everything()
        for task in tasks:
            task.cancel()
        return found

    found = uvloop.run(main())
    read = Read(profiles.as_profile(found))
    assert read.kinds == [("goroutine", "count")]
    by_name = {labels["name"]: (stack, labels["kind"]) for stack, _, labels in read.samples}
    stack, kind = by_name["waiter-1"]
    assert [name.rpartition(".")[2] for name in stack] == ["inner_wait", "outer_wait"]
    assert kind == "task" and by_name["MainThread"][1] == "thread"

    groups = profiles.as_groups(found)
    assert groups.startswith(f"goroutine profile: total {len(found)}\n")
    assert "3 @ task waiter-0, task waiter-1, task waiter-2\n#\t" in groups
    stacks = profiles.as_stacks(found)
    assert "task waiter-2 [waiting]:\n" in stacks and "thread MainThread [running]:\n" in stacks


def test_nothing_of_it_is_loaded_before_it_is_asked_for() -> None:
    code = (
        "import sys, isthmus.programs.server.program, isthmus.programs.agent.program;"
        "from isthmus.frame.admin.debug_routes import debug_routes;"
        "debug_routes(False), debug_routes(True);"
        "print([name for name in sys.modules if 'pprof' in name or 'observe.profile' in name])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
