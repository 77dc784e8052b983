"""Writes profiles in pprof's format, so that ``go tool pprof`` opens them.

What is measured lives in profile_cpu.py, profile_heap.py and profile_tasks.py; the message is
wire/pprof.proto.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType, FrameType, MappingProxyType
from typing import NamedTuple

from isthmus.wire import pprof_pb2

MAX_FRAMES = 128
_NONE: Mapping[str, str] = MappingProxyType({})


class Frame(NamedTuple):
    """One call of a stack: which function, and at which line it is."""

    function: str
    file: str
    line: int
    first_line: int = 0


class Kind(NamedTuple):
    """What a value means, such as ("cpu", "nanoseconds")."""

    type: str
    unit: str


class Profile:
    """Collects samples, each a stack with one value for each kind, and writes them."""

    def __init__(
        self,
        *kinds: Kind,
        period: tuple[Kind, int] | None = None,
        taken_at: float = 0.0,
        duration_s: float = 0.0,
    ) -> None:
        """``period`` says what lies between two samples; ``taken_at`` is UNIX time."""
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
        # pprof would look for symbols itself in a mapping that does not say that it has them.
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
    """Name the module of a source file, as far as its path tells."""
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
