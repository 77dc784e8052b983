"""The output of ``isthmus publish``: tables, JSON, and findings one per line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from isthmus.frame.cli.tables import console
from isthmus.hosting.changes import ChangeStep
from isthmus.hosting.endpoints import ReachNeed, needs
from isthmus.hosting.model import PlanFinding, PlannedEndpoint, PublishPlan, Viewpoint, Weight
from isthmus.hosting.models import V1BETA1

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 110
_COLOURS = {Weight.ERROR: "red", Weight.WARNING: "yellow", Weight.NOTE: "cyan"}


def sentence(finding: PlanFinding, file: str) -> str:
    """A finding as one line, beginning with its location, as compilers print it."""
    place = f"{file}:{finding.place.line}" if finding.place.line else file
    where = f"{finding.place.field}: " if finding.place.field else ""
    do = f"; {finding.do}" if finding.do else ""
    return f"{place}: {finding.weight.value}: {where}{finding.says}{do} ({finding.rule})"


def finding_json(finding: PlanFinding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "weight": finding.weight.value,
        "line": finding.place.line,
        "field": finding.place.field,
        "says": finding.says,
        "do": finding.do,
        "missedBy": finding.missed_by,
    }


def plan_json(plan: PublishPlan, steps: Sequence[ChangeStep] | None) -> dict[str, Any]:
    """A plan as JSON data; ``steps`` None: it was not compared with another."""
    cluster = plan.cluster
    found: dict[str, Any] = {
        "apiVersion": cluster.model.api_version,
        "name": cluster.name,
        "namespace": cluster.namespace,
        "controlPlaneNamespace": cluster.control_plane,
        "platform": cluster.platform.value,
        "access": cluster.access.value,
        "findings": [finding_json(each) for each in plan.findings],
        "endpoints": [_endpoint_json(each) for each in plan.endpoints],
        "needs": [_need_json(each) for each in needs(plan)],
        "objects": [f"{each['kind']}/{each['metadata']['name']}" for each in plan.objects],
    }
    if steps is not None:
        found["changes"] = [step_json(each) for each in steps]
    return found


def _endpoint_json(endpoint: PlannedEndpoint) -> dict[str, Any]:
    return {
        "service": endpoint.service.value,
        "name": endpoint.name,
        "strategy": endpoint.strategy.value,
        "address": endpoint.address,
        "port": endpoint.port,
        "object": endpoint.by,
        "through": endpoint.through,
        "sni": endpoint.sni,
        "visibleFrom": [each.value for each in Viewpoint if each in endpoint.visible_from],
        "restricted": endpoint.restricted,
    }


def _need_json(need: ReachNeed) -> dict[str, Any]:
    return {
        "who": need.who.value,
        "service": need.service.value,
        "from": need.stands.value,
        "at": need.at,
        "restricted": need.endpoint is not None and need.endpoint.restricted,
        "why": need.why,
    }


def step_json(step: ChangeStep) -> dict[str, Any]:
    """One step from an old plan to a new one as JSON data."""
    return {
        "act": step.act.value,
        "what": step.what,
        "says": step.says,
        "interrupts": step.interrupts,
    }


def print_plan(plan: PublishPlan, file: str, steps: Sequence[ChangeStep] | None) -> None:
    """A plan as text: who sees what, who must reach what, and findings."""

    out = console()
    cluster = plan.cluster
    version = "" if cluster.model is V1BETA1 else f", {cluster.model.version}"
    said = f"{cluster.name}: {cluster.platform.value}, {cluster.access.value}{version}"
    out.print(said, markup=False)
    for table in (_seen(plan, wide=out.width >= _WIDE), _reach(plan)):
        out.print()
        out.print(table)
    if steps is not None:
        out.print()
        print_steps(steps)
    if plan.findings:
        out.print()
        print_findings(plan.findings, file)


def _seen(plan: PublishPlan, *, wide: bool) -> Table:
    """Who can reach which endpoint; a narrow terminal shows no objects."""
    from rich.table import Table
    from rich.text import Text

    from isthmus.hosting.endpoints import HEADINGS, rows

    service, strategy, address, by, through, *places = HEADINGS
    found = Table(box=None, pad_edge=False)
    found.add_column(f"{service.title()}\n{strategy}", no_wrap=True)
    more = f"\n{by}, {through}" if wide else ""
    found.add_column(address.title() + more, overflow="fold")
    for place in places:
        heading = place[:1].upper() + place[1:]
        found.add_column(heading.replace(" ", "\n"), no_wrap=True)
    for name, how, at, made_by, by_way_of, *cells in rows(plan):
        behind = f"\n{made_by}, {by_way_of}" if by_way_of else f"\n{made_by}"
        # Text: it is never markup
        found.add_row(
            Text(name).append(f"\n{how}", "dim"),
            Text(at).append(behind if wide else "", "dim"),
            *(Text(cell.replace(" ", "\n")) for cell in cells),
        )
    return found


def _reach(plan: PublishPlan) -> Table:
    from rich.table import Table
    from rich.text import Text

    found = Table("Who", "Must reach", box=None, pad_edge=False)
    found.add_column("At", overflow="fold")
    found.add_column("From")
    found.add_column("For")
    for need in needs(plan):
        held = " (allowed CIDRs)" if need.endpoint and need.endpoint.restricted else ""
        cells = need.who.value, need.service.value, need.at, need.stands.value + held, need.why
        found.add_row(*map(Text, cells))
    return found


def print_steps(steps: Sequence[ChangeStep]) -> None:
    """The steps from an old plan, in order."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    if not steps:
        out.print("nothing changes")
        return
    table = Table("", "Step", box=None, pad_edge=False)
    for heading in ("What", "Why", "Interrupts"):
        table.add_column(heading, overflow="fold")
    for number, step in enumerate(steps, 1):
        cells = step.act.value, step.what, step.says, step.interrupts or "nobody"
        table.add_row(str(number), *map(Text, cells))
    out.print(table)


def print_findings(findings: Iterable[PlanFinding], file: str, *, err: bool = False) -> None:
    for each in findings:
        colour = _COLOURS[each.weight]
        line = sentence(each, file)
        word = f" {each.weight.value}:"
        click.echo(line.replace(word, click.style(word, fg=colour), 1), err=err)
