"""The report of ``isthmus status`` about a program, from its snapshot, readiness and history.

Pure: takes the answers and the time; command_status.py queries and prints.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from isthmus.frame.cli.tables import counted
from isthmus.net.rules_expiry import Standing, standing
from isthmus.text.units import age
from isthmus.tools.watching.looking import items, number, text

STEPS_SHOWN = 30  # five minutes, in steps of ten seconds
RATE_STEPS = 3
_FAILED = re.compile(r"\[-\](?P<name>\S+) failed: (?P<why>.*)")
_CHECK = re.compile(r"\[[+-]\]\S+ .*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The answers of a program; None for those that it did not give."""

    address: str
    program: str
    id: str
    snapshot: dict[str, Any]
    ready_status: int | None = None
    ready_text: str = ""
    history: dict[str, Any] | None = None
    configuration: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate in use, and the days until it expires; below 0 it has expired."""

    file: str
    not_after: str
    days_left: int
    standing: Standing = Standing.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The last five minutes, one number per step for bars; rates are bytes per second."""

    seconds: float
    dials: int
    failures: dict[str, int]
    rate_to_target: float
    rate_to_client: float
    dial_steps: tuple[int, ...]
    byte_steps: tuple[int, ...]

    @property
    def failed(self) -> int:
        """The number of failed dials."""
        return sum(self.failures.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """The memory budget, and the peers that hold most of it, with the bytes of each."""

    used_bytes: int
    budget_bytes: int
    peers: int
    largest: tuple[tuple[str, int], ...]

    @property
    def used_up(self) -> bool:
        """Whether the budget is used up."""
        return self.used_bytes >= self.budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A program on one screen. ``ready`` is None if unknown; missing counts are None."""

    address: str
    program: str
    id: str
    version: str
    started_at: str
    uptime_s: float
    ready: bool | None
    not_ready: tuple[str, ...]
    checks: tuple[str, ...]
    draining: bool
    agents: int | None
    links: int | None
    tunnels: int
    dials: int
    dials_failed: int
    recent: Recent | None
    memory: BudgetUse | None
    stalled: tuple[tuple[str, str, str], ...]
    certificates: tuple[Certificate, ...]
    gates: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def look_at(self) -> tuple[str, ...]:
        """Everything to look into, the worst first."""
        return (
            *(f"not ready: {why}" for why in self.not_ready),
            *self.hints,
            *(f"{each.file} {ends_when(each)} ({each.not_after})" for each in self.ending_soon),
        )

    @property
    def ending_soon(self) -> tuple[Certificate, ...]:
        """The certificates to renew, by the rule of net/rules_expiry.py."""
        return tuple(each for each in self.certificates if each.standing is not Standing.OK)


def report(heard: Heard, *, now: datetime) -> Report:
    """Make the report from a program's answers."""
    snapshot = heard.snapshot
    totals = snapshot.get("totals")
    totals = totals if isinstance(totals, dict) else {}
    uptime_s = number(snapshot, "uptimeSeconds")
    taken_at = _time(text(snapshot, "takenAt")) or now
    recent = _recent(heard.history)
    tunnels = items(snapshot, "tunnels")
    stalled = tuple(
        (str(each.get("id", "")), text(each, "target"), text(each, "stalled"))
        for each in tunnels
        if text(each, "stalled")
    )
    return Report(
        address=heard.address,
        program=heard.program,
        id=heard.id,
        version=text(snapshot, "version"),
        started_at=_started_at(heard, taken_at - timedelta(seconds=uptime_s)),
        uptime_s=uptime_s,
        ready=None if heard.ready_status in (None, 404) else heard.ready_status == 200,
        not_ready=_not_ready(heard),
        checks=tuple(filter(_CHECK.fullmatch, heard.ready_text.splitlines())),
        draining=bool(snapshot.get("draining")),
        agents=len(items(snapshot, "agents")) if "agents" in snapshot else None,
        links=len(items(snapshot, "links")) if "links" in snapshot else None,
        tunnels=len(tunnels) + int(number(snapshot, "truncated")),
        dials=int(number(totals, "dials")),
        dials_failed=int(number(totals, "dialsFailed")),
        recent=recent,
        memory=_memory(snapshot),
        stalled=stalled,
        certificates=_certificates(snapshot, now),
        gates=tuple(
            text(gate, "name") for gate in items(snapshot, "featureGates") if gate.get("enabled")
        ),
        hints=tuple(_hints(snapshot, recent, len(stalled))),
    )


def _not_ready(heard: Heard) -> tuple[str, ...]:
    if heard.ready_status in (None, 200, 404):
        return ()
    found = [_FAILED.fullmatch(line) for line in heard.ready_text.splitlines()]
    named = tuple(f"{each['name']}: {each['why']}" for each in found if each)
    return named or (heard.ready_text.strip() or f"status {heard.ready_status}",)


def _recent(history: dict[str, Any] | None) -> Recent | None:
    if history is None:
        return None
    steps = items(history, "steps")[-STEPS_SHOWN:]
    step_s = number(history, "stepSeconds") or 10
    failures: Counter[str] = Counter()
    for step in steps:
        by_reason = step.get("failures")
        counts = by_reason if isinstance(by_reason, dict) else {}
        failures.update({str(why): int(count) for why, count in counts.items()})
    last = steps[-RATE_STEPS:]
    over_s = len(last) * step_s or 1
    return Recent(
        seconds=len(steps) * step_s,
        dials=sum(int(number(step, "dials")) for step in steps),
        failures=dict(failures.most_common()),
        rate_to_target=sum(number(step, "bytesToTarget") for step in last) / over_s,
        rate_to_client=sum(number(step, "bytesToClient") for step in last) / over_s,
        dial_steps=tuple(int(number(step, "dials")) for step in steps),
        byte_steps=tuple(
            int(number(step, "bytesToTarget") + number(step, "bytesToClient")) for step in steps
        ),
    )


def _memory(snapshot: dict[str, Any]) -> BudgetUse | None:
    said = snapshot.get("memory")
    if not isinstance(said, dict):
        return None
    return BudgetUse(
        used_bytes=int(number(said, "usedBytes")),
        budget_bytes=int(number(said, "budgetBytes")),
        peers=int(number(said, "peers")),
        largest=tuple(
            (text(each, "peer"), int(number(each, "bytes"))) for each in items(said, "largest")
        ),
    )


def _certificates(snapshot: dict[str, Any], now: datetime) -> tuple[Certificate, ...]:
    found = []
    for each in items(snapshot, "certificates"):
        ends = _time(text(each, "notAfter"))
        if ends is not None:
            starts = _time(text(each, "notBefore"))  # missing from older programs
            found.append(
                Certificate(
                    file=text(each, "file"),
                    not_after=text(each, "notAfter"),
                    days_left=(ends - now) // timedelta(days=1),
                    standing=standing(not_before=starts, not_after=ends, now=now),
                )
            )
    return tuple(sorted(found, key=lambda each: each.not_after))


def _started_at(heard: Heard, reckoned: datetime) -> str:
    """The program's own start time; older programs report only their uptime."""
    said = text(heard.configuration or {}, "startedAt")
    return said or reckoned.strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(written: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        return None
    return found if found.tzinfo else None


def ends_when(certificate: Certificate) -> str:
    """When a certificate expires, in words."""
    if certificate.days_left < 0:
        return "has ended"
    if certificate.days_left == 0:
        return "expires within a day"
    return f"expires in {counted(certificate.days_left, 'day')}"


def _hints(snapshot: dict[str, Any], recent: Recent | None, stalled: int) -> Iterator[str]:
    """What to look into besides readiness and certificates, the worst first."""
    if snapshot.get("draining"):
        yield "draining: new dials are refused"
    yield from _about_links(snapshot)
    yield from _about_relays(snapshot)
    yield from _about_others(snapshot)
    memory = _memory(snapshot)
    if memory is not None and memory.used_up:
        yield "the memory budget is exhausted: peers over their share are slowed or refused"
    if recent is not None and recent.failed:
        worst, count = max(recent.failures.items(), key=lambda each: each[1])
        yield (
            f"{recent.failed} of {counted(recent.dials, 'dial')} failed in the last"
            f" {age(recent.seconds)}, most often: {worst} ({count})"
        )
    if stalled:
        verb = "is" if stalled == 1 else "are"
        yield f"{counted(stalled, 'tunnel')} {verb} stalled: isthmus tunnels --stalled"


def _about_links(snapshot: dict[str, Any]) -> Iterator[str]:
    links = items(snapshot, "links")
    for link in links:
        if text(link, "state") == "stuck":
            yield f"the link to {text(link, 'peerId')} is stuck"
    draining = [text(each, "id") for each in items(snapshot, "agents") if each.get("draining")]
    if draining:
        verb = "drains" if len(draining) == 1 else "drain"
        yield f"{counted(len(draining), 'agent')} {verb}: {', '.join(draining[:3])}"
    servers = int(number(snapshot, "knownServers"))
    linked = len({text(link, "peerId") for link in links})
    if linked < servers:
        yield f"linked to {linked} of {counted(servers, 'server')}"


def _about_relays(snapshot: dict[str, Any]) -> Iterator[str]:
    relays = items(snapshot, "relays")
    for relay in relays:
        if text(relay, "state") == "stuck":
            yield f"the link to server {text(relay, 'serverId')} is stuck"
    if "relays" not in snapshot or items(snapshot, "links"):
        return
    if helpers := [text(each, "serverId") for each in relays if each.get("agents")]:
        yield f"no agent is linked here: dials go through {', '.join(helpers[:3])}"


def _about_others(snapshot: dict[str, Any]) -> Iterator[str]:
    traffic = snapshot.get("nodeTraffic")
    if isinstance(traffic, dict) and text(traffic, "waitsFor"):
        yield f"connections of this node wait: {text(traffic, 'waitsFor')}"
    names = snapshot.get("names")
    if isinstance(names, dict) and names.get("tunnelWorks") is False:
        yield "the guest cluster's DNS is unreachable through the tunnel"
    for upstream in items(snapshot, "upstreams"):
        if upstream.get("up") is False or upstream.get("failed"):
            said = text(upstream, "lastCheck")
            yield f"upstream {text(upstream, 'address')} is down{f': {said}' if said else ''}"
    for route in items(snapshot, "routes"):
        for backend in items(route, "backends"):
            if backend.get("failed"):
                yield f"route {text(route, 'name')}: {text(backend, 'address')} failed"
