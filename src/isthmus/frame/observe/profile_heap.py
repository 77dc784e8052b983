"""The heap profile: by what memory is held, and with tracing where it was asked for.

Without tracing nobody knows where an object was made; what can be told of a running program is how
many of each type are alive. Tracing (tracemalloc) is on only while a profile is being taken: it
makes every allocation many times slower, and sees only what is made while it is on.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import sys
import time
import tracemalloc
from bisect import bisect_right
from collections.abc import Iterable

from isthmus.frame.observe.pprof import Frame, Kind, Profile, module_of

#: Each costs: an allocation takes 15 times as long with 1, 35 times with 8, 84 times with 24.
TRACED_FRAMES = 8
_MAX_SOURCE_BYTES = 1024 * 1024
_KINDS = (Kind("inuse_objects", "count"), Kind("inuse_space", "bytes"))


async def heap_by_type() -> bytes:
    """Count what is alive by type. Objects that cannot be part of a cycle are not seen."""
    if tracemalloc.is_tracing():
        return await asyncio.to_thread(_traced, tracemalloc.take_snapshot(), 0.0)
    return await asyncio.to_thread(_by_type)


async def heap_traced(seconds: float) -> bytes:
    """Trace for so long, and tell where what is alive then was made.

    One at a time; cancelled, it stops tracing at once. Where tracing is on already (the
    interpreter's ``-X tracemalloc``) it stays on.
    """
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start(TRACED_FRAMES)
    try:
        await asyncio.sleep(seconds)
        snapshot = await asyncio.to_thread(tracemalloc.take_snapshot)
    finally:
        if started:
            tracemalloc.stop()
    return await asyncio.to_thread(_traced, snapshot, seconds)


def _by_type() -> bytes:
    found: dict[type, list[int]] = {}
    for each in gc.get_objects():
        counts = found.setdefault(type(each), [0, 0])
        counts[0] += 1
        try:
            counts[1] += sys.getsizeof(each)
        except Exception:  # an object's own __sizeof__ may do anything
            continue
    profile = Profile(*_KINDS, taken_at=time.time())
    profile.comment("alive by type, of what the collector tracks; ?seconds=N traces where from")
    for kind, counts in found.items():
        module = str(kind.__module__)  # a property, in some classes
        profile.add([Frame(f"{module}.{kind.__qualname__}", module, 0)], counts)
    return profile.to_bytes()


def _traced(taken: tracemalloc.Snapshot, duration_s: float) -> bytes:
    snapshot = taken.filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
    names = _Names()
    profile = Profile(*_KINDS, taken_at=time.time(), duration_s=duration_s)
    for found in snapshot.statistics("traceback"):
        stack = (names.frame(each.filename, each.lineno) for each in reversed(found.traceback))
        profile.add(stack, [found.count, found.size])
    return profile.to_bytes()


class _Names:
    """Finds the function that a line belongs to: tracing keeps only files and lines."""

    def __init__(self) -> None:
        self._by_file: dict[str, list[tuple[int, str]]] = {}

    def frame(self, file: str, line: int) -> Frame:
        """Describe a line, with the name of its function if its source can be read."""
        if file not in self._by_file:
            self._by_file[file] = list(_starts(file))
        starts = self._by_file[file]
        at = bisect_right(starts, line, key=lambda start: start[0]) - 1
        first, name = starts[at] if at >= 0 else (0, "<module>")
        return Frame(f"{module_of(file)}.{name}", file, line, first)


def _starts(file: str) -> Iterable[tuple[int, str]]:
    """At which lines which function begins, or goes on after one within it."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read(_MAX_SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError):
        return ()
    starts = {0: "<module>"}

    def visit(node: ast.AST, within: str, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                visit(child, within, around)
                continue
            name = f"{within}{child.name}"
            function = not isinstance(child, ast.ClassDef)
            starts[child.lineno] = name if function else around
            visit(child, f"{name}.<locals>." if function else f"{name}.", starts[child.lineno])
            starts.setdefault((child.end_lineno or child.lineno) + 1, around)

    visit(tree, "", "<module>")
    return sorted(starts.items())
