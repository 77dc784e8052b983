"""Checks of resource limits: descriptors, memory, and whether the program gets enough CPU."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from isthmus.frame.finding import Asked, CheckId, Finding
from isthmus.frame.patient import Patient
from isthmus.net.descriptors import kept_back
from isthmus.text.units import size

#: A tunnel uses two; below the first a program hardly starts, below the second it is soon full.
_LEAST_FILES, _FEW_FILES = 1024, 8192
_NEARLY, _FULL = 0.8, 0.95
_LEAST_MEMORY = 128 * 1024 * 1024
_CGROUP = Path("/sys/fs/cgroup")
_LATE_S = 0.5
_LATE_SHARE = 0.01
_FEW_BEATS = 3
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The number of descriptors that a process may have, and has; None if unknown."""

    soft: int
    hard: int
    used: int | None = None


def files_of(pid: int) -> Files:
    """The limits of a process; 0 is the doctor itself.

    Raises:
        OSError: there is no such process, or access is denied.
    """
    if not pid:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return Files(soft=_number(soft), hard=_number(hard))
    text = Path(f"/proc/{pid}/limits").read_text()
    found = re.search(r"^Max open files\s+(\S+)\s+(\S+)", text, re.MULTILINE)
    soft_text, hard_text = (found[1], found[2]) if found else ("0", "0")
    try:
        used = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        used = None
    return Files(soft=_parsed(soft_text), hard=_parsed(hard_text), used=used)


def _number(value: int) -> int:
    return _UNLIMITED if value == resource.RLIM_INFINITY else value


def _parsed(text: str) -> int:
    return int(text) if text.isdigit() else _UNLIMITED


def see_descriptors(patient: Patient) -> Iterator[Finding]:
    """Check the limit of open files."""
    pid = patient.running.pid if patient.running is not None else 0
    where = f"of process {pid}" if pid else "that a program started here would have"
    asked = Asked(CheckId.DESCRIPTORS, "RLIMIT_NOFILE", f"read the limit of open files {where}")
    try:
        yield judge_files(asked, files_of(pid))
    except OSError as error:
        yield asked.skip(f"cannot be read: {error.strerror}")


def judge_files(asked: Asked, files: Files) -> Finding:
    """Are there enough? A program raises its soft limit to the hard limit."""
    todo = "raise it: LimitNOFILE=1048576 in a systemd unit, --ulimit nofile= of a container"
    most = "unlimited" if files.hard >= _UNLIMITED else f"{files.hard:,}"
    used = "" if files.used is None else f", {files.used:,} in use"
    seen = f"{most}{used}"
    if files.hard < _LEAST_FILES:
        return asked.fail(f"{seen}: hardly enough to start", todo)
    full = min(_FULL * files.soft, files.soft - kept_back(files.soft))
    if files.used is not None and files.used > full:
        return asked.fail(f"{seen}: new connections will be refused", todo)
    if files.used is not None and files.used > _NEARLY * files.soft:
        return asked.warn(seen, todo)
    if files.hard < _FEW_FILES:
        return asked.warn(f"{seen}: enough for {files.hard // 2:,} tunnels at most", todo)
    return asked.ok(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The memory of a control group: limit and use in bytes, and the number of OOM kills."""

    limit: int
    used: int
    kills: int = 0


def memory_of(pid: int, root: Path = _CGROUP) -> MemoryUse | None:
    """The memory limit of a process by cgroup v2; None if there is none, or it is unknown."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    # In a container the process sees its own group as the root.
    places = [root / own.lstrip("/"), *(root / own.lstrip("/")).parents]
    for place in places:
        memory = read_memory(place)
        if memory is not None:
            return memory
        if place == root:
            break
    return None


def read_memory(place: Path) -> MemoryUse | None:
    """The values of one group; None without a limit."""
    try:
        limit = (place / "memory.max").read_text().strip()
        used = int((place / "memory.current").read_text())
        events = (place / "memory.events").read_text()
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    kills = re.search(r"^oom_kill ([0-9]+)", events, re.MULTILINE)
    return MemoryUse(limit=int(limit), used=used, kills=int(kills[1]) if kills else 0)


def see_memory(patient: Patient) -> Iterator[Finding]:
    """Check the memory limit of the control group."""
    pid = patient.running.pid if patient.running is not None else 0
    asked = Asked(CheckId.MEMORY, "memory limit", "read the limit of its control group")
    yield judge_memory(asked, memory_of(pid))


def judge_memory(asked: Asked, memory: MemoryUse | None) -> Finding:
    """Is there enough memory?"""
    if memory is None:
        return asked.ok("none")
    seen = f"{size(memory.limit)}, {size(memory.used)} in use"
    todo = "raise the memory limit (resources.limits.memory, MemoryMax=)"
    if memory.kills:
        return asked.fail(f"{seen}; the kernel killed {memory.kills} times for it", todo)
    if memory.used > _FULL * memory.limit:
        return asked.fail(seen, todo)
    if memory.limit < _LEAST_MEMORY or memory.used > _NEARLY * memory.limit:
        return asked.warn(seen, todo)
    return asked.ok(seen)


def see_loop(patient: Patient) -> Iterator[Finding]:
    """Check how late the event loop runs, by the program's own metrics."""
    assert patient.running is not None
    asked = Asked(CheckId.LOOP, "event loop", "read loop_lag and loop_stalls of /metrics")
    metrics = Metrics(patient.running.metrics)
    yield judge_loop(
        asked,
        beats=metrics.total("_loop_lag_seconds_count"),
        prompt=metrics.total("_loop_lag_seconds_bucket", le=f"{_LATE_S:g}"),
        stalls=metrics.total("_loop_stalls_total"),
    )


def judge_loop(asked: Asked, *, beats: float, prompt: float, stalls: float) -> Finding:
    """Does the event loop run in time? It has one heartbeat each second."""
    todo = "give the program more CPU (resources.limits.cpu throttles), or run more of them"
    if not beats:
        return asked.skip("no data yet")
    late = beats - prompt
    seen = f"{late:.0f} of {beats:.0f} heartbeats were more than {_LATE_S:g} s late"
    if stalls:
        return asked.fail(f"{seen}, {stalls:.0f} more than 5 s", todo)
    if late > max(_FEW_BEATS, _LATE_SHARE * beats):
        return asked.warn(seen, todo)
    return asked.ok(seen)


class Metrics:
    """The samples of one /metrics; names are matched by suffix, since programs add prefixes."""

    def __init__(self, text: str) -> None:
        """Text that cannot be parsed has no samples."""
        self._samples: list[Sample] = []
        try:
            for family in text_string_to_metric_families(text):
                self._samples += family.samples
        except ValueError:
            self._samples = []

    def total(self, suffix: str, **labels: str) -> float:
        """The sum of all samples of isthmus with this suffix and these labels."""
        return sum(sample.value for sample in self._matching(suffix, labels))

    def by(self, label: str, suffix: str) -> dict[str, float]:
        """The samples of isthmus with this suffix, by the value of a label."""
        found: dict[str, float] = {}
        for sample in self._matching(suffix, {}):
            value = sample.labels.get(label, "")
            found[value] = found.get(value, 0.0) + sample.value
        return found

    def _matching(self, suffix: str, labels: dict[str, str]) -> Iterator[Sample]:
        for sample in self._samples:
            ours = sample.name.startswith("isthmus_") and sample.name.endswith(suffix)
            if ours and labels.items() <= sample.labels.items():
                yield sample
