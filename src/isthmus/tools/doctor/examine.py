"""Runs all looks at once, each in its own thread and with a time limit.

A look that blocks in the system, as a resolver may for half a minute, is abandoned: its thread does
not prevent the program from exiting. The findings are written as text, one line each, or as JSON.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from isthmus import __version__
from isthmus.errors import IsthmusError
from isthmus.frame.finding import GROUP_OF, CheckId, CheckState, Finding
from isthmus.frame.patient import Look, Patient

_ORDER = {check: place for place, check in enumerate(CheckId)}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an examination, and the checks it waits for."""

    done: int
    of: int
    waits_for: tuple[str, ...]


_Report = tuple[int, Finding | None]


def examine(
    patients: Sequence[Patient],
    looks: Sequence[Look],
    *,
    limit_s: float,
    told: Callable[[Progress], None] = lambda _: None,
) -> list[Finding]:
    """Run every look that concerns a patient; findings are in the order of the checks."""
    jobs = [(patient, look) for patient in patients for look in looks if look.concerns(patient)]
    reports: queue.SimpleQueue[_Report] = queue.SimpleQueue()
    for number, (patient, look) in enumerate(jobs):
        threading.Thread(
            target=_take, args=(number, patient, look, reports), daemon=True,
            name=f"doctor:{look.checks[0].value}",
        ).start()  # fmt: skip
    found, late = _collect(jobs, reports, limit_s, told)
    found += [finding for number in late for finding in _too_late(jobs[number], found, limit_s)]
    places = {id(patient): place for place, patient in enumerate(patients)}
    order = {patient.name: places[id(patient)] for patient in reversed(patients)}
    return sorted(found, key=lambda one: (order.get(one.program, -1), _ORDER[one.check]))


def _take(number: int, patient: Patient, look: Look, reports: queue.SimpleQueue[_Report]) -> None:
    try:
        for finding in look.see(patient):
            reports.put((number, replace(finding, program=patient.name)))
    except IsthmusError as error:
        reports.put((number, _broken(patient, look, CheckState.SKIPPED, f"not checked: {error}")))
    except Exception as error:  # an unexpected failure must not stop the other checks
        text = f"the check itself failed: {type(error).__name__}: {error}"
        reports.put((number, _broken(patient, look, CheckState.FAILED, text)))
    finally:
        reports.put((number, None))


def _collect(
    jobs: Sequence[tuple[Patient, Look]],
    reports: queue.SimpleQueue[_Report],
    limit_s: float,
    told: Callable[[Progress], None],
) -> tuple[list[Finding], list[int]]:
    """Collect reports until all are done or the time is over; also returns the unfinished."""
    found: list[Finding] = []
    waiting = dict.fromkeys(range(len(jobs)))
    due = time.monotonic() + limit_s
    while waiting:
        told(Progress(len(jobs) - len(waiting), len(jobs), tuple(_waited_for(jobs, waiting))))
        try:
            number, finding = reports.get(timeout=max(0.0, due - time.monotonic()))
        except queue.Empty:
            break
        if finding is None:
            del waiting[number]
        else:
            found.append(finding)
    return found, list(waiting)


def _waited_for(jobs: Sequence[tuple[Patient, Look]], waiting: Iterable[int]) -> Iterator[str]:
    return (jobs[number][1].checks[0].value for number in waiting)


def _too_late(
    job: tuple[Patient, Look], found: Sequence[Finding], limit_s: float
) -> Iterator[Finding]:
    patient, look = job
    seen = {finding.check for finding in found if finding.program == patient.name}
    for check in look.checks:
        if check not in seen:
            text = f"not finished within {limit_s:g} s"
            yield replace(
                _broken(patient, look, CheckState.FAILED, text),
                check=check,
                todo="find out what makes this host wait: its resolver, a dead network file system",
            )
            return


def _broken(patient: Patient, look: Look, state: CheckState, text: str) -> Finding:
    return Finding(
        check=look.checks[0], state=state, about=patient.program,
        done="tried to look", seen=text, program=patient.name,
    )  # fmt: skip


#: The word for each state, and its colour on a terminal.
WORDS = {
    CheckState.OK: ("ok", "green"),
    CheckState.WARNING: ("warn", "yellow"),
    CheckState.FAILED: ("FAIL", "red"),
    CheckState.SKIPPED: ("skipped", "bright_black"),
}
_WIDTH = max(len(word) for word, _ in WORDS.values())


#: In the brief form: the mark before a group without failures.
TICK = "✓"
_WELL = (CheckState.OK, CheckState.SKIPPED)


def lines(
    findings: Sequence[Finding], *, brief: bool = False, tick: str = TICK
) -> Iterator[tuple[str, str, str]]:
    """Each line as its word, the word's colour, and the rest; headings have no word.

    ``brief`` has one line with a ``tick`` for a group of checks without failures and warnings, and
    only the failures and warnings of other groups.
    """
    first = True
    for program, of_program in groupby(findings, key=lambda one: one.program):
        if program:
            yield "", "", program if first else f"\n{program}"
        first = False
        for group, of_group in groupby(of_program, key=lambda one: GROUP_OF[one.check]):
            found = list(of_group)
            if brief and all(one.state in _WELL for one in found):
                yield _group_line(group, found, tick)
                continue
            for finding in found:
                if not (brief and finding.state in _WELL):
                    word, colour = WORDS[finding.state]
                    yield word.ljust(_WIDTH), colour, _said(finding)


def _group_line(group: str, found: Sequence[Finding], tick: str) -> tuple[str, str, str]:
    counts = Counter(one.state for one in found)
    text = ", ".join(f"{counts[state]} {WORDS[state][0]}" for state in _WELL if counts[state])
    state = CheckState.OK if counts[CheckState.OK] else CheckState.SKIPPED
    word, colour = WORDS[state]
    return (tick if state is CheckState.OK else word).ljust(_WIDTH), colour, f"{group}: {text}"


def _said(finding: Finding) -> str:
    todo = f" → {finding.todo}" if finding.todo else ""
    return f"{finding.check.value}: {finding.about}: {finding.done}: {finding.seen}{todo}"


def summary(findings: Sequence[Finding]) -> str:
    """The number of findings in each state, and where to begin."""
    counts = Counter(finding.state for finding in findings)
    text = ", ".join(f"{counts[state]} {word}" for state, (word, _) in WORDS.items())
    failed = _failed(findings)
    return f"{text}; begin with {failed[0].check.value}: {failed[0].about}" if failed else text


def _failed(findings: Sequence[Finding]) -> list[Finding]:
    """The failures of all programs, causes first, since checks are in order of dependence."""
    order = {check: place for place, check in enumerate(CheckId)}
    failed = (one for one in findings if one.state is CheckState.FAILED)
    return sorted(failed, key=lambda one: order[one.check])


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """As a JSON object; ``failed`` names the checks that failed; begin with the first."""
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
