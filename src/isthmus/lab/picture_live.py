"""The live part of a picture: links and tunnels, from the programs' snapshots.

Snapshots may come from broken or foreign programs, so nothing in them is trusted: whatever does not
follow docs/snapshot.md is omitted, and no text can move a cursor or break out of an XML attribute.
picture.py combines the result with the topology.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from isthmus.lab.topology import Process, Topology

MAX_TEXT_CHARS = 80
MAX_NUMBER = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The state of a running lab; an empty one means that the lab does not run.

    ``running`` has every started process by name; ``snapshots`` has the parsed /snapshot of every
    server and agent that answered.
    """

    running: Mapping[str, bool] = field(default_factory=dict)
    snapshots: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTunnel:
    """A tunnel on a link; ``host`` is the lab host of its target, empty if unknown."""

    target: str
    frontend: str
    state: str
    to_target: int
    to_client: int
    stalled: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLink:
    """A link by its two ids, and the lab's processes with these ids, or empty.

    ``open`` counts all tunnels, even unlisted ones; bytes are None if unknown.
    """

    agent: str
    server: str
    agent_process: str
    server_process: str
    state: str
    open: int
    rtt_s: float | None = None
    to_agent: int | None = None
    to_server: int | None = None
    tunnels: tuple[LiveTunnel, ...] = ()

    @property
    def well(self) -> bool:
        """Whether the link can carry dials."""
        return self.state == "open"

    @property
    def stalled(self) -> int:
        return sum(bool(tunnel.stalled) for tunnel in self.tunnels)


def clean(value: object, *, most: int = MAX_TEXT_CHARS) -> str:
    """Make a text safe: one cell per character, no control characters."""
    if not isinstance(value, str):
        return ""
    text = "".join(one if _tame(one) else "?" for one in value[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def _tame(one: str) -> bool:
    return (
        one.isprintable()
        and unicodedata.category(one)[0] not in "MC"
        and unicodedata.east_asian_width(one) not in "WF"
    )


def links(topology: Topology, live: LiveState) -> tuple[LiveLink, ...]:
    """All links that any program reported, each once, in the order of the servers' processes.

    The server's view of a link wins; the agent's view is used if the server did not report it.
    """
    reader = _Reader(topology, live)
    found = [link for process in topology.processes for link in reader.of_server(process)]
    told = {process.name for process in topology.processes if reader.kind(process) == "Server"}
    for process in topology.processes:
        found += (one for one in reader.of_agent(process) if one.server_process not in told)
    return tuple(found)


class _Reader:
    """Reads all snapshots of a lab."""

    def __init__(self, topology: Topology, live: LiveState) -> None:
        self._live = live
        self._agents: dict[str, str] = {}
        self._servers: dict[str, str] = {}
        for process in topology.processes:
            shot = self._snapshot(process)
            _note(self._agents, process, "--agent-id", shot.get("agentId"))
            _note(self._servers, process, "--server-id", shot.get("serverId"))
        self._whereabouts = _Whereabouts(topology)

    def kind(self, process: Process) -> str:
        """``Server`` or ``Agent`` by the process's snapshot, or empty."""
        kind = self._snapshot(process).get("kind")
        return clean(kind).removesuffix("Snapshot") if isinstance(kind, str) else ""

    def of_server(self, process: Process) -> Iterator[LiveLink]:
        if self.kind(process) != "Server":
            return
        shot = self._snapshot(process)
        name = clean(shot.get("serverId")) or process.name
        seen = set()
        for entry, tunnels, open_ in self._entries(shot, process.name):
            agent = clean(entry.get("peerId"))
            seen.add(agent)
            yield LiveLink(
                agent=agent,
                server=name,
                agent_process=self._agents.get(agent, ""),
                server_process=process.name,
                state=clean(entry.get("state")),
                open=open_,
                rtt_s=_number(entry.get("rttSeconds")),
                to_agent=_whole(entry.get("sentBytes")),
                to_server=_whole(entry.get("receivedBytes")),
                tunnels=tunnels,
            )
        for entry in _entries(shot, "agents"):
            agent = clean(entry.get("id"))
            if agent and agent not in seen:
                yield LiveLink(
                    agent=agent,
                    server=name,
                    agent_process=self._agents.get(agent, ""),
                    server_process=process.name,
                    state="draining" if entry.get("draining") is True else "open",
                    open=_whole(entry.get("tunnels")) or 0,
                    rtt_s=_number(entry.get("rttSeconds")),
                )

    def of_agent(self, process: Process) -> Iterator[LiveLink]:
        if self.kind(process) != "Agent":
            return
        shot = self._snapshot(process)
        for entry, tunnels, open_ in self._entries(shot, ""):
            server = clean(entry.get("peerId"))
            yield LiveLink(
                agent=clean(shot.get("agentId")) or process.name,
                server=server,
                agent_process=process.name,
                server_process=self._servers.get(server, ""),
                state=clean(entry.get("state")),
                open=open_,
                rtt_s=_number(entry.get("rttSeconds")),
                to_agent=_whole(entry.get("receivedBytes")),
                to_server=_whole(entry.get("sentBytes")),
                tunnels=tunnels,
            )

    def _entries(
        self, shot: Mapping[str, object], server: str
    ) -> Iterator[tuple[Mapping[str, object], tuple[LiveTunnel, ...], int]]:
        tunnels: dict[int | None, list[LiveTunnel]] = {}
        for entry in _entries(shot, "tunnels"):
            tunnels.setdefault(_whole(entry.get("linkId")), []).append(self._tunnel(entry, server))
        for entry in _entries(shot, "links"):
            if clean(entry.get("peerId")):
                own = tuple(tunnels.get(_whole(entry.get("id")), ()))
                # Tunnels omitted from a truncated list still count as streams.
                yield entry, own, max(len(own), _whole(entry.get("streams")) or 0)

    def _tunnel(self, entry: Mapping[str, object], server: str) -> LiveTunnel:
        target = clean(entry.get("target"))
        return LiveTunnel(
            target=target,
            frontend=clean(entry.get("frontend")),
            state=clean(entry.get("state")),
            to_target=_whole(entry.get("bytesToTarget")) or 0,
            to_client=_whole(entry.get("bytesToClient")) or 0,
            stalled=clean(entry.get("stalled")),
            host=self._whereabouts.of(target, server),
        )

    def _snapshot(self, process: Process) -> Mapping[str, object]:
        found = self._live.snapshots.get(process.name)
        return found if isinstance(found, Mapping) else {}


def flag(command: tuple[str, ...], name: str) -> str:
    """The value of a flag in a command line, in either syntax; empty if it is absent."""
    for at, word in enumerate(command):
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
        if word == name and at + 1 < len(command):
            return command[at + 1]
    return ""


def _note(names: dict[str, str], process: Process, name: str, told: object) -> None:
    for one in (clean(told), clean(flag(process.command, name))):
        if one:
            names.setdefault(one, process.name)


class _Whereabouts:
    """Finds the hosts of targets: by name, by address, by a service's address and port."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._hosts: dict[str, list[str]] = {}
        for host in topology.hosts:
            for text in (host.name, *map(str, host.addresses)):
                self._hosts.setdefault(text, []).append(host.name)
        for service in (one for host in topology.hosts for one in host.services):
            self._hosts.setdefault(str(service.address), [service.to_host] * bool(service.to_host))
        for name, address in topology.names:
            self._hosts.setdefault(name, self._hosts.get(str(address), []))

    def of(self, target: str, server: str) -> str:
        """The host of a target; empty if there is none, or several candidates.

        An address may exist on both sides of the wall: a tunnel leads away from its server.
        """
        found = self._hosts.get(_host_of(target), [])
        if len(found) > 1:
            near = self._networks(
                process.host for process in self._topology.processes if process.name == server
            )
            found = [host for host in found if not near & self._networks([host])]
        return found[0] if len(found) == 1 else ""

    def _networks(self, hosts: Iterable[str]) -> set[str]:
        return {at.network for host in hosts for at in self._topology.host(host).attachments}


def _host_of(target: str) -> str:
    host = target.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return str(ip_address(host))
    except ValueError:
        return host.removesuffix(".")


def _entries(shot: Mapping[str, object], key: str) -> Iterator[Mapping[str, object]]:
    found = shot.get(key)
    if isinstance(found, list | tuple):
        yield from (entry for entry in found if isinstance(entry, Mapping))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < MAX_NUMBER else None  # comparisons with NaN are false


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
