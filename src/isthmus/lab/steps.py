"""Doing the steps of a topology in a lab that is up, and saying what was seen of each."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, assert_never

from isthmus.lab import commands
from isthmus.lab.outcome import Outcome, TrafficCount
from isthmus.lab.placeholders import fill
from isthmus.lab.processes import argv, environment
from isthmus.lab.stage import Stage, wait_ready
from isthmus.lab.topology import (
    Act,
    AgentsAre,
    Attempt,
    Deed,
    Expectation,
    Process,
    Run,
    Step,
    Traffic,
    TrafficEnds,
    Verb,
    WindowsGrow,
)
from isthmus.net.namespaces import in_namespace

_LOOK_AGAIN_S = 0.1
_SNAPSHOT_TIMEOUT_S = 2.0
_SAID_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A step that was done: what, what had to come of it, and what was seen."""

    source: str
    what: str
    through: str
    expected: str
    seen: str
    held: bool
    took_s: float = 0.0


def perform(stage: Stage, step: Step) -> Seen:
    """Do one step.

    Raises:
        ConfigError: it cannot be done: a process that does not run cannot be stopped.
        LabError: a process that was started is not ready.
        ToldToStopError: a signal came.
    """
    began = time.monotonic()
    match step:
        case Expectation():
            seen = _until(stage, step.within_s, lambda: _expect(stage, step))
        case AgentsAre():
            seen = _until(stage, step.within_s, lambda: _agents(stage, step))
        case WindowsGrow():
            seen = _until(stage, step.within_s, lambda: _windows(stage, step))
        case Run():
            seen = _until(stage, step.within_s, lambda: _run(stage, step))
        case Act():
            seen = _act(stage, step)
        case Traffic():
            seen = _begin_traffic(stage, step)
        case TrafficEnds():
            seen = _end_traffic(stage, step)
        case _:
            assert_never(step)
    return replace(seen, took_s=time.monotonic() - began)


def _until(stage: Stage, within_s: float, look: Callable[[], Seen]) -> Seen:
    """Look again and again until it holds or the time is over."""
    give_up_at = time.monotonic() + within_s
    while not (seen := look()).held and time.monotonic() < give_up_at:
        stage.wait(_LOOK_AGAIN_S)
    stage.wait(0)
    return seen


# What is tried.


def _expect(stage: Stage, step: Expectation) -> Seen:
    attempt = step.attempt
    way = stage.ways[attempt.through] if attempt.through else None
    outcome = stage.prober(attempt.source).attempt(attempt, way)
    return Seen(
        source=attempt.source,
        what=f"{attempt.verb.value} {attempt.target}",
        through=attempt.through or "direct",
        expected=_expected(step),
        seen=_said(attempt, outcome),
        held=_holds(step, outcome),
    )


def _expected(step: Expectation) -> str:
    if step.fails is not None:
        return " or ".join(word.value for word in step.fails)
    wishes = [f"“{step.answers}”"] if step.answers else []
    if step.at_least_mbit:
        wishes.append(f"≥ {step.at_least_mbit:g} Mbit/s")
    return ", ".join(wishes) or "works"


def _holds(step: Expectation, outcome: Outcome) -> bool:
    if step.fails is not None:
        return outcome.failing in step.fails
    return outcome.worked and step.answers in outcome.said and outcome.mbit >= step.at_least_mbit


def _said(attempt: Attempt, outcome: Outcome) -> str:
    if outcome.failing is not None:
        return f"{outcome.failing.value}: {_short(outcome.said)}"
    if attempt.verb in (Verb.DOWNLOAD, Verb.UPLOAD):
        return f"{outcome.mbit:.1f} Mbit/s, {outcome.bytes / 1e6:.1f} MB"
    return _short(outcome.said) or "works"


def _short(text: str) -> str:
    line = text.strip().split("\n")[0]
    return line if len(line) <= _SAID_CHARS else f"{line[: _SAID_CHARS - 1]}…"


# What programs say of themselves.


def _process(stage: Stage, name: str) -> Process:
    return next(one for one in stage.topology.processes if one.name == name)


def snapshot(stage: Stage, process: Process) -> dict[str, Any] | None:
    """Ask a program what it looks like; None when it has nothing to say."""
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


def _agents(stage: Stage, step: AgentsAre) -> Seen:
    picture = snapshot(stage, _process(stage, step.server))
    there = None if picture is None else sorted(agent["id"] for agent in picture["agents"])
    return Seen(
        source=step.server,
        what="agents",
        through="",
        expected=_list(sorted(step.agents)),
        seen="no answer" if there is None else _list(there),
        held=there == sorted(step.agents),
    )


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _windows(stage: Stage, step: WindowsGrow) -> Seen:
    picture = snapshot(stage, _process(stage, step.process))
    links = [] if picture is None else picture["links"]
    grown = sum(link["windowGrowthPeakBytes"] for link in links)
    return Seen(
        source=step.process,
        what="windows of its links",
        through="",
        expected=f"grew by ≥ {step.at_least_bytes / 1024:.0f} KiB",
        seen="no answer" if picture is None else f"grew by {grown / 1024:.0f} KiB",
        held=grown >= step.at_least_bytes,
    )


# What is done.


def _run(stage: Stage, step: Run) -> Seen:
    try:
        done = subprocess.run(
            in_namespace(stage.names.host(step.source), argv(step.command, stage.values)),
            input=fill(step.stdin, stage.values),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=step.timeout_s,
            cwd=stage.lab.directory,
            env=environment(stage.lab.token),
            start_new_session=True,
            check=False,
        )
        printed, failed = done.stdout, done.returncode != 0
        code = f"exit code {done.returncode}" if failed else ""
    except subprocess.TimeoutExpired:
        printed, failed, code = "", True, f"not done after {step.timeout_s:g} s"
    found = re.search(step.prints, printed)
    seen = _short(found.group() if found and step.prints else printed)
    wish = "fails" if step.fails else "works"
    return Seen(
        source=step.source,
        what=_short(" ".join(step.command)),
        through="",
        expected=f"{wish}, prints {step.prints}" if step.prints else wish,
        seen=": ".join(filter(None, (code, seen))) or "works",
        held=found is not None and failed == step.fails,
    )


def _act(stage: Stage, step: Act) -> Seen:
    process = _process(stage, step.process)
    if step.deed is Deed.START:
        stage.programs.start(process)
        wait_ready(stage, process)
    else:
        stage.programs.signal(process.name, step.deed)
    return Seen(
        source=process.host,
        what=f"{step.deed.value} {process.name}",
        through="",
        expected="",
        seen="done",
        held=True,
    )


def _begin_traffic(stage: Stage, step: Traffic) -> Seen:
    by_source = attrgetter("source")
    sources = []
    attempts = step.attempts
    for source, own in groupby(sorted(attempts, key=by_source), by_source):
        sources.append(source)
        stage.prober(source).start_traffic(replace(step, attempts=tuple(own)), stage.ways)
    return Seen(
        source=", ".join(sources),
        what=f"begin {step.name}: {attempts[0].verb.value} {_all(attempts, 'target')}",
        through=_all(attempts, "through") or "direct",
        expected="",
        seen=f"{step.clients * len(attempts)} clients",
        held=True,
    )


def _all(attempts: tuple[Attempt, ...], what: str) -> str:
    return ", ".join(dict.fromkeys(str(getattr(one, what)) for one in attempts))


def _end_traffic(stage: Stage, step: TrafficEnds) -> Seen:
    traffic = next(
        one for one in stage.topology.steps if isinstance(one, Traffic) and one.name == step.name
    )
    sources = sorted({attempt.source for attempt in traffic.attempts})
    count = _sum([stage.prober(source).end_traffic(step.name) for source in sources])
    most = step.at_most_failed
    failed = f"{count.failures} failed{_reasons(count.failed)}"
    return Seen(
        source=", ".join(sources),
        what=f"end {step.name}",
        through="",
        expected="some worked" + ("" if most is None else f", ≤ {most} failed"),
        seen=f"{count.worked} worked, {failed}, slowest {count.slowest_s * 1000:.0f} ms",
        held=count.worked > 0 and (most is None or count.failures <= most),
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
