"""Results of ginkgo: read from junit files, compared, and written as a table."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_MOST_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecResult:
    """What became of one test, and why it did not pass."""

    name: str
    status: str
    why: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A selection that was run against a variant."""

    selection: str
    variant: str
    direct: bool
    results: Mapping[str, SpecResult]
    took_s: float

    def of(self, status: str) -> list[SpecResult]:
        return [one for one in self.results.values() if one.status == status]


def read(path: Path) -> dict[str, SpecResult]:
    """Read a junit file; tests that were not selected are left out.

    Raises:
        OSError, ElementTree.ParseError: there is none, or it is not whole.
    """
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        kind, _, name = case.get("name", "").partition(" ")
        result = _result(case, name) if kind == "[It]" else None
        if result is not None:
            found[name] = result
    return found


def _result(case: ElementTree.Element, name: str) -> SpecResult | None:
    took_s = float(case.get("time", "0"))
    failure = case.find("failure")
    if failure is None:
        failure = case.find("error")
    if failure is not None:
        return SpecResult(name=name, status=FAILED, why=_short(failure), took_s=took_s)
    skipped = case.find("skipped")
    if skipped is None:
        return SpecResult(name=name, status=PASSED, took_s=took_s)
    why = _short(skipped)
    return None if why in ("", SKIPPED) else SpecResult(name=name, status=SKIPPED, why=why)


def _short(element: ElementTree.Element) -> str:
    said = element.get("message") or element.text or ""
    line = " ".join(said.removeprefix("skipped - ").split())
    return line[:_MOST_CHARS]


def ours(rounds: Sequence[Round]) -> list[tuple[Round, SpecResult]]:
    """The failures that the control run does not have."""
    control: dict[str, str] = {}
    for one in rounds:
        if one.direct:
            control |= {name: result.status for name, result in one.results.items()}
    return [
        (one, failed)
        for one in rounds
        if not one.direct
        for failed in one.of(FAILED)
        if control.get(failed.name, PASSED) != FAILED
    ]


def markdown(rounds: Sequence[Round], version: str) -> str:
    """The report, as a part of a page."""
    lines = [
        f"Kubernetes {version}, its own `e2e.test`:",
        "",
        "| selection | cluster | passed | failed | skipped | took |",
        "|---|---|---|---|---|---|",
    ]
    for one in rounds:
        counts = Counter(result.status for result in one.results.values())
        figures = " | ".join(str(counts[status]) for status in (PASSED, FAILED, SKIPPED))
        lines.append(f"| {one.selection} | {one.variant} | {figures} | {one.took_s:.0f} s |")
    lines.append("")
    found = ours(rounds)
    if not found:
        lines.append("No test failed that passes in the control run.")
    for where, failed in found:
        lines.append(f"- **{where.variant}**: {failed.name}: {failed.why}")
    control = [(one, failed) for one in rounds if one.direct for failed in one.of(FAILED)]
    if control:
        lines += [
            "",
            "Failed in the control run:",
            "",
        ]
        lines += [f"- {failed.name}: {failed.why}" for _, failed in control]
    return "\n".join(lines) + "\n"
