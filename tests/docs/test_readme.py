"""The figures of README.md are those of docs/benchmarks.md, and the chart's are the run's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from doc_blocks import ROOT

README = (ROOT / "README.md").read_text("utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
RUN = ROOT / "bench" / "results" / "2026-11-18.json"


def row(text: str, label: str) -> list[str]:
    """The cells behind a label; of the first table that has it."""
    line = next((each for each in text.splitlines() if each.startswith(f"| {label} |")), "")
    assert line, f"no row {label!r}"
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def ratios(load: str, field: str) -> dict[str, str]:
    """By program, the ratio to the haproxy pair in the run with konnectivity."""
    figures: list[dict[str, Any]] = json.loads(RUN.read_text("utf-8"))["figures"]
    found = next(each for each in figures if (each["load"], each["field"]) == (load, field))
    return {name: f"{ratio:.2f}" for name, ratio in found["ratios"].items()}


def test_figures_beside_konnectivity() -> None:
    down, up = ratios("down1", "mb_per_s"), ratios("up1", "mb_per_s")
    assert row(README, "download, upload")[:3] == [
        *(f"{down[name]}, {up[name]}" for name in ("isthmus", "konnectivity")),
        "1",
    ]
    for label, load, field in (
        ("requests per second at 16 connections", "rr16", "per_s"),
        ("new tunnels per second at 8", "dial8", "per_s"),
        ("latency of one small request (p50; less is better)", "rr1", "p50_us"),
    ):
        found = ratios(load, field)
        assert row(README, label)[:3] == [found["isthmus"], found["konnectivity"], "1"], label


def test_the_table_has_the_figures_of_the_run() -> None:
    for label, load, field in (
        ("download, MB/s", "down1", "mb_per_s"),
        ("upload, MB/s", "up1", "mb_per_s"),
        ("request/response p50 at 1, µs (less is better)", "rr1", "p50_us"),
        ("request/response at 16, per second", "rr16", "per_s"),
        ("request/response at 64, per second", "rr64", "per_s"),
        ("dials at 1, per second", "dial1", "per_s"),
        ("dials at 8, per second", "dial8", "per_s"),
    ):
        cells = [cell.partition(" ")[0] for cell in row(BENCHMARKS, label)[1:]]
        assert cells == list(ratios(load, field).values()), label


def test_the_chart_is_drawn_from_the_run() -> None:
    # Written by: python bench/chart.py bench/results/2026-11-18.json > docs/pictures/benchmarks.svg
    drawn = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "chart.py"), str(RUN)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert drawn.stdout == (ROOT / "docs" / "pictures" / "benchmarks.svg").read_text("utf-8")


def test_a_chart_of_samples_has_the_median_of_paired_ratios() -> None:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from chart import Chart, draw
    finally:
        sys.path.remove(str(ROOT / "bench"))
    samples = {
        "rr16": {
            "haproxy": [{"per_s": 10.0}, {"per_s": 20.0}, {"per_s": 30.0}],
            "isthmus": [{"per_s": 20.0}, {"per_s": 20.0}, {"per_s": 45.0}],
        }
    }
    figure = {"load": "rr16", "field": "per_s", "values": {"haproxy": {}, "isthmus": {}}}
    chart = Chart.of([{"figures": [figure], "samples": samples}])
    assert chart.ratios == {("rr16", "per_s"): {"isthmus": 1.5}}
    assert ">1.50</text>" in draw(chart)


def test_memory() -> None:
    pair, ours = row(BENCHMARKS, "memory per idle tunnel, kB")[:2]
    theirs = row(BENCHMARKS, "memory per idle tunnel, server and agent together")[1].strip("()")
    assert row(README, "memory of an idle tunnel")[:3] == [f"{ours} kB", theirs, f"{pair} kB"]


def test_services_in_the_kernel() -> None:
    kube_proxy, ours = re.findall(r"[0-9.]+", row(BENCHMARKS, "nftables, full sync")[1])[:2]
    cells = row(README, "Services in the kernel")
    assert f"3,000 Services in {float(ours):.1f} s (nftables)" in cells[0]
    assert cells[3] == f"{float(kube_proxy):.1f} s"
