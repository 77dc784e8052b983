"""Prints tunnels: a table, a line for each change, or the same for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from isthmus.frame.cli.tables import age, print_data, print_table, rate, size, table_lines
from isthmus.frame.model.snapshot import camel
from isthmus.tools.watching.tunnel_rows import TunnelRow


class TunnelPrinter:
    """Prints rows: all of them once, or a line for each as it comes."""

    def __init__(self, output: str, *, several: bool, stalled: bool, rates: bool) -> None:
        self._output = output
        self._several = several
        self._stalled = stalled
        self._rates = rates
        self._heads_printed = False
        self._widths: list[int] = []

    def print_all(self, rows: Sequence[TunnelRow], *, truncated: int) -> None:
        """Print them as asked for; none is a sentence on standard error, as kubectl does."""
        if self._output in ("json", "yaml"):
            data = {
                "kind": "Tunnels",
                "items": [tunnel_json(row) for row in rows],
                "truncated": truncated,
            }
            print_data(data, self._output)
            return
        if not rows:
            click.echo("No tunnels found.", err=True)
        else:
            print_table(self._heads(), [self._cells(row) for row in rows])
        if truncated:
            click.echo(f"isthmus: {truncated} more tunnels were left out", err=True)

    def print_changes(self, rows: Sequence[TunnelRow]) -> None:
        """Print a line for each of them, under the same columns."""
        if self._output == "json":
            for row in rows:
                click.echo(json.dumps(tunnel_json(row), ensure_ascii=False))
        elif self._output == "yaml":
            for row in rows:
                click.echo("---")
                print_data(tunnel_json(row), "yaml")
        elif rows:
            cells = [self._cells(row) for row in rows]
            lines = table_lines(self._heads(), cells, self._widths)
            for line in lines[self._heads_printed :]:
                click.echo(line)
            self._heads_printed = True
        sys.stdout.flush()

    def _heads(self) -> list[str]:
        heads = ["ID", "TARGET", "AGENT", "FRONTEND", "STATE", "TO-TARGET", "TO-CLIENT"]
        if self._several:
            heads.insert(1, "SERVER")
        if self._rates:
            heads.append("RATE")
        heads.append("AGE")
        if self._output == "wide":
            heads += ["RELAY", "REQUESTER", "CONNECTION"]
        if self._stalled or self._output == "wide":
            heads.append("STALLED")
        return heads

    def _cells(self, row: TunnelRow) -> list[str]:
        by_head = {
            "ID": row.id,
            "SERVER": row.server,
            "TARGET": row.target,
            "AGENT": row.agent,
            "FRONTEND": row.frontend,
            "STATE": row.state,
            "TO-TARGET": size(row.to_target),
            "TO-CLIENT": size(row.to_client),
            "RATE": rate(row.rate),
            "AGE": age(row.age_s),
            "RELAY": row.relay,
            "REQUESTER": row.requester,
            "CONNECTION": row.connection_id,
            "STALLED": row.why,
        }
        return [by_head[head] for head in self._heads()]


def tunnel_json(row: TunnelRow) -> dict[str, Any]:
    """A tunnel for machines, with the keys of the snapshot."""
    renamed = {
        "url": "admin",
        "agent": "agentId",
        "to_target": "bytesToTarget",
        "to_client": "bytesToClient",
        "rate": "bytesPerSecond",
    }
    found = {renamed.get(key, camel(key)): value for key, value in asdict(row).items()}
    if row.id.isdigit():
        found["id"] = int(row.id)
    return found
