"""The other servers, as a server knows them: who there is, and where to reach them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from isthmus.values import HostPort, ServerId

_MOST_TOLD = 128  # agents believe no more


class Peers:
    """Every other server by its id: those that flags name, and those that have a Lease.

    ``siblings`` are other workers of this one: agents are told of them, but those that ask for one
    do not come here, for its parent hands them over.
    """

    def __init__(
        self,
        own: ServerId,
        named: Mapping[ServerId, HostPort],
        siblings: Collection[ServerId] = (),
    ) -> None:
        self._own = own
        self._siblings = frozenset(siblings)
        self._named = dict(named)
        self._all = dict(named)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Peers of {self._own}: {', '.join(sorted(self._all)) or 'none'}>"

    @property
    def ids(self) -> tuple[ServerId, ...]:
        """The ids of all servers, our own included, sorted; empty when we know no other."""
        others = {*self._all, *self._siblings}
        return tuple(sorted({self._own, *others})[:_MOST_TOLD]) if others else ()

    @property
    def addresses(self) -> Mapping[ServerId, HostPort]:
        """Every other server whose agent port is known."""
        return self._all

    def address_of(self, server_id: str) -> HostPort | None:
        """Where another server's agent port is; None for ourselves and for strangers."""
        return self._all.get(ServerId(server_id))

    def leased(self, found: Mapping[ServerId, HostPort]) -> bool:
        """Leases say who there is; True if that makes a difference. What flags say wins."""
        before = self._all
        self._all = {**found, **self._named}
        for known in (self._own, *self._siblings):
            self._all.pop(known, None)
        return self._all != before
