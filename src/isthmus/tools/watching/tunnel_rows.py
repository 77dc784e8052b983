"""The tunnels of several programs as rows: filtered, sorted, with rates between two queries.

For ``isthmus tunnels`` and ``isthmus top``. Pure: takes the answers of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from isthmus.frame.model.snapshot import camel
from isthmus.tools.watching.looking import Seen, items, names_of, number, text

#: Identifies a tunnel among those of all programs: the program's URL, and its number there.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelRow:
    """One tunnel; ``rate`` is bytes per second both ways, None before the second query.

    ``relay`` is the other server that the agent is linked to, if any.
    """

    url: str
    server: str
    id: str
    target: str
    agent: str
    frontend: str
    requester: str
    state: str
    stalled: str
    age_s: float
    to_target: int
    to_client: int
    connection_id: str
    relay: str = ""
    rate: float | None = None
    slow: str = ""

    @property
    def key(self) -> Key:
        """The key that identifies the tunnel."""
        return self.url, self.id

    @property
    def why(self) -> str:
        """Why no bytes move, or which side is slow; empty if neither."""
        return self.stalled or self.slow

    @property
    def bytes(self) -> int:
        """The bytes carried in both directions."""
        return self.to_target + self.to_client


#: The sort keys: the largest, oldest or stalled first; names in order.
SORTS: dict[str, Callable[[TunnelRow], Any]] = {
    "age": lambda row: -row.age_s,
    "bytes": lambda row: -row.bytes,
    "rate": lambda row: (-(row.rate or 0.0), -row.bytes),
    "id": lambda row: (row.server, len(row.id), row.id),
    "target": lambda row: row.target,
    "agent": lambda row: row.agent,
    "state": lambda row: (row.state != "stalled", row.state != "slow", row.state),
}


def rows_of(programs: Sequence[Seen], *, once: bool = False) -> list[TunnelRow]:
    """The tunnels of programs; with ``once`` a tunnel of both server and agent is the server's.

    A tunnel of two servers, one of which relays, belongs to the server that the client asked.
    """
    names = names_of(programs)
    rows = [
        _row(seen.client.url, names[seen.client.url], each)
        for seen in programs
        for each in items(seen.snapshot, "tunnels")
    ]
    if not once:
        return rows
    servers = {seen.client.url for seen in programs if seen.program == "server"}
    carried = {row.connection_id for row in rows if row.url in servers and row.connection_id}
    relayed = {row.connection_id for row in rows if row.relay and row.connection_id}

    def is_first(row: TunnelRow) -> bool:
        if row.frontend == "relay":
            return row.connection_id not in relayed
        return row.url in servers or row.connection_id not in carried

    return list(filter(is_first, rows))


def _row(url: str, server: str, tunnel: dict[str, Any]) -> TunnelRow:
    return TunnelRow(
        url=url,
        server=server,
        id=str(tunnel.get("id", "")),
        target=text(tunnel, "target"),
        agent=text(tunnel, "agentId"),
        frontend=text(tunnel, "frontend"),
        requester=text(tunnel, "requester"),
        state=text(tunnel, "state"),
        stalled=text(tunnel, "stalled"),
        age_s=number(tunnel, "ageSeconds"),
        to_target=int(number(tunnel, "bytesToTarget")),
        to_client=int(number(tunnel, "bytesToClient")),
        connection_id=text(tunnel, "connectionId"),
        relay=text(tunnel, "relay"),
        slow=text(tunnel, "slow"),
    )


def chosen(
    rows: Iterable[TunnelRow], *, stalled: bool = False, agent: str = "", target: str = ""
) -> list[TunnelRow]:
    """The rows that match; ``target`` is a pattern for host and port, or for either."""
    return [
        row
        for row in rows
        if (not stalled or row.stalled)
        and (not agent or row.agent == agent)
        and (not target or _is_target(row.target, target))
    ]


def _is_target(target: str, pattern: str) -> bool:
    host, _, port = target.rpartition(":")
    # A pattern may hold an IPv6 address without a port: every way to read it counts.
    return any(fnmatchcase(each, pattern) for each in (target, host, host.strip("[]"), f":{port}"))


class Rates:
    """Bytes per second of each tunnel, from one query to the next."""

    def __init__(self) -> None:
        self._before: dict[Key, int] = {}
        self._at_s = 0.0

    def take(self, rows: Sequence[TunnelRow], *, now: float) -> list[TunnelRow]:
        """Set the rates of rows; None for tunnels that are new since the last query.

        A tunnel with the same number and fewer bytes is another tunnel: its program was restarted.
        """
        over_s = now - self._at_s
        before, self._before, self._at_s = self._before, {row.key: row.bytes for row in rows}, now
        found = []
        for row in rows:
            had = before.get(row.key)
            moved = None if had is None or row.bytes < had or over_s <= 0 else row.bytes - had
            found.append(row if moved is None else replace(row, rate=moved / over_s))
        return found


def tunnel_json(row: TunnelRow) -> dict[str, Any]:
    """A tunnel for JSON and YAML, with the keys of the snapshot."""
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
