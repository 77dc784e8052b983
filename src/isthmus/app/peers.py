"""The other servers, as a server knows them: who there is, and where to reach them."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.values import HostPort, ServerId

_MOST_TOLD = 128  # agents believe no more


class Peers:
    """Every other server by its id: those that flags name, and those that have a Lease."""

    def __init__(self, own: ServerId, named: Mapping[ServerId, HostPort]) -> None:
        self._own = own
        self._named = dict(named)
        self._all = dict(named)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Peers of {self._own}: {', '.join(sorted(self._all)) or 'none'}>"

    @property
    def ids(self) -> tuple[ServerId, ...]:
        """The ids of all servers, our own included, sorted; empty when we know no other."""
        return tuple(sorted({self._own, *self._all})[:_MOST_TOLD]) if self._all else ()

    def address_of(self, server_id: str) -> HostPort | None:
        """Where another server's agent port is; None for ourselves and for strangers."""
        return self._all.get(ServerId(server_id))

    def leased(self, found: Mapping[ServerId, HostPort]) -> bool:
        """Leases say who there is; True if that makes a difference. What flags say wins."""
        before = self._all
        self._all = {**found, **self._named}
        self._all.pop(self._own, None)
        return self._all != before
