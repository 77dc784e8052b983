"""Runs the load program through topologies and collects its output, round by round."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curl import fetch_times
from figures import CURL, IDLE_TUNNELS, PASSED_BYTES, SLOW_LOAD, Load
from processes import BenchError, Child, Workspace, rss_kb
from topologies import Topology

_HERE = Path(__file__).resolve().parent
# Go would interrupt blocking system calls to preempt threads; nothing here needs that.
_ENV = {"GODEBUG": "asyncpreemptoff=1"}
# load name -> topology name -> one dict of numbers per round
Samples = dict[str, dict[str, list[dict[str, float]]]]


def build_load(name: str = "load", package: str = "./cmd/load") -> Path:
    """A load program, built into the user's cache once per version of its sources."""
    digest = hashlib.sha256()
    folders = dict.fromkeys((_HERE / "load", _HERE / name))
    for source in sorted(s for folder in folders for s in folder.rglob("*") if s.is_file()):
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isthmus" / "bench"
    program = cache / f"{name}-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    partial = cache / f"{program.name}.{os.getpid()}"
    command = ["go", "build", "-trimpath", "-o", str(partial), package]
    env = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "0"}
    try:
        done = subprocess.run(
            command, cwd=_HERE / name, env=env, capture_output=True, text=True, timeout=300
        )
    except OSError as exc:
        raise BenchError(f"Go is needed to build the load program: {exc}") from exc
    if done.returncode:
        raise BenchError(f"{name} does not build:\n{done.stderr}")
    partial.replace(program)
    return program


@dataclass(kw_only=True)
class Bench:
    """What every measurement needs, and the samples so far."""

    space: Workspace
    load: Path
    target: str
    seconds: float
    warmup: float
    samples: Samples = field(default_factory=dict)
    #: Further arguments of the load program.
    flags: tuple[str, ...] = ()

    def start_target(self) -> tuple[Child, str]:
        """A target process of its own, and its address."""
        return start_target(self.space, self.load)

    def words(self, topology: Topology, command: str, conns: int, target: str) -> list[str]:
        """The command line of the load program."""
        words = [
            str(topology.load or self.load),
            command,
            f"--via={topology.via}",
            f"--conns={conns}",
        ]
        words += [
            f"--target={topology.at or target}",
            f"--seconds={self.seconds}",
            f"--warmup={self.warmup}",
        ]
        words += [f"--pids={','.join(map(str, topology.pids()))}"]
        return [*words, f"--uds={topology.uds}"] if topology.uds else words

    def run_load(self, topology: Topology, load: Load) -> None:
        """Make one measurement of one topology."""
        if load.group == CURL:
            numbers = fetch_times(self.space, topology, load, self.seconds)
            self.keep(load.name, topology.name, numbers)
            return
        words = self.words(topology, load.command, load.conns, self.target) + list(self.flags)
        if load.size:
            words.append(f"--size={load.size}")
        child = self.space.start(f"load-{load.name}", words, speaks=True, env=_ENV)
        try:
            answer = child.read_line(4 * (self.seconds + self.warmup) + 60)
        except BenchError as exc:
            raise BenchError(f"{load.name} through {topology.name}: {exc}") from exc
        self.space.stop(child)
        self.keep(load.name, topology.name, _numbers(answer))

    def keep(self, load: str, topology: str, numbers: dict[str, float]) -> None:
        """Store one sample."""
        self.samples.setdefault(load, {}).setdefault(topology, []).append(numbers)


def start_target(space: Workspace, load: Path) -> tuple[Child, str]:
    """Start the target; returns it with its address."""
    command = [str(load), "target", f"--listen=127.0.0.1:{space.free_port()}"]
    child = space.start("target", command, speaks=True, env=_ENV)
    return child, str(child.read_line(10)["address"])


def _numbers(answer: dict[str, Any]) -> dict[str, float]:
    flat = {name: float(value) for name, value in answer.items() if isinstance(value, int | float)}
    if "source_bytes" in flat:
        flat["taken_mb"] = flat["source_bytes"] / 1e6
        flat["grown_mb"] = flat["grown_kb"] * 1024 / 1e6
        for part in ("unloaded", "stalled"):
            flat |= {f"{part}_{name}": float(value) for name, value in answer[part].items()}
    if "slow_grown_kb" in flat:
        flat["slow_grown_mb"] = flat["slow_grown_kb"] * 1024 / 1e6
        for part in ("alone", "early", "rest"):
            flat |= {f"{part}_{name}": float(value) for name, value in answer[part].items()}
    return flat


def run_rounds(
    bench: Bench,
    topologies: Sequence[Topology],
    loads: Sequence[Load],
    rounds: int,
    say: Callable[[str], None],
) -> None:
    """Measure everything ``rounds`` times, topologies side by side, in rotating order."""
    for number in range(rounds):
        for index, load in enumerate(loads):
            say(f"round {number + 1} of {rounds}: {load.name}")
            taking = [topology for topology in topologies if topology.measures(load)]
            shift = (number + index) % max(1, len(taking))
            for topology in (*taking[shift:], *taking[:shift]):
                bench.run_load(topology, load)


def run_slow_reader(bench: Bench, start: Callable[[str], Topology], *, seconds: float) -> None:
    """Request/response beside a reader of 1 MB/s, through fresh processes."""
    topology = start(bench.target)
    usual, bench.seconds = bench.seconds, seconds
    bench.run_load(topology, SLOW_LOAD)
    bench.seconds = usual
    topology.stop(bench.space)


def run_memory(bench: Bench, start: Callable[[str], Topology]) -> None:
    """Memory of fresh processes: before, with idle tunnels, and after data went through."""
    target, address = bench.start_target()
    topology = start(address)
    pids = topology.pids()
    before = rss_kb(pids)
    holder = _hold(bench, topology, IDLE_TUNNELS, address)
    idle = _settled_rss_kb(topology)
    holder.tell(f"pass {PASSED_BYTES}")
    holder.read_line(300)
    used = _settled_rss_kb(topology)
    _end_hold(bench, topology, holder, target)
    numbers = {
        "before_kb": float(before),
        "idle_kb": (idle - before) / IDLE_TUNNELS,
        "used_kb": (used - before) / IDLE_TUNNELS,
    }
    bench.keep("mem", topology.name, numbers)


def run_hold(bench: Bench, start: Callable[[str], Topology], *, tunnels: int) -> None:
    """Hold many idle tunnels through fresh processes and send a request on each twice."""
    target, address = bench.start_target()
    topology = start(address)
    before = rss_kb(topology.pids())
    begun = time.monotonic()
    holder = _hold(bench, topology, tunnels, address)
    opened = time.monotonic() - begun
    rss = _settled_rss_kb(topology)
    holder.tell("check")
    answered = holder.read_line(120)["answered"]
    _end_hold(bench, topology, holder, target)
    numbers = {"answered": float(answered), "rss_kb": float(rss), "open_s": opened}
    bench.keep("hold", topology.name, numbers | {"each_kb": (rss - before) / tunnels})


def _hold(bench: Bench, topology: Topology, tunnels: int, address: str) -> Child:
    words = bench.words(topology, "hold", tunnels, address)
    holder = bench.space.start("hold", words, speaks=True, env=_ENV)
    try:
        holder.read_line(120)
    except BenchError as exc:
        raise BenchError(f"{tunnels} tunnels through {topology.name}: {exc}") from exc
    return holder


def _end_hold(bench: Bench, topology: Topology, holder: Child, target: Child) -> None:
    holder.tell("quit")
    holder.read_line(60)
    bench.space.stop(holder)
    topology.stop(bench.space)
    bench.space.stop(target)


def _settled_rss_kb(topology: Topology) -> int:
    """Memory once nothing moves: the same within 64 kB for half a second, or after 3 s."""
    last = rss_kb(topology.pids())
    for _ in range(6):
        time.sleep(0.5)
        now = rss_kb(topology.pids())
        if abs(now - last) <= 64:
            return now
        last = now
    return last
