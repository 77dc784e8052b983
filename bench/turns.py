"""Measures this tree against another checkout of Isthmus, alternately: the effect of a change.

usage: python bench/turns.py OTHER_TREE [--starts 5] [--rounds 3] [--only rr,dial]

Two runs of ``make bench`` differ by more than most changes do, and so do two starts of the same
program (memory is laid out differently: 20 % of a download). Here every measurement of this tree is
paired with one of the other tree, the programs are restarted several times, and the ratio is the
median over all pairs: above 1 is better for rates, below 1 for CPU. Exits with 1 if a row is worse
by more than ``--allow`` percent. Both trees run with this interpreter and its packages.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from certs import make_certs
from figures import FORWARD_LOADS, GRPC_LINK_LOADS, LOADS, Load
from measure import Bench, Samples, build_load, run_rounds, start_target
from processes import BenchError, Workspace
from report import spread
from rich.console import Console
from rich.table import Table
from run import APISERVER_PROXY, GRPC, GRPC_LINK, grpc_frontend
from topologies import Commands, Shape, Topology, start_apiserver_proxy, start_tunnel

HERE = Path(__file__).resolve().parent
WAYS = ("isthmus", GRPC, GRPC_LINK, APISERVER_PROXY)
GROUPS = ("down", "up", "rr", "dial")
#: The compared figures: a rate, where more is better, and the CPU time of server and agent.
FIELDS = {"down": ("mb_per_s", "cpu_s_per_gb"), "up": ("mb_per_s", "cpu_s_per_gb")}
TIMED = ("per_s", "cpu_us_each")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("other", type=Path, metavar="OTHER_TREE", help="a checkout to compare this one with")
    add("--starts", type=int, default=5, help="how often to start the programs anew (default 5)")
    add("--rounds", type=int, default=3, help="pairs for each row and start (default 3)")
    add("--seconds", type=float, default=0.7, help="length of one measurement (default 0.7)")
    add("--only", default=",".join(GROUPS), help=f"some of {','.join(GROUPS)}")
    add("--ways", default=",".join(WAYS), help=f"some of {','.join(WAYS)}")
    add("--allow", type=float, default=3.0, help="how many percent worse is no failure (default 3)")
    args = parser.parse_args()
    if not (args.other / "bench" / "launch.py").is_file():
        parser.error(f"{args.other} is not a checkout of Isthmus: it has no bench/launch.py")
    return args


def start(way: str, space: Workspace, target: str, tree: Path, label: str) -> Topology:
    """Start one path through a tunnel with the programs of one tree."""
    commands = Commands(tree=tree.resolve())
    if way == APISERVER_PROXY:
        topology = start_apiserver_proxy(space, commands, FORWARD_LOADS, target)
        return replace(topology, name=label)
    shape = None
    if way == GRPC:
        shape = grpc_frontend()
    elif way == GRPC_LINK:
        shape = Shape(agent_flags=("--link=grpc",), only=GRPC_LINK_LOADS)
    return start_tunnel(space, make_certs(space.path("certs")), commands, label, shape)


def compare(samples: Samples, loads: list[Load], way: str, table: Table, allow: float) -> int:
    """Add the rows of one path to the table; returns how many are worse than allowed."""
    worse = 0
    for load in loads:
        taken = samples.get(load.name)
        if not taken:
            continue
        for field in FIELDS.get(load.group, TIMED):
            theirs, ours = ([sample[field] for sample in taken[name]] for name in ("other", "this"))
            ratio = spread([one / two for one, two in zip(ours, theirs, strict=True)])
            before, after = spread(theirs), spread(ours)
            assert ratio is not None and before is not None and after is not None
            loss = 1 - ratio.median if field.endswith("per_s") else ratio.median - 1
            bad = loss * 100 > allow
            worse += bad
            shown = f"{ratio.median:.3f} ({ratio.q1:.3f}-{ratio.q3:.3f}){' worse' if bad else ''}"
            table.add_row(
                way, load.name, field, f"{before.median:.1f}", f"{after.median:.1f}", shown
            )
    return worse


def main() -> int:
    """Measure and compare; returns 1 if a row is worse than allowed."""
    args, console = parse(), Console(width=110)
    loads = [load for load in LOADS if load.group in args.only.split(",")]
    table = Table("way", "load", "figure", "other", "this", "this / other (quartiles)")
    worse = 0
    program = build_load()
    for way in args.ways.split(","):
        samples: Samples = {}
        for number in range(args.starts):
            with Workspace() as space:
                _, target = start_target(space, program)
                bench = Bench(
                    space=space, load=program, target=target, seconds=args.seconds, warmup=0.2,
                    samples=samples,
                )  # fmt: skip
                trees = [("other", args.other), ("this", HERE.parent)]
                if number % 2:
                    trees.reverse()
                ways = [start(way, space, target, tree, label) for label, tree in trees]
                run_rounds(bench, ways, loads, args.rounds, lambda _: None)
        worse += compare(samples, loads, way, table, args.allow)
    console.print(table)
    return 1 if worse else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as exc:
        sys.exit(f"turns: {exc}")
