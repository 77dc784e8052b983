"""Which servers an agent's links name, which are missing, and which one to ask for next.

Ids are what servers say, and some may be of servers that are gone. The agent asks at once for a
server that it has not asked for yet; one that could not be linked waits, longer each time, and
holds up no other. Those that failed are also spread over their delays, and there is a bound on how
often any of them is asked for. When one of them is back, others may be too: all are tried again.

Pure; servers.py has the links.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from isthmus.kube.rules_leases import server_count
from isthmus.text.pacing import Backoff
from isthmus.values import ServerId

#: What a server says of the number of servers is believed up to here.
MOST_SERVERS = 128


class Linked(Protocol):
    """What a link to one server tells about all of them; see links/agent_side.py."""

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
    """How many servers there are, as far as they said; ``source`` as in ``server_count``."""
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
    """The servers whose links may end soon, and that can be asked for."""
    ending = {server for server, link in links.items() if may_end_soon(link, links)}
    return sorted(ending & named(links))


def may_end_soon(link: Linked, links: Links) -> bool:
    """A link may pass through a server that drains: it was asked for before that was said."""
    if not link.was_asked_for or link.drained_at is not None:
        return False
    drained = (other.drained_at for other in links.values())
    return any(at is not None and link.opened_at <= at for at in drained)


#: Of those that failed, so many are asked for within the delay of one. Each costs the server that
#: is met 0.12 ms of CPU, and thousands of agents may meet the same.
_MOST_WITHIN_DELAY = 5
#: Of the first delay: the least time between two of them.
_LEAST_GAP = 0.5


@dataclass(slots=True)
class _Wanted:
    """One server that is wanted."""

    backoff: Backoff
    due_at: float
    failed_at: float | None = None  # None: not since it was wanted, lost, or others came back
    under_way: bool = False

    @property
    def has_failed(self) -> bool:
        return self.failed_at is not None


class AskingTurns:
    """Decides whom to ask for, and when."""

    def __init__(self, backoff: Callable[[], Backoff], *, most: int) -> None:
        """``backoff`` makes the delays of one server; no more than ``most`` are kept in mind."""
        self._backoff = backoff
        self._most = most
        self._wanted: dict[ServerId, _Wanted] = {}
        self._quiet_until = 0.0  # for those that failed

    def __len__(self) -> int:
        return len(self._wanted)

    def __repr__(self) -> str:
        waiting = sum(each.has_failed for each in self._wanted.values())
        return f"<AskingTurns for {len(self)}, {waiting} failed>"

    def want(self, servers: Collection[ServerId], *, now: float) -> None:
        """Say who is wanted from now on; whoever else was is forgotten."""
        for gone in self._wanted.keys() - set(servers):
            del self._wanted[gone]
        for server in servers:
            if len(self._wanted) >= self._most:
                break
            if server not in self._wanted:
                self._wanted[server] = _Wanted(self._backoff(), now)

    def take(self, *, now: float) -> ServerId | None:
        """The one to ask for now, until it ``failed`` or ``came``; None if it is nobody's turn."""
        due = {server: at for server, at in self._due().items() if at <= now}
        if not due:
            return None
        server = min(due, key=lambda each: self._wanted[each].due_at)
        self._wanted[server].under_way = True
        return server

    def next_in_s(self, *, now: float) -> float | None:
        """How long it is nobody's turn; None: until something happens."""
        soonest = min(self._due().values(), default=None)
        return None if soonest is None else max(0.0, soonest - now)

    def _due(self) -> dict[ServerId, float]:
        return {
            server: max(each.due_at, self._quiet_until) if each.has_failed else each.due_at
            for server, each in self._wanted.items()
            if not each.under_way
        }

    def failed(self, server: ServerId, *, now: float) -> None:
        """One that was taken could not be linked: it waits."""
        each = self._wanted.get(server)
        if each is None:
            return  # nobody names it any more
        delay = each.backoff.next_s()
        each.failed_at, each.due_at, each.under_way = now, now + delay, False
        waiting = sum(other.has_failed for other in self._wanted.values())
        least = self._backoff().next_s() * _LEAST_GAP
        self._quiet_until = now + max(delay / min(waiting, _MOST_WITHIN_DELAY), least)

    def lost(self, server: ServerId, *, now: float) -> None:
        """One that was linked is not any more: everybody who was linked to it waits a moment."""
        if server not in self._wanted and len(self._wanted) < self._most:
            backoff = self._backoff()
            self._wanted[server] = _Wanted(backoff, now + backoff.next_s())

    def came(self, server: ServerId, *, now: float) -> None:
        """One is linked. If it had failed before, others that did may be back as well."""
        each = self._wanted.pop(server, None)
        if each is None or not each.has_failed:
            return
        for other in self._wanted.values():
            if other.failed_at is not None:
                # Not at once if that was only just now: no server comes back so fast.
                other.backoff.reset()
                other.due_at = min(other.due_at, max(now, other.failed_at + other.backoff.next_s()))
                other.failed_at = None
