"""What nodes may reach of the control plane: listed destinations, and nothing else.

An address has to be listed, alone or within a network. A name that is listed stands for whatever
the server itself resolves it to; of a name that is not, only those addresses may be dialed that are
listed. So a name never leads past the list, and what was looked at is what is dialed: the lookup
that knows this is dial/dialers/permitted.py. The flag is read in settings_destinations.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from isthmus.text.addresses import IpAddress, IpNetwork, Reached, reached
from isthmus.values import HostPort, is_address

#: What is shown instead of a destination where none is listed, or where nothing is listened to.
UNLISTED = "(unlisted)"
BY_GATE = "(gate)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One that is listed: a name, or addresses, and a port. One of the two is given."""

    port: int
    name: str = ""
    network: IpNetwork | None = None

    def __str__(self) -> str:
        """As it is typed."""
        if self.network is None:
            return f"{self.name}:{self.port}"
        alone = self.network.prefixlen == self.network.max_prefixlen
        host = str(self.network.network_address if alone else self.network)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What may be done about a request.

    ``target`` is what to dial instead of what was asked, spelled as the list has it; None: denied.
    ``by`` is the destination that permits it, or None where that depends on what ``target``, a
    name, resolves to.
    """

    target: HostPort | None = None
    by: Destination | None = None


DENIED = Ruling()


class Destinations:
    """All that are listed."""

    def __init__(self, listed: Iterable[Destination] = ()) -> None:
        self._listed = tuple(listed)
        self._names = {(_plain_name(it.name), it.port): it for it in self._listed if it.name}
        self._networks: dict[int, list[tuple[IpNetwork, Destination]]] = {}
        for each in self._listed:
            if each.network is not None:
                self._networks.setdefault(each.port, []).append((each.network, each))

    def __len__(self) -> int:
        return len(self._listed)

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._listed)

    def judge(self, asked: HostPort) -> Ruling:
        """Look at what a node asks for, before anything is resolved."""
        if is_address(asked.host):
            where = reached(asked.host)
            by = self._covering(where, asked.port)
            if by is None:
                return DENIED
            return Ruling(target=HostPort(str(where.address), asked.port), by=by)
        by = self._names.get((_plain_name(asked.host), asked.port))
        if by is not None:
            # As it is listed: with a final dot, or without, a resolver may find another host.
            return Ruling(target=HostPort(by.name, by.port), by=by)
        if asked.port in self._networks:
            return Ruling(target=asked)
        return DENIED  # no address of this name could be listed: why ask a resolver

    def covering(self, host: str, port: int) -> Destination | None:
        """The destination that lists an address, not a name; None when none does."""
        if "%" in host:  # with a zone it means something else on every interface
            return None
        return self._covering(reached(host), port)

    def _covering(self, where: Reached, port: int) -> Destination | None:
        own = self._listing(where.address, port)
        if own is not None or not where.translated:
            return own
        # Which of them a translator means is not known: all have to be listed.
        found = [self._listing(each, port) for each in where.translated]
        return found[0] if None not in found else None

    def _listing(self, address: IpAddress, port: int) -> Destination | None:
        listed = self._networks.get(port, ())
        return next((by for network, by in listed if address in network), None)


def _plain_name(name: str) -> str:
    return name.lower().removesuffix(".")
