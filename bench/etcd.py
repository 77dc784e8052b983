"""etcd by each path: puts, gets and watches of etcd's own client, with TLS from client to etcd.

KEP-1281 promises to scale test the cost of the extra hop for etcd. The load is ``bench/etcdload``;
etcd is the one of ``make interop`` (tests/interop/kube/etcd).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from certs import Certs
from figures import ETCD, Figure, Load
from measure import Bench, build_load, run_rounds
from processes import BenchError, Child, Workspace
from report import Row, draw, rows
from rich.console import Console
from topologies import Topology, http_answers, wait_until

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "interop"))

# After the change of sys.path above.
from kube.build import NotBuiltError, build_etcd

SUBJECT = "isthmus"
#: What the tunnel is compared with, a table each.
BASELINES = ("direct", "haproxy")
COMMANDS = ("get", "put", "watch")
CLIENTS = (1, 16, 64)
SIZES = (1_000, 100_000)
ETCD_LOADS = tuple(
    Load(group=ETCD, command=command, conns=count, size=size)
    for size in SIZES
    for command in COMMANDS
    for count in CLIENTS
)
_FIELDS = (("per_s", "", "/s"), ("p50_us", "p50", "µs"), ("p99_us", "p99", "µs"),
           ("cpu_us_each", "CPU each", "µs"))  # fmt: skip


def _figures(load: Load) -> list[Figure]:
    who = "watcher" if load.command == "watch" else "client"
    title = f"{load.command}, {load.conns} {who}{'s'[: load.conns > 1]}, {load.size // 1000} kB"
    return [
        Figure(load=load.name, field=field, title=f"{title} {what}".rstrip(), unit=unit)
        for field, what, unit in _FIELDS
    ]


ETCD_FIGURES = tuple(figure for load in ETCD_LOADS for figure in _figures(load))


def etcd_table(
    bench: Bench,
    certs: Certs,
    start: Mapping[str, Callable[[str], Topology]],
    console: Console,
    *,
    rounds: int,
) -> list[Row]:
    """Measure and draw; without etcd, print the reason."""
    try:
        program = build_etcd(lambda text: console.print(f"etcd: {text}"))
    except NotBuiltError as exc:
        console.print(f"etcd left out: {exc}")
        return []
    space = bench.space
    etcd, address = start_etcd(space, program, certs)
    measured = replace(
        bench,
        load=build_load("etcdload", "."),
        target=address,
        flags=(f"--ca={certs.ca}", f"--cert={certs.client_cert}", f"--key={certs.client_key}"),
    )
    running = [start[name](address) for name in (*BASELINES, SUBJECT) if name in start]
    before = os.getloadavg()
    with console.status("etcd") as status:
        run_rounds(measured, running, ETCD_LOADS, rounds, lambda text: status.update(text))
    console.print(
        "etcd: load average of the last minute"
        f" {before[0]:.1f} before and {os.getloadavg()[0]:.1f} after, this load included"
    )
    for child in (*(child for topology in running for child in topology.processes), etcd):
        space.stop(child)
    return _tables(measured, [topology.name for topology in running], console)


def _tables(bench: Bench, names: list[str], console: Console) -> list[Row]:
    subject = names[-1]
    every = []
    for baseline in BASELINES:
        if baseline in names and baseline != subject:
            found = rows(
                bench.samples, subject, judge=False, baseline=baseline, figures=ETCD_FIGURES
            )
            draw(found, names, subject, console, baseline=baseline)
            every += found
    return every


def start_etcd(space: Workspace, program: Path, certs: Certs) -> tuple[Child, str]:
    """Start etcd with mutual TLS for clients; returns the process and its address.

    It does not wait for the disk (``--unsafe-no-fsync``), which would hide what is measured, and
    keeps few old entries in memory, because values of 100 kB add up.
    """
    client, peer, metrics = (space.free_port() for _ in range(3))
    url, peer_url = f"https://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    argv = [
        str(program), f"--data-dir={space.path('etcd')}", "--unsafe-no-fsync", "--log-level=error",
        "--enable-grpc-gateway=false", f"--listen-metrics-urls=http://127.0.0.1:{metrics}",
        f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}", "--client-cert-auth",
        f"--cert-file={certs.server_cert}", f"--key-file={certs.server_key}",
        f"--trusted-ca-file={certs.ca}", "--quota-backend-bytes=8589934592",
        "--snapshot-count=1000", "--snapshot-catchup-entries=100",
    ]  # fmt: skip
    etcd = space.start("etcd", argv)
    try:
        wait_until(lambda: http_answers(metrics, "/health"), (etcd,), "etcd's health")
    except BenchError as exc:
        raise BenchError(f"etcd: {exc}") from exc
    return etcd, f"127.0.0.1:{client}"
