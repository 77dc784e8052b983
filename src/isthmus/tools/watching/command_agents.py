"""``isthmus agents``: the agents that servers know, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import complain, output_option
from isthmus.tools.watching.admin_flags import FORMATS_OF_TABLES, AdminFlags, admin_options

if TYPE_CHECKING:
    from isthmus.tools.watching.looking import Seen

_HEADS = ("ID", "VERSION", "ZONE", "NETWORK", "TUNNELS", "LINKS", "PING", "STATE", "AGE")
_WIDE = ("IDENTITY", "ADDRESS", "CARRIER", "IDENTIFIERS")


@click.command(
    name="agents",
    short_help="List connected agents",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@admin_options
@output_option(FORMATS_OF_TABLES)
def command(admin: AdminFlags, output: str) -> int:
    """List connected agents

    PING is the last round trip of an agent's best link, AGE the age of its oldest link. Agents of
    several servers are listed together, with a column for the server: an agent has a line for
    each server that it is linked to. The exit code is 1 if a program did not answer.

    \b
    Example:
      isthmus agents
      isthmus agents -o wide
      isthmus agents --admin https://a.example.com:8095 --admin https://b.example.com:8095 \\
          --cacert pki/ca.crt --token-file token
    """
    from isthmus.frame.cli.tables import print_data, print_table
    from isthmus.tools.watching.looking import look_at_all, names_of

    programs = look_at_all(admin, tunnels=0)
    for each in programs:
        if each.error is not None:
            complain(str(each.error))
    if all(each.error for each in programs):
        return 1
    servers = [each for each in programs if "agents" in each.snapshot]
    if not servers:
        raise ConfigError(
            f"only servers know agents, and none was asked; name one with {admin.chosen_by}"
        )
    names = names_of(servers)
    found = [row for each in servers for row in _rows(each, names[each.client.url])]
    found.sort(key=lambda row: (row["id"], row["server"]))
    if output in ("json", "yaml"):
        print_data({"kind": "Agents", "items": found}, output)
    elif not found:
        click.echo("No agents found.", err=True)
    else:
        heads = list(_HEADS)
        if len(servers) > 1:
            heads.insert(1, "SERVER")
        if output == "wide":
            heads += _WIDE
        print_table(heads, [_cells(row, heads) for row in found])
    return 1 if any(each.error for each in programs) else 0


def _rows(seen: Seen, server: str) -> list[dict[str, Any]]:
    """The agents of a server for JSON and YAML."""
    from isthmus.tools.watching.looking import items, number, text

    links = items(seen.snapshot, "links")
    found = []
    for agent in items(seen.snapshot, "agents"):
        own = [link for link in links if text(link, "peerId") == text(agent, "id")]
        states = [text(link, "state") for link in own]
        found.append(
            {
                **agent,
                "server": server,
                "admin": seen.client.url,
                "network": text(agent, "network"),
                "state": _state(bool(agent.get("draining")), states),
                "ageSeconds": max((number(link, "ageSeconds") for link in own), default=None),
                "addresses": sorted({text(link, "peerAddress") for link in own}),
                "carriers": sorted({text(link, "carrier") for link in own}),
            }
        )
    return found


def _state(draining: bool, links: list[str]) -> str:
    """Ready if a link can take a dial, by the server's rule."""
    if draining:
        return "Draining"
    if not links or "open" in links:
        return "Ready"
    return links[0].capitalize()


def _cells(row: dict[str, Any], heads: list[str]) -> list[str]:
    from isthmus.text.units import age, took

    by_head = {
        "ID": row["id"],
        "SERVER": row["server"],
        "VERSION": row.get("version"),
        "ZONE": row.get("zone"),
        "NETWORK": row["network"],
        "TUNNELS": row.get("tunnels"),
        "LINKS": row.get("links"),
        "PING": took(row.get("rttSeconds")),
        "STATE": row["state"],
        "AGE": age(row["ageSeconds"]),
        "IDENTITY": row.get("identity"),
        "ADDRESS": ",".join(row["addresses"]),
        "CARRIER": ",".join(row["carriers"]),
        "IDENTIFIERS": ",".join(row.get("identifiers") or ()),
    }
    return ["" if by_head[head] is None else str(by_head[head]) for head in heads]
