"""One server with one worker and with more: requests and dials per second, and CPU use.

On a machine with few cores the load, the agent and the target use the cores that more workers would
need. Therefore each worker is limited to a share of a core (cgroup v1's CPU quota, as root): N
workers are then N small cores, with the load outside of them. Without permission the measurement
runs without limits, with a message. docs/scaling.md interprets the figures.

usage: bench/workers.py [--workers N,N] [--share 0.1] [--seconds S] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from certs import Certs, make_certs
from figures import Load
from machine import machine
from measure import Bench, build_load, start_target
from processes import BenchError, Workspace, process_tree
from topologies import Commands, Shape, Topology, start_tunnel

_CGROUP = Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 20_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOADS = {
    "requests": Load(group="rr", command="rr", conns=64),
    "dials": Load(group="dial", command="dial", conns=16),
}


@dataclass(kw_only=True)
class Found:
    """The measurements with one number of workers."""

    workers: int
    share: float
    per_s: dict[str, list[float]] = field(default_factory=dict)
    #: The CPU of each worker, in cores, by round.
    cores: dict[str, list[list[float]]] = field(default_factory=dict)
    parent_cores: dict[str, list[float]] = field(default_factory=dict)


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextlib.contextmanager
def held_to(share: float, pids: Sequence[int]) -> Iterator[None]:
    """Limit each of the processes to a share of a core; 0 is no limit."""
    groups = [_CGROUP / f"isthmus-bench-{os.getpid()}-{pid}" for pid in pids if share]
    try:
        for group, pid in zip(groups, pids, strict=False):
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(int(share * _PERIOD_US)))
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in groups:
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    (_CGROUP / "cgroup.procs").write_text(pid)
                group.rmdir()


def can_hold() -> bool:
    """Whether this machine and this user can limit processes like that."""
    return os.access(_CGROUP / "cgroup.procs", os.W_OK) and (_CGROUP / "cpu.cfs_quota_us").exists()


def start(space: Workspace, certs: Certs, workers: int) -> tuple[Topology, list[int]]:
    """Start a server with this many workers; returns it and their process ids."""
    shape = Shape(server_flags=(f"--workers={workers}",), links=workers)
    topology = start_tunnel(space, certs, Commands(), f"workers-{workers}", shape)
    server = topology.processes[0]
    children = [pid for pid in process_tree([server.pid]) if pid != server.pid]
    return topology, children or [server.pid]


def measure(bench: Bench, topology: Topology, pids: list[int], found: Found) -> None:
    """One round of every load, with each worker limited to its share."""
    parent = topology.processes[0].pid
    for name, load in _LOADS.items():
        before = {pid: cpu_s(pid) for pid in (parent, *pids)}
        with held_to(found.share, pids):
            bench.run_load(topology, load)
        took_s = bench.seconds + bench.warmup
        cores = {pid: (cpu_s(pid) - before[pid]) / took_s for pid in before}
        found.per_s.setdefault(name, []).append(
            bench.samples[load.name][topology.name][-1]["per_s"]
        )
        found.cores.setdefault(name, []).append([cores[pid] for pid in pids])
        if parent not in pids:
            found.parent_cores.setdefault(name, []).append(cores[parent])


def run(arguments: argparse.Namespace, space: Workspace) -> list[Found]:
    """All numbers of workers side by side, in rotating order."""
    share = arguments.share
    if share and not can_hold():
        say("no permission to limit CPU (needs root and cgroup v1): measuring without limits")
        share = 0.0
    load = build_load()
    certs = make_certs(space.path("pki"))
    _, target = start_target(space, load)
    bench = Bench(space=space, load=load, target=target, seconds=arguments.seconds, warmup=0.5)
    running = [(*start(space, certs, n), Found(workers=n, share=share)) for n in arguments.workers]
    for number in range(arguments.rounds):
        say(f"round {number + 1} of {arguments.rounds}")
        shift = number % len(running)
        for topology, pids, found in (*running[shift:], *running[:shift]):
            measure(bench, topology, pids, found)
    return [found for _, _, found in running]


def show(all_found: Sequence[Found]) -> str:
    """The figures, as text."""
    share = all_found[0].share
    limit = f"each worker limited to {share:g} of a core" if share else "no limits"
    lines = [f"{limit}; {machine()}"]
    for name in _LOADS:
        one = statistics.median(all_found[0].per_s[name])
        for found in all_found:
            per_s = statistics.median(found.per_s[name])
            cores = [statistics.median(each) for each in zip(*found.cores[name], strict=True)]
            parent = found.parent_cores.get(name)
            lines.append(
                f"  {name:8} {found.workers} workers {per_s:9.0f} a second,"
                f" {per_s / one:4.2f} times;"
                f" CPU of the workers {', '.join(f'{each:.2f}' for each in cores)}"
                + (f", of their parent {statistics.median(parent):.3f}" if parent else "")
            )
    return "\n".join(lines)


def say(text: str) -> None:
    """Print progress."""
    print(f"bench/workers.py: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench/workers.py", description=__doc__)
    add = parser.add_argument
    add("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4],
        help="how many, one after the other (default 1,2,4)")  # fmt: skip
    add("--share", type=float, default=0.1, help="of a core for each; 0 is no limit (default 0.1)")
    add("--seconds", type=float, default=3.0, help="length of one measurement (default 3)")
    add("--rounds", type=int, default=3, help="paired rounds (default 3)")
    add("--json", type=Path, metavar="FILE", help="write what was measured there as well")
    given = parser.parse_args(arguments)
    with Workspace() as space:
        found = run(given, space)
    print(show(found))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(it) for it in found], indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except BenchError as exc:
        sys.exit(f"bench/workers.py: {exc}")
