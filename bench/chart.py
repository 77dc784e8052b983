"""Draws the benchmark as bars, in light and dark colours: python bench/chart.py FILE... > chart.svg

Each file is the output of ``make bench ARGS="--json FILE"``; bars of several files are grouped.
Bars are ratios to the haproxy pair of the same run, paired by round if the samples are available.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.diagram.page import StyleRule, document, style_sheet
from isthmus.diagram.svg import num, rect, tag, text

BASELINE = "haproxy"
#: The rows of the chart: load and field of a figure, and its label.
ROWS = (
    (("down1", "mb_per_s"), "download, bytes per second"),
    (("up1", "mb_per_s"), "upload, bytes per second"),
    (("rr16", "per_s"), "requests per second, 16 connections"),
    (("rr64", "per_s"), "requests per second, 64 connections"),
    (("dial8", "per_s"), "new tunnels per second, 8 at a time"),
)
_PROTOCOLS = (("HTTP CONNECT", ""), ("gRPC", "-grpc"))
_PROGRAMS = (("isthmus", "Isthmus", "ours"), ("konnectivity", "konnectivity (Go)", "go"))
_LOOKS: tuple[StyleRule, ...] = (
    (".ours", "fill: #0f766e", "fill: #2dd4bf"),
    (".go", "fill: #94a0b3", "fill: #7c899c"),
    (".pair", "stroke: #1f2733; stroke-width: 1.5; stroke-dasharray: 4 3", "stroke: #e6eaf0"),
)
WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 820.0, 262.0, 60.0, 12.0, 20.0


@dataclass(frozen=True, slots=True)
class Chart:
    """The data of the chart: by row and protocol, the ratio to the haproxy pair."""

    ratios: Mapping[tuple[str, str], Mapping[str, float]]
    sources: tuple[str, ...]

    @classmethod
    def of(cls, results: Sequence[Mapping[str, Any]]) -> Chart:
        """Read the ratios from results of ``make bench``."""
        found: dict[tuple[str, str], dict[str, float]] = {}
        for result in results:
            samples = result.get("samples", {})
            for figure in result["figures"]:
                row = found.setdefault((figure["load"], figure["field"]), {})
                row |= figure.get("ratios") or dict(_paired(samples, figure))
        return cls(found, tuple(str(r["about"]) for r in results if r.get("about")))


def _paired(samples: Mapping[str, Any], figure: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    taken, field = samples.get(figure["load"], {}), figure["field"]
    theirs = [sample[field] for sample in taken.get(BASELINE, ())]
    for name in figure["values"]:
        ours = [sample[field] for sample in taken.get(name, ())]
        ratios = [a / b for a, b in zip(ours, theirs, strict=False) if b > 0]
        if ratios and name != BASELINE:
            yield name, statistics.median(ratios)


def draw(chart: Chart) -> str:
    """Draw the chart as an SVG document."""
    shown = [
        (label, name + suffix, kind, protocol)
        for protocol, suffix in _PROTOCOLS
        for name, label, kind in _PROGRAMS
        if any(name + suffix in row for row in chart.ratios.values())
    ]
    most = max(ratio for key, _ in ROWS for ratio in chart.ratios.get(key, {}).values())
    scale = (WIDTH - _LEFT - _RIGHT) / max(most, 1.0)
    parts: list[str] = []
    y = 66.0
    top = y
    for protocol, _ in _PROTOCOLS:
        ways = [way for way in shown if way[3] == protocol]
        if not ways:
            continue
        parts.append(text(20, y + 12, f"by {protocol}", 14.5, "name"))
        y += 26
        for key, label in ROWS:
            row = chart.ratios.get(key, {})
            parts.append(text(_LEFT - 12, y + _BAR + 4, label, 12, "text", anchor="end"))
            for _, way, kind, _ in ways:
                if (ratio := row.get(way)) is not None:
                    parts.append(rect(kind, _LEFT, y, ratio * scale, _BAR, rx=2))
                    parts.append(text(_LEFT + ratio * scale + 6, y + 10, f"{ratio:.2f}", 11.5))
                y += _BAR + 2
            y += _GAP - 8
        y += 10
    at = num(_LEFT + scale)
    pair = tag(
        "line", "", **{"class": "pair", "x1": at, "x2": at, "y1": num(top), "y2": num(y - 12)}
    )
    return document(
        (WIDTH, y + 34),
        title="Isthmus and konnectivity beside a haproxy pair",
        about="Throughput as a ratio to a haproxy pair with TLS between, measured in one run. "
        + "; ".join(
            f"{label}, {program} by {protocol}: {chart.ratios[key][way]:.2f}"
            for key, label in ROWS
            for program, way, _, protocol in shown
            if way in chart.ratios.get(key, {})
        ),
        style=style_sheet(_LOOKS),
        pattern="",
        parts=[
            text(20, 30, "Throughput, as a ratio to a haproxy pair with TLS between", 16, "strong"),
            *_legend(),
            *parts,
            pair,
            text(20, y + 14, "Longer is better. " + "; ".join(chart.sources), 11, "faint"),
        ],
    )


def _legend() -> Iterator[str]:
    x = 20.0
    for _, label, kind in _PROGRAMS:
        yield rect(kind, x, 43, 12, 12, rx=2)
        yield text(x + 18, 53, label, 12)
        x += 40 + 7.2 * len(label)
    yield tag(
        "line", "", **{"class": "pair", "x1": num(x), "x2": num(x + 18), "y1": "49", "y2": "49"}
    )
    yield text(x + 24, 53, "haproxy pair", 12)


def main() -> None:
    """Draw the files that the command line names."""
    results = [json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:]]
    if not results:
        sys.exit("usage: python bench/chart.py FILE... > chart.svg")
    print(draw(Chart.of(results)), end="")


if __name__ == "__main__":
    main()
