"""The findings as text for a terminal, one line each, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from isthmus import __version__
from isthmus.tools.bootstrap.rules import CheckState
from isthmus.tools.doctor.finding import Check, Finding

#: What people read, and its colour on a terminal.
WORDS = {
    CheckState.OK: ("ok", "green"),
    CheckState.WARNING: ("warn", "yellow"),
    CheckState.FAILED: ("FAIL", "red"),
    CheckState.SKIPPED: ("skipped", "bright_black"),
}
_WIDTH = max(len(word) for word, _ in WORDS.values())


def lines(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    """Each line as its word, the colour of it, and the rest; headings have no word."""
    program = ""
    for place, finding in enumerate(findings):
        if finding.program != program:
            program = finding.program
            yield "", "", f"\n{program}" if place else program
        word, colour = WORDS[finding.state]
        yield word.ljust(_WIDTH), colour, _said(finding)


def _said(finding: Finding) -> str:
    todo = f" → {finding.todo}" if finding.todo else ""
    return f"{finding.check.value}: {finding.about}: {finding.done}: {finding.seen}{todo}"


def summary(findings: Sequence[Finding]) -> str:
    """How many came out how, and where to begin."""
    counts = Counter(finding.state for finding in findings)
    text = ", ".join(f"{counts[state]} {word}" for state, (word, _) in WORDS.items())
    failed = _failed(findings)
    return f"{text}; begin with {failed[0].check.value}: {failed[0].about}" if failed else text


def _failed(findings: Sequence[Finding]) -> list[Finding]:
    """What failed, of whichever program: what others stand on first, as checks are in order."""
    order = {check: place for place, check in enumerate(Check)}
    failed = (one for one in findings if one.state is CheckState.FAILED)
    return sorted(failed, key=lambda one: order[one.check])


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """As JSON takes it; ``failed`` names the checks that failed, the first is where to begin."""
    failed = [one.check.value for one in _failed(findings)]
    counts = Counter(finding.state.value for finding in findings)
    return {
        "kind": "DoctorReport",
        "version": __version__,
        "ok": not failed,
        "failed": list(dict.fromkeys(failed)),
        "counts": {state.value: counts[state.value] for state in CheckState},
        "findings": [finding.to_json() for finding in findings],
    }
