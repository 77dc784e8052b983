"""What ``isthmus node-proxy explain`` and ``diff`` print, as text or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from isthmus.frame.cli.tables import one_line
from isthmus.programs.node_proxy.rules.explaining import PacketExplanation, PacketOutcome
from isthmus.programs.node_proxy.rules.explaining_flow import (
    Origin,
    Packet,
    PacketVerdict,
    RuleStep,
)
from isthmus.programs.node_proxy.rules.explaining_iptables import HEALTH_CHECK
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.rendering import ADDED, REMOVED, LineChange, PortChange

if TYPE_CHECKING:
    from rich.console import Console

Differences = Mapping[IpFamily, tuple[Sequence[PortChange], Sequence[LineChange]]]

_COLOURS = {
    PacketVerdict.TRANSLATED: "green",
    PacketVerdict.REFUSED: "red",
    PacketVerdict.DROPPED: "red",
    PacketVerdict.UNTOUCHED: "yellow",
}
_UNTOUCHED = "untouched: the packet goes to its original destination"
_ANSWERED = "not translated: the node proxy answers health checks on this port"
_MARKS = {ADDED: ("+", "green"), REMOVED: ("-", "red")}


def explanation_json(found: PacketExplanation, mode: str, notes: Sequence[str]) -> dict[str, Any]:
    """An explanation as JSON; the steps common to all outcomes appear once."""
    packet, shared = found.packet, found.shared_steps
    answer = {
        "packet": {
            "source": packet.source,
            "destination": _place(packet),
            "protocol": packet.protocol.value,
            "from": packet.origin.value,
            "interface": packet.interface,
            "bridgePort": packet.bridge_port,
        },
        "mode": mode,
        "service": str(found.service) if found.service is not None else None,
        "reachedBy": found.reached_by or None,
        "verdict": found.verdict.value,
        "steps": [_step(step) for step in found.outcomes[0].steps[:shared]],
        "outcomes": [_outcome(each, shared) for each in found.outcomes],
        "notes": list(notes),
    }
    return answer


def _place(packet: Packet) -> str:
    host = f"[{packet.destination}]" if ":" in packet.destination else packet.destination
    return f"{host}:{packet.port}"


def _outcome(outcome: PacketOutcome, shared: int) -> dict[str, Any]:
    return {
        "verdict": outcome.verdict.value,
        "destination": outcome.endpoint,
        "chance": round(outcome.chance, 6),
        "masqueraded": outcome.masqueraded,
        "why": [reason.value for reason in outcome.reasons],
        "steps": [_step(step) for step in outcome.steps[shared:]],
    }


def _step(step: RuleStep) -> dict[str, str]:
    return {"table": step.table, "chain": step.chain, "rule": step.rule, "does": step.does}


def show_explanation(found: PacketExplanation, mode: str, notes: Sequence[str]) -> None:
    """Print an explanation as text: the verdict, where the packet may go, and the rules."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    head = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    head.add_row("packet", Text(_summary(found.packet)))
    if found.service is not None:
        head.add_row("service", Text(f"{found.service}, by its {found.reached_by}"))
    head.add_row("verdict", Text(_verdict(found), style=f"bold {_COLOURS[found.verdict]}"))
    head.add_row("rules", mode)
    for note in notes:
        head.add_row("note", Text(note))
    console.print(head)
    if found.verdict is PacketVerdict.TRANSLATED:
        ends = Table("Endpoint", "Chance", "Masqueraded", "Why", box=None, pad_edge=False)
        for each in found.outcomes:
            why = "; ".join(reason.value for reason in each.reasons)
            masqueraded = "yes" if each.masqueraded else "no"
            ends.add_row(Text(each.endpoint), _percent(each.chance), masqueraded, Text(why))
        console.print()
        console.print(ends)
    _show_steps(console, found)


def _show_steps(console: Console, found: PacketExplanation) -> None:
    """Print the rules in order; endpoints with the same steps share one list."""
    from rich.text import Text

    shared = found.shared_steps
    parts = [("", found.outcomes[0].steps[:shared], 1)]
    groups: dict[object, list[PacketOutcome]] = {}
    for each in found.outcomes:
        groups.setdefault((each.verdict, each.masqueraded, each.reasons), []).append(each)
    for first, *others in groups.values():
        likewise = f" ({len(others)} more alike)" if others else ""
        head = f"to {first.endpoint}{likewise}" if len(found.outcomes) > 1 else ""
        parts.append((head, first.steps[shared:], shared + 1))
    console.print()
    for head, steps, start in parts:
        if head:
            console.print(Text(head, style="bold"))
        for number, step in enumerate(steps, start):
            does = f"{number:>3}  {step.table} {step.chain}: {step.does}"
            # No wrapping here: users copy whole rules.
            console.print(Text(one_line(does)), soft_wrap=True)
            console.print(Text(f"     {one_line(step.rule)}", style="dim"), soft_wrap=True)


def _summary(packet: Packet) -> str:
    arrival = f", by {packet.interface}" if packet.interface else ""
    arrival += f", through bridge port {packet.bridge_port}" if packet.bridge_port else ""
    source = {
        Origin.POD: "a pod of this node",
        Origin.NODE: "this node",
        Origin.OUTSIDE: "outside",
    }[packet.origin]
    return f"{packet.source} → {_place(packet)}/{packet.protocol.value}, from {source}{arrival}"


def _verdict(found: PacketExplanation) -> str:
    verdict = found.verdict
    if verdict is not PacketVerdict.TRANSLATED:
        if found.reached_by == HEALTH_CHECK:
            return _ANSWERED if verdict is PacketVerdict.UNTOUCHED else str(verdict.value)
        return _UNTOUCHED if verdict is PacketVerdict.UNTOUCHED else str(verdict.value)
    masqueraded = {each.masqueraded for each in found.outcomes}
    how = "masqueraded" if masqueraded == {True} else "not masqueraded"
    return f"translated, {'partly masqueraded' if len(masqueraded) > 1 else how}"


def _percent(chance: float) -> str:
    return f"{chance * 100:.4g} %"


def difference_json(found: Differences) -> dict[str, Any]:
    answer = {
        family.value: {
            "ports": [
                {
                    "port": str(each.key),
                    "protocol": each.key.protocol.value,
                    "what": each.what,
                    "details": list(each.words),
                }
                for each in ports
            ],
            "rules": [
                {
                    "place": each.place,
                    "removed": [line for sign, line in each.lines if sign == "-"],
                    "added": [line for sign, line in each.lines if sign == "+"],
                }
                for each in lines
            ],
        }
        for family, (ports, lines) in found.items()
    }
    return answer


def show_difference(found: Differences, *, color: bool) -> None:
    """Print differences as text: changed ports in words, then rule lines by chain or set."""
    for family, (ports, lines) in found.items():
        if not ports and not lines:
            continue
        if len(found) > 1:
            click.echo(_styled(f"# {family.value}", color, bold=True))
        for change in ports:
            _show_port(change, color)
        if ports and lines:
            click.echo()
        for place in lines:
            click.echo(_styled(f"@@ {place.place}", color, fg="cyan"))
            for sign, line in place.lines:
                fg = "red" if sign == "-" else "green"
                click.echo(_styled(f"{sign} {one_line(line)}", color, fg=fg))


def _show_port(change: PortChange, color: bool) -> None:
    mark, fg = _MARKS.get(change.what, ("~", "yellow"))
    name = f"{change.key} ({change.key.protocol.value})"
    click.echo(_styled(f"{mark} {name} {change.what}", color, fg=fg))
    for words in change.words:
        click.echo(f"    {words}")


def _styled(text: str, color: bool, **how: Any) -> str:
    return click.style(text, **how) if color else text
