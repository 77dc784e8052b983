"""Profiles of CPU, heap and tasks, in pprof's format, so that ``go tool pprof`` opens them.

CPU: a timer of CPU time (ITIMER_PROF) interrupts the main thread a hundred times for each second
that the process uses; an idle program is not interrupted. At each tick every thread's stack gets
the CPU time that its thread used since the last. The obvious alternative, a thread that samples
every 10 ms, sees almost only calls that release the interpreter lock, because only then can it run.
It is used where signals cannot be used, outside the main thread.

Heap: without tracing the place of an allocation is unknown; a running program can only count the
live objects of each type. Tracing (tracemalloc) is on only while a profile is being taken: it makes
every allocation many times slower, and sees only allocations while it is on.

Tasks: the equivalent of Go's goroutine profile.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import gzip
import signal
import sys
import threading
import time
import tracemalloc
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, MappingProxyType
from typing import Any, NamedTuple

from isthmus.wire import pprof_pb2

MAX_FRAMES = 128
_NONE: Mapping[str, str] = MappingProxyType({})
HZ = 100
_PERIOD_NS = 1_000_000_000 // HZ
_Key = tuple[str, tuple[tuple[CodeType, int], ...]]
#: Each costs: an allocation takes 15 times as long with 1, 35 times with 8, 84 times with 24.
TRACED_FRAMES = 8
_MAX_SOURCE_BYTES = 1024 * 1024


class Frame(NamedTuple):
    """One call of a stack: the function and the current line."""

    function: str
    file: str
    line: int
    first_line: int = 0


class ProfileKind(NamedTuple):
    """The meaning of a value, such as ("cpu", "nanoseconds")."""

    type: str
    unit: str


class Profile:
    """Collects samples, each a stack with one value for each kind, and writes them."""

    def __init__(
        self,
        *kinds: ProfileKind,
        period: tuple[ProfileKind, int] | None = None,
        taken_at: float = 0.0,
        duration_s: float = 0.0,
    ) -> None:
        """``period`` is the interval between two samples; ``taken_at`` is UNIX time."""
        self._message = pprof_pb2.Profile()
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._locations: dict[Frame, int] = {}
        for kind in kinds:
            self._message.sample_type.add(
                type=self._string(kind.type), unit=self._string(kind.unit)
            )
        if period is not None:
            self._message.period_type.type = self._string(period[0].type)
            self._message.period_type.unit = self._string(period[0].unit)
            self._message.period = period[1]
        self._message.default_sample_type = self._string(kinds[-1].type)
        self._message.time_nanos = int(taken_at * 1e9)
        self._message.duration_nanos = int(duration_s * 1e9)
        # pprof would look for symbols itself if the mapping did not declare that it has them.
        self._message.mapping.add(
            id=1,
            memory_limit=1,
            filename=self._string(sys.executable),
            has_functions=True,
            has_filenames=True,
            has_line_numbers=True,
        )

    def __len__(self) -> int:
        return len(self._message.sample)

    def add(
        self, stack: Iterable[Frame], values: Sequence[int], labels: Mapping[str, str] = _NONE
    ) -> None:
        """Add a sample; the innermost call of the stack comes first."""
        sample = self._message.sample.add(
            location_id=[self._location(frame) for frame in stack], value=values
        )
        for key, text in labels.items():
            sample.label.add(key=self._string(key), str=self._string(text))

    def comment(self, text: str) -> None:
        """Add a line that pprof shows with the profile."""
        self._message.comment.append(self._string(text))

    def to_bytes(self) -> bytes:
        """Write the profile, gzipped."""
        del self._message.string_table[:]
        self._message.string_table.extend(self._strings)
        return gzip.compress(self._message.SerializeToString(), compresslevel=6)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _location(self, frame: Frame) -> int:
        known = self._locations.get(frame)
        if known is not None:
            return known
        number = self._locations[frame] = len(self._locations) + 1
        location = self._message.location.add(id=number, mapping_id=1)
        location.line.add(function_id=self._function(frame), line=frame.line)
        return number

    def _function(self, frame: Frame) -> int:
        key = (frame.function, frame.file, frame.first_line)
        known = self._functions.get(key)
        if known is not None:
            return known
        number = self._functions[key] = len(self._functions) + 1
        name = self._string(frame.function)
        self._message.function.add(
            id=number,
            name=name,
            system_name=name,
            filename=self._string(frame.file),
            start_line=frame.first_line,
        )
        return number


def frame_of(code: CodeType, line: int) -> Frame:
    """Describe a line of a code object; the function has its module's name before its own."""
    file = code.co_filename
    return Frame(f"{module_of(file)}.{code.co_qualname}", file, line, code.co_firstlineno)


def module_of(file: str) -> str:
    """The module of a source file, as far as its path shows it."""
    name = file.removesuffix(".py").replace("\\", "/")
    for root in ("/site-packages/", "/src/", f"/python3.{sys.version_info.minor}/"):
        _, found, rest = name.rpartition(root)
        if found:
            return rest.removesuffix("/__init__").replace("/", ".")
    return name.rpartition("/")[2]


def walk(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    """The calls of a running stack, the innermost first, at most MAX_FRAMES."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < MAX_FRAMES:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


async def cpu_profile(seconds: float) -> bytes:
    """Measure for this long and return the profile; if cancelled, measuring stops at once.

    Only one at a time: the process has one timer.
    """
    samples = _Samples()
    taken_at, started = time.time(), time.monotonic()
    in_main = threading.current_thread() is threading.main_thread()
    with _by_timer(samples) if in_main else _by_thread(samples):
        await asyncio.sleep(seconds)
    return await asyncio.to_thread(samples.profile, taken_at, time.monotonic() - started)


class _Samples:
    """CPU time by thread and stack."""

    def __init__(self) -> None:
        self._found: dict[_Key, list[int]] = {}
        self._used: dict[int, int] = {}
        self.take({}, frozenset())

    def take(self, instead: dict[int, FrameType | None], leave_out: frozenset[int]) -> None:
        """Charge each thread's stack with the time that it used since the last tick.

        ``instead`` has the frames of threads that are busy here, ``leave_out`` those not to count.
        """
        frames: dict[int, FrameType | None] = {**sys._current_frames(), **instead}
        for thread in threading.enumerate():
            ident, native = thread.ident, thread.native_id
            if ident is None or native is None or ident not in frames:
                continue
            now = _cpu_ns(native)
            used = now - self._used.get(native, now)
            self._used[native] = now
            if used > 0 and ident not in leave_out:
                sample = self._found.setdefault((thread.name, walk(frames[ident])), [0, 0])
                sample[0] += 1
                sample[1] += used

    def profile(self, taken_at: float, duration_s: float) -> bytes:
        """Write the profile."""
        profile = Profile(
            ProfileKind("samples", "count"),
            ProfileKind("cpu", "nanoseconds"),
            period=(ProfileKind("cpu", "nanoseconds"), _PERIOD_NS),
            taken_at=taken_at,
            duration_s=duration_s,
        )
        for (thread, stack), values in self._found.items():
            profile.add((frame_of(code, line) for code, line in stack), values, {"thread": thread})
        return profile.to_bytes()


def _cpu_ns(native_id: int) -> int:
    # The CPU clock of a thread, made as pthread_getcpuclockid(3) makes it (Linux,
    # include/linux/posix-timers_types.h): that function itself may crash for a thread that has
    # just ended, while the kernel answers EINVAL.
    try:
        return time.clock_gettime_ns((~native_id << 3) | 6)
    except OSError:
        return 0


@contextlib.contextmanager
def _by_timer(samples: _Samples) -> Iterator[None]:
    main = threading.get_ident()
    none: frozenset[int] = frozenset()

    def tick(number: int, frame: FrameType | None) -> None:
        samples.take({main: frame}, none)

    signal.signal(signal.SIGPROF, tick)
    signal.setitimer(signal.ITIMER_PROF, 1 / HZ, 1 / HZ)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not the default, which ends the process: a last tick may be on its way.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)


@contextlib.contextmanager
def _by_thread(samples: _Samples) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        me = frozenset({threading.get_ident()})
        while not stop.wait(1 / HZ):
            samples.take({}, me)

    thread = threading.Thread(target=run, name="pprof", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


_UNDISTURBED_S = 10.0
_KINDS = (ProfileKind("inuse_objects", "count"), ProfileKind("inuse_space", "bytes"))


async def heap_by_type() -> bytes:
    """Count live objects by type. Objects that cannot be part of a cycle are not seen."""
    if tracemalloc.is_tracing():
        return await asyncio.to_thread(_traced, tracemalloc.take_snapshot(), 0.0)
    return await asyncio.to_thread(_by_type)


async def heap_traced(seconds: float) -> bytes:
    """Trace for this long, and show where the objects alive at the end were allocated.

    Only one at a time; if cancelled, tracing stops at once. If tracing is already on (the
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
    # A tuple that another thread is creating (``tuple(f(x) for x in xs)``) breaks there while a
    # reference is held here: no thread may continue before all references are dropped.
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_UNDISTURBED_S)
    try:
        time.sleep(2 * interval_s)  # threads that wait by the old interval run before
        found = _counted()
    finally:
        sys.setswitchinterval(interval_s)
    profile = Profile(*_KINDS, taken_at=time.time())
    profile.comment("alive by type, of what the collector tracks; ?seconds=N traces where from")
    for kind, counts in found.items():
        module = str(kind.__module__)  # a property, in some classes
        profile.add([Frame(f"{module}.{kind.__qualname__}", module, 0)], counts)
    return profile.to_bytes()


def _counted() -> dict[type, list[int]]:
    """How many objects of each type there are, and their bytes."""
    found: dict[type, list[int]] = {}
    for each in gc.get_objects():
        counts = found.setdefault(type(each), [0, 0])
        counts[0] += 1
        try:
            counts[1] += sys.getsizeof(each)
        except Exception:  # an object's own __sizeof__ may do anything
            continue
    return found


def _traced(taken: tracemalloc.Snapshot, duration_s: float) -> bytes:
    snapshot = taken.filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
    names = _Names()
    profile = Profile(*_KINDS, taken_at=time.time(), duration_s=duration_s)
    for found in snapshot.statistics("traceback"):
        stack = (names.frame(each.filename, each.lineno) for each in reversed(found.traceback))
        profile.add(stack, [found.count, found.size])
    return profile.to_bytes()


class _Names:
    """Finds the function of a line: tracing keeps only files and lines."""

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
    """The lines at which a function begins, or continues after a nested one."""
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


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task or a thread, and its stack with the innermost call first."""

    kind: str
    name: str
    state: str
    stack: tuple[Frame, ...]


def everything() -> list[WaitingTask]:
    """List every task of the running loop and every thread."""
    here = asyncio.current_task()
    tasks = [
        WaitingTask(
            "task", task.get_name(), "running" if task is here else "waiting", _stack_of(task)
        )
        for task in asyncio.all_tasks()
    ]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        WaitingTask("thread", names.get(ident, str(ident)), "running", _frames(frame))
        for ident, frame in sys._current_frames().items()
    ]
    return sorted(tasks, key=lambda it: it.name) + sorted(threads, key=lambda it: it.name)


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    return tuple(frame_of(code, line) for code, line in walk(frame))


def _stack_of(task: asyncio.Task[Any]) -> tuple[Frame, ...]:
    # Task.get_stack() shows only the outermost coroutine of a waiting task.
    found = [frame_of(frame.f_code, frame.f_lineno) for frame in _awaited(task.get_coro())]
    return tuple(reversed(found))


def _awaited(awaitable: object) -> Iterator[FrameType]:
    """The frames of a coroutine and of those it awaits, the outermost first."""
    for _ in range(MAX_FRAMES):
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaitable, f"{kind}_frame", None)
            if isinstance(frame, FrameType):
                yield frame
                break
        else:
            return
        awaitable = getattr(awaitable, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)


def as_profile(found: list[WaitingTask]) -> bytes:
    """Write them in pprof's format; each is one sample, labelled with its kind and name."""
    profile = Profile(ProfileKind("goroutine", "count"), taken_at=time.time())
    for it in found:
        profile.add(it.stack, [1], {"kind": it.kind, "name": it.name})
    return profile.to_bytes()


def as_groups(found: list[WaitingTask]) -> str:
    """Write them as text, grouped by stack, as with Go's ``debug=1``."""
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


def as_stacks(found: list[WaitingTask]) -> str:
    """Write each with its stack, as with Go's ``debug=2``."""
    lines = []
    for it in found:
        lines.append(f"{it.kind} {it.name} [{it.state}]:\n")
        lines += [f"{each.function}\n\t{each.file}:{each.line}\n" for each in it.stack]
        lines.append("\n")
    return "".join(lines)
