"""What Go calls the goroutine profile: every task with where it waits, and every thread's stack."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from isthmus.frame.observe.pprof import MAX_FRAMES, Frame, Kind, Profile, frame_of, walk


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task or a thread, and its stack with the innermost call first."""

    kind: str
    name: str
    state: str
    stack: tuple[Frame, ...]


def everything() -> list[Waiting]:
    """Look at every task of the running loop and at every thread."""
    here = asyncio.current_task()
    tasks = [
        Waiting("task", task.get_name(), "running" if task is here else "waiting", _stack_of(task))
        for task in asyncio.all_tasks()
    ]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        Waiting("thread", names.get(ident, str(ident)), "running", _frames(frame))
        for ident, frame in sys._current_frames().items()
    ]
    return sorted(tasks, key=lambda it: it.name) + sorted(threads, key=lambda it: it.name)


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    return tuple(frame_of(code, line) for code, line in walk(frame))


def _stack_of(task: asyncio.Task[Any]) -> tuple[Frame, ...]:
    # Task.get_stack() shows the outermost coroutine of a waiting task alone.
    found = [frame_of(frame.f_code, frame.f_lineno) for frame in _awaited(task.get_coro())]
    return tuple(reversed(found))


def _awaited(awaitable: object) -> Iterator[FrameType]:
    """The frames of a coroutine and of what it awaits, the outermost first."""
    for _ in range(MAX_FRAMES):
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaitable, f"{kind}_frame", None)
            if isinstance(frame, FrameType):
                yield frame
                break
        else:
            return
        awaitable = getattr(awaitable, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)


def as_profile(found: list[Waiting]) -> bytes:
    """Write them in pprof's format; each is one sample, labelled with its kind and name."""
    profile = Profile(Kind("goroutine", "count"), taken_at=time.time())
    for it in found:
        profile.add(it.stack, [1], {"kind": it.kind, "name": it.name})
    return profile.to_bytes()


def as_groups(found: list[Waiting]) -> str:
    """Write them as text, those with one stack together, as Go's ``debug=1``."""
    groups = Counter(it.stack for it in found)
    names: dict[tuple[Frame, ...], list[str]] = {}
    for it in found:
        names.setdefault(it.stack, []).append(f"{it.kind} {it.name}")
    lines = [f"goroutine profile: total {len(found)}\n"]
    for stack, count in groups.most_common():
        lines.append(f"{count} @ {', '.join(names[stack])}\n")
        lines += [f"#\t{each.function}\t{each.file}:{each.line}\n" for each in stack]
        lines.append("\n")
    return "".join(lines)


def as_stacks(found: list[Waiting]) -> str:
    """Write each with its stack, as Go's ``debug=2``."""
    lines = []
    for it in found:
        lines.append(f"{it.kind} {it.name} [{it.state}]:\n")
        lines += [f"{each.function}\n\t{each.file}:{each.line}\n" for each in it.stack]
        lines.append("\n")
    return "".join(lines)
