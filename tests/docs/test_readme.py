"""The figures of README.md are those of docs/benchmarks.md."""

from __future__ import annotations

import re

from doc_blocks import ROOT

README = (ROOT / "README.md").read_text("utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


def row(text: str, label: str) -> list[str]:
    """The cells behind a label; of the first table that has it."""
    line = next((each for each in text.splitlines() if each.startswith(f"| {label} |")), "")
    assert line, f"no row {label!r}"
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def ratio(label: str) -> str:
    """Isthmus against the haproxy pair, without quartiles."""
    return row(BENCHMARKS, label)[2].partition(" ")[0]


def of_go(label: str) -> str:
    """What konnectivity had, in the table of goals."""
    return row(BENCHMARKS, label)[1].strip("()")


def shown(label: str) -> tuple[str, ...]:
    """Isthmus, konnectivity, the haproxy pair and kube-proxy, as README has them."""
    return tuple(cell.partition(":")[0] for cell in row(README, label))


def test_bytes_requests_and_latency() -> None:
    bulk = shown("download and upload, against the haproxy pair")
    ours = [ratio(f"{way}, 1 connection, MB/s") for way in ("download", "upload")]
    assert bulk[:3] == (", ".join(ours), of_go("download, upload"), "1")
    requests = shown("requests per second at 16 connections, against the pair")
    at_16 = of_go("request/response at 16 connections")
    assert requests[:3] == (ratio("the same at 16, per second"), at_16, "1")
    alone = shown("time of a small request alone (p50), against the pair")
    at_1 = of_go("request/response p50 at 1 connection")
    assert alone[:3] == (ratio("64-byte request/response at 1, p50 µs"), at_1, "1")


def test_memory() -> None:
    pair, ours = row(BENCHMARKS, "memory per idle tunnel, kB")[:2]
    theirs = of_go("memory per idle tunnel, server and agent together")
    assert shown("memory of an idle tunnel")[:3] == (f"{ours} kB", theirs, f"{pair} kB")


def test_services_in_the_kernel() -> None:
    kube_proxy, ours = re.findall(r"[0-9.]+", row(BENCHMARKS, "nftables, full sync")[1])[:2]
    cells = row(README, "Services in the kernel")
    assert f"3,000 Services in {float(ours):.1f} s (nftables)" in cells[0]
    assert cells[3] == f"{float(kube_proxy):.1f} s"


def test_what_was_missed() -> None:
    label = "dials per second at 8"
    ours = next(
        line
        for line in BENCHMARKS.splitlines()
        if line.startswith(f"| {label} |") and "≥" not in line
    )
    goal, theirs = row(BENCHMARKS, label)[0].strip("≥ "), of_go(label)
    factor = float(ours.split("|")[4].split()[0])
    assert (
        f"dials per second are {factor:.1f} times the pair's, where the goal was {goal},"
        f" and konnectivity has {theirs}" in " ".join(README.split())
    )
    assert ("missed" in ours) == (factor < float(goal))
