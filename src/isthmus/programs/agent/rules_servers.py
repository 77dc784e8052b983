"""Which servers an agent's links name, which are missing, and which one to request next.

Servers announce ids, and some may be of servers that are gone. The agent requests a new
server at once; one that could not be linked waits, longer each time, and
delays no other. Failed ones are also spread over their delays, and their total request rate
is limited. When one of them is back, others may be too: all are retried.

Pure; servers.py has the links.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from isthmus.kube.rules_leases import server_count
from isthmus.text.pacing import Backoff
from isthmus.values import ServerId

#: The largest number of servers that is accepted from a server.
MOST_SERVERS = 128


class Linked(Protocol):
    """The part of a link with information about all servers; see links/agent_side.py."""

    @property
    def server_count(self) -> int: ...
    @property
    def servers(self) -> frozenset[ServerId]: ...
    @property
    def was_asked_for(self) -> bool: ...
    @property
    def opened_at(self) -> float: ...
    @property
    def drained_at(self) -> float | None: ...


Links = Mapping[ServerId, Linked]


def known_count(links: Links, leases: int | None, source: str) -> int:
    """The number of servers, as announced; ``source`` as in ``server_count``."""
    said = max((link.server_count for link in links.values()), default=0)
    if leases is not None and links:
        said = server_count(said, leases, source)
    return min(said, MOST_SERVERS)


def named(links: Links) -> set[ServerId]:
    """The servers that others named."""
    return {server for link in links.values() for server in link.servers}


def missing(links: Links) -> list[ServerId]:
    """The servers that others named and that are not linked."""
    return sorted(named(links) - links.keys())[:MOST_SERVERS]


def unsure(links: Links) -> list[ServerId]:
    """The servers whose links may end soon, and that can be requested."""
    ending = {server for server, link in links.items() if may_end_soon(link, links)}
    return sorted(ending & named(links))


def may_end_soon(link: Linked, links: Links) -> bool:
    """Whether a link requested before a drain was announced may pass through that server."""
    if not link.was_asked_for or link.drained_at is not None:
        return False
    drained = (other.drained_at for other in links.values())
    return any(at is not None and link.opened_at <= at for at in drained)


#: The number of failed servers requested within the delay of one. Each request costs the receiving
#: server 0.12 ms of CPU, and thousands of agents may reach the same one.
_MOST_WITHIN_DELAY = 5
#: The minimum time between two requests, as a part of the first delay.
_LEAST_GAP = 0.5


@dataclass(slots=True)
class _Wanted:
    """A missing server."""

    backoff: Backoff
    due_at: float
    failed_at: float | None = (
        None  # None: no failure since it became missing, or since others returned
    )
    under_way: bool = False

    @property
    def has_failed(self) -> bool:
        return self.failed_at is not None


class AskingTurns:
    """Decides which server to request, and when."""

    def __init__(self, backoff: Callable[[], Backoff], *, most: int) -> None:
        """``backoff`` creates the delays of one server; at most ``most`` servers are kept."""
        self._backoff = backoff
        self._most = most
        self._wanted: dict[ServerId, _Wanted] = {}
        self._quiet_until = 0.0  # for failed servers

    def __len__(self) -> int:
        return len(self._wanted)

    def __repr__(self) -> str:
        waiting = sum(each.has_failed for each in self._wanted.values())
        return f"<AskingTurns for {len(self)}, {waiting} failed>"

    def want(self, servers: Collection[ServerId], *, now: float) -> None:
        """Set the missing servers; others are removed."""
        for gone in self._wanted.keys() - set(servers):
            del self._wanted[gone]
        for server in servers:
            if len(self._wanted) >= self._most:
                break
            if server not in self._wanted:
                self._wanted[server] = _Wanted(self._backoff(), now)

    def take(self, *, now: float) -> ServerId | None:
        """The server to request now, until it ``failed`` or ``came``; None if none is due."""
        due = {server: at for server, at in self._due().items() if at <= now}
        if not due:
            return None
        server = min(due, key=lambda each: self._wanted[each].due_at)
        self._wanted[server].under_way = True
        return server

    def next_in_s(self, *, now: float) -> float | None:
        """The time until one is due; None: until something changes."""
        soonest = min(self._due().values(), default=None)
        return None if soonest is None else max(0.0, soonest - now)

    def _due(self) -> dict[ServerId, float]:
        return {
            server: max(each.due_at, self._quiet_until) if each.has_failed else each.due_at
            for server, each in self._wanted.items()
            if not each.under_way
        }

    def failed(self, server: ServerId, *, now: float) -> None:
        """A requested server could not be linked: it waits."""
        each = self._wanted.get(server)
        if each is None:
            return  # no longer named by any server
        delay = each.backoff.next_s()
        each.failed_at, each.due_at, each.under_way = now, now + delay, False
        waiting = sum(other.has_failed for other in self._wanted.values())
        least = self._backoff().next_s() * _LEAST_GAP
        self._quiet_until = now + max(delay / min(waiting, _MOST_WITHIN_DELAY), least)

    def lost(self, server: ServerId, *, now: float) -> None:
        """A link was lost: wait a moment, because all agents of that server return at once."""
        if server not in self._wanted and len(self._wanted) < self._most:
            backoff = self._backoff()
            self._wanted[server] = _Wanted(backoff, now + backoff.next_s())

    def came(self, server: ServerId, *, now: float) -> None:
        """A server is linked. If it had failed before, other failed ones may be back as well."""
        each = self._wanted.pop(server, None)
        if each is None or not each.has_failed:
            return
        for other in self._wanted.values():
            if other.failed_at is not None:
                # Not at once after a recent failure: no server returns that fast.
                other.backoff.reset()
                other.due_at = min(other.due_at, max(now, other.failed_at + other.backoff.next_s()))
                other.failed_at = None
