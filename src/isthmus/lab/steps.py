"""Performs the steps of a topology in a running lab, and reports the result of each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, assert_never

from isthmus.lab import commands, fabric
from isthmus.lab.commands import fill
from isthmus.lab.namespaces import in_namespace
from isthmus.lab.plan import WALL
from isthmus.lab.probe_messages import AttemptOutcome, TrafficCount
from isthmus.lab.processes import argv, for_people, on_host
from isthmus.lab.stage import LabStage, wait_ready
from isthmus.lab.topology import (
    AgentsAre,
    Cable,
    Deed,
    Expectation,
    LabAttempt,
    LabStep,
    Process,
    ProcessAction,
    Run,
    Topology,
    Traffic,
    TrafficEnds,
    Verb,
    WindowsGrow,
)
from isthmus.text.units import size, took

_LOOK_AGAIN_S = 0.1
_SNAPSHOT_TIMEOUT_S = 2.0
_SAID_CHARS = 100
_LOOK_AT_CHILD_S = 0.02
_MAX_OUTPUT_BYTES = 1_000_000

Verdict = tuple[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A step: what is done, what is expected, and what was observed."""

    source: str
    what: str
    through: str
    expected: str
    seen: str = "not done"
    held: bool = False
    took_s: float = 0.0


def perform(stage: LabStage, step: LabStep) -> StepResult:
    """Perform one step.

    Raises:
        ConfigError: the step is impossible, such as stopping a process that is not running.
        LabError: a started process is not ready.
        ToldToStopError: a signal arrived.
    """
    began = time.monotonic()
    match step:
        case Expectation():
            seen, held = _until(stage, step.within_s, lambda: _expect(stage, step))
        case AgentsAre():
            seen, held = _until(stage, step.within_s, lambda: _agents(stage, step))
        case WindowsGrow():
            seen, held = _until(stage, step.within_s, lambda: _windows(stage, step))
        case Run():
            seen, held = _until(stage, step.within_s, lambda: _run(stage, step))
        case ProcessAction():
            seen, held = _act(stage, step)
        case Cable():
            fabric.set_cables(stage.names, step)
            seen, held = "done", True
        case Traffic():
            seen, held = _begin_traffic(stage, step)
        case TrafficEnds():
            seen, held = _end_traffic(stage, step)
        case _:
            assert_never(step)
    took_s = time.monotonic() - began
    return replace(describe(stage.topology, step), seen=seen, held=held, took_s=took_s)


def _until(stage: LabStage, within_s: float, look: Callable[[], Verdict]) -> Verdict:
    """Repeat a check until it holds or the time is over."""
    give_up_at = time.monotonic() + within_s
    while not (verdict := look())[1] and time.monotonic() < give_up_at:
        stage.wait(_LOOK_AGAIN_S)
    stage.wait(0)
    return verdict


# Descriptions.


def describe(topology: Topology, step: LabStep) -> StepResult:
    """Describe a step and its expectation, before it is performed."""
    match step:
        case Expectation(attempt=attempt):
            return _seen(
                attempt.source,
                f"{attempt.verb.value} {attempt.target}",
                _expected(step),
                through=attempt.through or "direct",
            )
        case AgentsAre():
            return _seen(step.server, "agents", _list(sorted(step.agents)))
        case WindowsGrow():
            expected = f"grew by ≥ {size(step.at_least_bytes)}"
            return _seen(step.process, "windows of its links", expected)
        case Run():
            wish = "fails" if step.fails else "works"
            expected = f"{wish}, prints {step.prints}" if step.prints else wish
            return _seen(step.source, _short(" ".join(step.command)), expected)
        case ProcessAction():
            host = process_named(topology, step.process).host
            return _seen(host, f"{step.deed.value} {step.process}", "")
        case Cable():
            return _seen(step.host, f"{step.deed} {', '.join(step.networks)}", "")
        case Traffic(attempts=attempts):
            what = f"begin {step.name}: {attempts[0].verb.value} {_all(attempts, 'target')}"
            through = _all(attempts, "through") or "direct"
            return _seen(", ".join(_sources(step)), what, "", through=through)
        case TrafficEnds(at_most_failed=most):
            expected = "some worked" + ("" if most is None else f", ≤ {most} failed")
            sources = _sources(traffic_named(topology, step.name))
            return _seen(", ".join(sources), f"end {step.name}", expected)
        case _:
            assert_never(step)


def _seen(source: str, what: str, expected: str, *, through: str = "") -> StepResult:
    return StepResult(source=source, what=what, through=through, expected=expected)


def _expected(step: Expectation) -> str:
    if step.fails is not None:
        return " or ".join(word.value for word in step.fails)
    wishes = [f"“{step.answers}”"] if step.answers else []
    if step.at_least_mbit:
        wishes.append(f"≥ {step.at_least_mbit:g} Mbit/s")
    return ", ".join(wishes) or "works"


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _all(attempts: tuple[LabAttempt, ...], what: str) -> str:
    return ", ".join(dict.fromkeys(str(getattr(one, what)) for one in attempts))


def _sources(traffic: Traffic) -> list[str]:
    return sorted({attempt.source for attempt in traffic.attempts})


def process_named(topology: Topology, name: str) -> Process:
    return next(one for one in topology.processes if one.name == name)


def traffic_named(topology: Topology, name: str) -> Traffic:
    found = (one for one in topology.steps if isinstance(one, Traffic))
    return next(one for one in found if one.name == name)


# Attempts.


def _expect(stage: LabStage, step: Expectation) -> Verdict:
    attempt = step.attempt
    way = stage.ways[attempt.through] if attempt.through else None
    prober = stage.prober(attempt.source)
    outcome = stage.during(lambda: prober.attempt(attempt, way))
    return _said(attempt, outcome), _holds(step, outcome)


def _holds(step: Expectation, outcome: AttemptOutcome) -> bool:
    if step.fails is not None:
        return outcome.failing in step.fails
    return outcome.worked and step.answers in outcome.said and outcome.mbit >= step.at_least_mbit


def _said(attempt: LabAttempt, outcome: AttemptOutcome) -> str:
    if outcome.failing is not None:
        return f"{outcome.failing.value}: {_short(outcome.said)}"
    if attempt.verb in (Verb.DOWNLOAD, Verb.UPLOAD):
        return f"{outcome.mbit:.1f} Mbit/s, {size(outcome.bytes)}"
    return _short(outcome.said) or "works"


def _short(text: str) -> str:
    line = text.strip().split("\n")[0]
    return line if len(line) <= _SAID_CHARS else f"{line[: _SAID_CHARS - 1]}…"


# Questions to programs.


def snapshot(stage: LabStage, process: Process) -> dict[str, Any] | None:
    """The snapshot of a program; None if it does not answer."""
    url = fill(commands.admin_url(process.command), stage.values)
    if not url:
        return None
    try:
        status, body = stage.prober(process.host).fetch(
            f"{url}/snapshot", timeout_s=_SNAPSHOT_TIMEOUT_S
        )
        picture = json.loads(body) if status == 200 else None
    except (OSError, ValueError):
        return None
    return picture if isinstance(picture, dict) else None


def _agents(stage: LabStage, step: AgentsAre) -> Verdict:
    picture = snapshot(stage, process_named(stage.topology, step.server))
    if picture is None:
        return "no answer", False
    there = sorted(agent["id"] for agent in picture["agents"])
    return _list(there), there == sorted(step.agents)


def _windows(stage: LabStage, step: WindowsGrow) -> Verdict:
    picture = snapshot(stage, process_named(stage.topology, step.process))
    if picture is None:
        return "no answer", False
    grown = sum(link["windowGrowthPeakBytes"] for link in picture["links"])
    return f"grew by {size(grown)}", grown >= step.at_least_bytes


# Actions.


def _run(stage: LabStage, step: Run) -> Verdict:
    printed, code = _output(stage, step)
    found = re.search(step.prints, printed)
    said = _short(found.group() if found and step.prints else printed)
    failed = code != 0
    why = f"not finished after {step.timeout_s:g} s" if code is None else f"exit code {code}"
    seen = ": ".join(filter(None, (why if failed else "", said))) or "works"
    return seen, found is not None and failed == step.fails


def _output(stage: LabStage, step: Run) -> tuple[str, int | None]:
    """Run a command: its output, and its exit code, None if it was killed.

    Raises:
        ToldToStopError: a signal arrived; the command is killed first.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
        stdin.write(fill(step.stdin, stage.values).encode())
        stdin.seek(0)
        child = subprocess.Popen(
            _where(stage, step.source, argv(step.command, stage.values)),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=stage.lab.directory,
            env=for_people(stage.lab, stage.topology),
            start_new_session=True,
        )
        give_up_at = time.monotonic() + step.timeout_s
        try:
            while child.poll() is None and time.monotonic() < give_up_at:
                stage.wait(_LOOK_AT_CHILD_S)
        finally:
            code = child.poll()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # including its children
            child.wait()
        output.seek(0)
        return output.read(_MAX_OUTPUT_BYTES).decode(errors="replace"), code


def _where(stage: LabStage, host: str, command: list[str]) -> list[str]:
    if host == WALL:
        return in_namespace(stage.names.wall, command)
    return on_host(stage.lab, host, command)


def _act(stage: LabStage, step: ProcessAction) -> Verdict:
    process = process_named(stage.topology, step.process)
    if step.deed is Deed.START:
        stage.programs.start(process)
        wait_ready(stage, process)
    else:
        stage.programs.signal(process.name, step.deed)
    return "done", True


def _begin_traffic(stage: LabStage, step: Traffic) -> Verdict:
    by_source = attrgetter("source")
    for source, own in groupby(sorted(step.attempts, key=by_source), by_source):
        stage.prober(source).start_traffic(replace(step, attempts=tuple(own)), stage.ways)
    return f"{step.clients * len(step.attempts)} clients", True


def _end_traffic(stage: LabStage, step: TrafficEnds) -> Verdict:
    probers = [stage.prober(one) for one in _sources(traffic_named(stage.topology, step.name))]
    counts = stage.during(lambda: [prober.end_traffic(step.name) for prober in probers])
    count = _sum(counts)
    most = step.at_most_failed
    failed = f"{count.failures} failed{_reasons(count.failed)}"
    return (
        f"{count.worked} worked, {failed}, slowest {took(count.slowest_s)}",
        count.worked > 0 and (most is None or count.failures <= most),
    )


def _sum(counts: list[TrafficCount]) -> TrafficCount:
    failed: Counter[str] = Counter()
    for count in counts:
        failed.update(count.failed)
    return TrafficCount(
        worked=sum(count.worked for count in counts),
        failed=failed,
        slowest_s=max(count.slowest_s for count in counts),
    )


def _reasons(failed: Mapping[str, int]) -> str:
    if not failed:
        return ""
    return f" ({'; '.join(f'{count} × {_short(why)}' for why, count in failed.items())})"
