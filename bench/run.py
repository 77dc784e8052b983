"""``make bench``: direct, a haproxy pair and Isthmus measured in one run, interleaved.

docs/benchmarks.md describes the measurements and how to read them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import curl
from certs import Certs, make_certs
from curl import CONNECT_TLS, SOCKS5, CurlWays
from figures import (
    ALL_GROUPS,
    CURL,
    CURL_FIGURES,
    ETCD,
    FIGURES,
    FORWARD_FIGURES,
    FORWARD_LOADS,
    GROUPS,
    GRPC_FIGURES,
    GRPC_LINK_FIGURES,
    GRPC_LINK_LOADS,
    GRPC_LOADS,
    LOADS,
    SERVICES,
    SLOW_READER,
    Figure,
    Load,
)
from machine import busy_share, machine
from measure import (
    Bench,
    build_load,
    run_hold,
    run_memory,
    run_rounds,
    run_slow_reader,
    start_target,
)
from processes import BenchError, Child, Workspace
from report import Row, as_json, draw, rows
from rich.console import Console
from topologies import (
    Commands,
    Shape,
    Topology,
    check_haproxy,
    start_apiserver_proxy,
    start_direct,
    start_haproxy,
    start_haproxy_tcp,
    start_stub,
    start_tunnel,
)

Start = Callable[[str], Topology]
PROXIES_WITH_A_LINK = ("haproxy", "isthmus", "isthmus-grpc")
# The gRPC frontend with konnectivity-client; a gRPC link behind the CONNECT frontend.
GRPC, GRPC_LINK = "isthmus-grpc", "isthmus-grpclink"
# Plain forwarding: the proxy on nodes, and one haproxy.
APISERVER_PROXY, HAPROXY_TCP = "apiserver-proxy", "haproxy-tcp"
FORWARDING = (HAPROXY_TCP, APISERVER_PROXY)
# curl with the server itself, and with the sidecar in front of it.
BY_CURL = (CONNECT_TLS, SOCKS5)
NAMES = ("direct", "haproxy", "isthmus", GRPC, GRPC_LINK, *FORWARDING, *BY_CURL)
_MIN_COLUMNS = 150
SLOW_S, QUICK_SLOW_S = 60.0, 10.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; argparse ends the program on an error."""
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=7, help="paired rounds (default 7)")
    add("--seconds", type=float, default=1.5, help="length of one measurement (default 1.5)")
    add("--memory-rounds", type=int, default=3, help="fresh starts for memory (default 3)")
    add("--quick", action="store_true", help="3 rounds of 0.7 s, memory once: for development")
    add("--only", type=_groups, default=GROUPS, help=f"some of {','.join(ALL_GROUPS)}")
    add("--topologies", type=_names, default=NAMES)
    add("--hold", type=int, default=10_000, help="idle tunnels to hold (default 10000)")
    add("--json", type=Path, metavar="FILE", help="write every sample there as well")
    add("--check", action="store_true", help="exit with 1 if a goal is missed")
    add("--require-haproxy", action="store_true", help="fail if haproxy is not installed")
    add("--server-cmd", default="", help="another server; konnectivity's flags are appended")
    add("--agent-cmd", default="", help="another agent; konnectivity's flags are appended")
    add("--label", default="isthmus", help="what to call the server and agent in the table")
    add("--profile", type=Path, metavar="DIR", help="profile server and agent; figures suffer")
    add("--profiler", choices=("auto", "py-spy", "cprofile"), default="auto")
    args = parser.parse_args(arguments)
    if args.quick:
        args.rounds, args.seconds, args.memory_rounds = 3, 0.7, 1
    if min(args.rounds, args.memory_rounds, args.hold) < 1 or not 0 < args.seconds <= 60:
        parser.error("rounds and tunnels are at least 1, seconds at most 60")
    if bool(args.server_cmd) != bool(args.agent_cmd):
        parser.error("--server-cmd and --agent-cmd go together")
    args.profiler = _profiler(args) if args.profile else ""
    return args


def _profiler(args: argparse.Namespace) -> str:
    """py-spy if available: it disturbs less, and sees C code; otherwise Python's profiler."""
    if args.profiler != "auto":
        return str(args.profiler)
    return "py-spy" if shutil.which("py-spy") or args.server_cmd else "cprofile"


def _groups(text: str) -> tuple[str, ...]:
    return _some_of(text, ALL_GROUPS)


def _names(text: str) -> tuple[str, ...]:
    return _some_of(text, (*NAMES, "stub"))


def _some_of(text: str, known: Sequence[str]) -> tuple[str, ...]:
    chosen = tuple(filter(None, text.split(",")))
    if not chosen or set(chosen) - set(known):
        raise argparse.ArgumentTypeError(f"choose from {','.join(known)}")
    return chosen


def starters(
    args: argparse.Namespace, space: Workspace, load: Path, certs: Certs
) -> dict[str, Start]:
    """Functions that start each topology for a target's address, by name."""
    if args.profile:
        args.profile.mkdir(parents=True, exist_ok=True)
        space.stop_grace_s = 30.0  # a profile is written at the end
    commands = Commands(
        server=args.server_cmd,
        agent=args.agent_cmd,
        profiler=args.profiler,
        profile_dir=(args.profile or Path()).resolve(),
    )
    by_curl = CurlWays(space, certs, commands)
    known: dict[str, Start] = {
        "direct": partial(start_direct, space),
        "haproxy": partial(start_haproxy, space, certs),
        "isthmus": lambda target: start_tunnel(space, certs, commands, args.label),
        GRPC: lambda target: start_tunnel(
            space, certs, commands, shown_name(args, GRPC), grpc_frontend()
        ),
        GRPC_LINK: lambda target: start_tunnel(
            space,
            certs,
            commands,
            shown_name(args, GRPC_LINK),
            Shape(agent_flags=("--link=grpc",), only=GRPC_LINK_LOADS),
        ),
        "stub": partial(start_stub, space, load),
        HAPROXY_TCP: partial(start_haproxy_tcp, space, FORWARD_LOADS),
        APISERVER_PROXY: partial(start_apiserver_proxy, space, commands, FORWARD_LOADS),
        CONNECT_TLS: by_curl.start_connect,
        SOCKS5: by_curl.start_socks5,
    }
    return {name: known[name] for name in args.topologies}


def grpc_frontend() -> Shape:
    """kube-apiserver's client in front of the server, built on first use."""
    load = build_load("konnload", ".")
    return Shape(mode="grpc", via="grpc", load=load, only=GRPC_LOADS)


def shown_name(args: argparse.Namespace, name: str) -> str:
    """The name of a topology in tables."""
    return str(args.label) + name.removeprefix("isthmus") if name.startswith("isthmus") else name


def tables(args: argparse.Namespace, bench: Bench, console: Console) -> list[Row]:
    """Draw a table for each path through a tunnel; returns all rows."""
    chosen = args.topologies
    apart = (GRPC, GRPC_LINK, *FORWARDING, *BY_CURL)
    subject = "isthmus" if "isthmus" in chosen else chosen[-1]
    wanted: list[tuple[str, str, tuple[Figure, ...], tuple[str, ...]]] = []
    if subject not in apart:
        usual = tuple(name for name in chosen if name not in apart)
        wanted.append((subject, "haproxy", FIGURES, usual))
    if GRPC in chosen:
        wanted.append((GRPC, "haproxy", GRPC_FIGURES, ("haproxy", GRPC)))
    if GRPC_LINK in chosen:
        wanted.append((GRPC_LINK, args.label, GRPC_LINK_FIGURES, ("isthmus", GRPC_LINK)))
    if APISERVER_PROXY in chosen:
        wanted.append((APISERVER_PROXY, HAPROXY_TCP, FORWARD_FIGURES, ("direct", *FORWARDING)))
    if SOCKS5 in chosen:
        wanted.append((SOCKS5, CONNECT_TLS, CURL_FIGURES, BY_CURL))
    every = []
    for name, baseline, figures, columns in wanted:
        shown = shown_name(args, name)
        judge = name.startswith("isthmus") or name in (APISERVER_PROXY, SOCKS5)
        found = rows(bench.samples, shown, judge=judge, baseline=baseline, figures=figures)
        if not found:
            continue
        present = [shown_name(args, c) for c in columns if c in chosen]
        draw(found, present, shown, console, baseline=baseline)
        every += found
    return every


def attach_py_spy(space: Workspace, topology: Topology, directory: Path) -> list[Child]:
    """Sample server and agent from outside until they end."""
    return [
        space.start(
            f"py-spy-{child.name}",
            ["py-spy", "record", "-o", str(directory / f"{child.name}.svg"), "-p", str(child.pid)],
        )
        for child in topology.processes
    ]


def leave_out_missing(args: argparse.Namespace, console: Console) -> None:
    """Leave out what needs missing programs, with a message.

    Raises:
        BenchError: haproxy is required, or nothing remains.
    """
    chosen = args.topologies
    if {"haproxy", HAPROXY_TCP} & set(chosen) and shutil.which("haproxy") is None:
        hint = "haproxy is not installed (Debian: apt-get install haproxy)"
        if args.require_haproxy:
            raise BenchError(hint)
        console.print(f"{hint}: measuring without it, so there are no ratios")
        chosen = tuple(name for name in chosen if not name.startswith("haproxy"))
    if set(BY_CURL) & set(chosen) and curl.is_missing():
        console.print("curl is not installed: measuring without the SOCKS5 sidecar")
        chosen = tuple(name for name in chosen if name not in BY_CURL)
    if not chosen:
        raise BenchError("nothing left to measure")
    args.topologies = chosen


def run(args: argparse.Namespace, space: Workspace, console: Console) -> int:
    """The whole benchmark; returns the exit code."""
    leave_out_missing(args, console)
    begun = time.monotonic()
    load = build_load()
    busy = busy_share(0.5)
    if busy > 0.1:
        console.print(f"other programs use {busy:.0%} of this machine: expect wide quartiles")
    certs = make_certs(space.path("pki"))
    _, target = start_target(space, load)
    if "haproxy" in args.topologies:
        check_haproxy(space, certs, target)
    bench = Bench(space=space, load=load, target=target, seconds=args.seconds, warmup=0.3)
    start = starters(args, space, load, certs)
    with console.status("starting") as status:
        measure(args, bench, start, lambda text: status.update(text))
    found = tables(args, bench, console)
    if SERVICES in args.only:
        from services import services_table  # needs the interop tests' programs, and root

        found += services_table(bench.samples, console, rounds=args.rounds, quick=args.quick)
    if ETCD in args.only:
        from etcd import etcd_table  # needs the interop tests' etcd

        found += etcd_table(bench, certs, start, console, rounds=args.rounds)
    took = time.monotonic() - begun
    console.print(f"{args.rounds} rounds of {args.seconds:g} s, {took:.0f} s in all; {machine()}")
    if args.json:
        about = {"rounds": args.rounds, "seconds": args.seconds, "machine": machine()}
        args.json.write_text(json.dumps(about | as_json(found, bench.samples), indent=1) + "\n")
    missed = [row.figure.title for row in found if row.reached is False]
    if missed:
        console.print(f"goals missed: {'; '.join(missed)}")
    return 1 if missed and args.check else 0


def takes_part(name: str, loads: Sequence[Load]) -> bool:
    """Whether a topology is part of a measurement: curl has its own."""
    return any((name in BY_CURL) == (load.group == CURL) for load in loads)


def measure(
    args: argparse.Namespace, bench: Bench, start: dict[str, Start], say: Callable[[str], None]
) -> None:
    """Run the chosen groups: rounds on long-lived processes, memory on fresh ones."""
    loads = [load for load in LOADS if load.group in args.only]
    if loads:
        running = [begin(bench.target) for name, begin in start.items() if takes_part(name, loads)]
        watched = [
            child
            for topology in running
            if topology.name.startswith(args.label) and args.profiler == "py-spy"
            for child in attach_py_spy(bench.space, topology, args.profile)
        ]
        run_rounds(bench, running, loads, args.rounds, say)
        for topology in running:
            topology.stop(bench.space)
        for child in watched:
            child.wait(30)  # it writes its picture when the watched program has ended
    if "mem" in args.only:
        for number in range(args.memory_rounds):
            for name in filter(start.__contains__, PROXIES_WITH_A_LINK):
                say(f"memory {number + 1} of {args.memory_rounds}: {name}")
                run_memory(bench, start[name])
    if "hold" in args.only and "isthmus" in start:
        say(f"holding {args.hold} tunnels")
        run_hold(bench, start["isthmus"], tunnels=args.hold)
    # Another implementation uses gRPC by default.
    by_grpc = "isthmus" if args.server_cmd else GRPC_LINK
    if SLOW_READER in args.only and by_grpc in start:
        say(f"a slow reader: {by_grpc}")
        run_slow_reader(bench, start[by_grpc], seconds=QUICK_SLOW_S if args.quick else SLOW_S)


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run, and clean up however the run ends."""
    args = parse(sys.argv[1:])
    console = Console()
    if console.width < _MIN_COLUMNS and not console.is_terminal:
        console = Console(width=_MIN_COLUMNS)
    for number in (signal.SIGINT, signal.SIGTERM):  # a background job starts with SIGINT ignored
        signal.signal(number, _interrupted)
    try:
        with Workspace() as space:
            return run(args, space, console)
    except BenchError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
