"""What an agent may dial at all: two lists, of what is allowed and of what is denied.

The most specific entry that matches decides: the longer prefix, or the longer suffix of a name,
then the fewer ports; of two that are equal, the one that denies, unless it is there by default. The
order of entries says nothing.

Both what was asked for and every address that it resolves to are looked at: neither may be denied,
and where anything is listed as allowed, one of the two has to be. The flags are read in
settings_endpoint_lists.py; who looks at what a resolver finds is dial/dialers/permitted.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from isthmus.dial.rules_policy import Ports
from isthmus.text.addresses import IpAddress, IpNetwork, Verdict, Weighed, reached, weigh
from isthmus.values import HostPort

#: What is shown where nothing denies, and nothing allows it either.
UNLISTED = "(not allowed)"
ALL_PORTS = Ports(1, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a list: addresses, or names, and ports.

    Of the two, ``network`` or ``name`` is given. A name that begins with ``*.`` stands for every
    name below it, and ``*`` alone for every name. ``text`` is how it was typed.
    """

    text: str
    network: IpNetwork | None = None
    name: str = ""
    ports: Ports = ALL_PORTS

    def rank(self) -> tuple[int, int]:
        """How specific it is: more is more."""
        if self.network is not None:
            reach = self.network.prefixlen
        elif self.name.startswith("*"):
            reach = len(self.name)
        else:
            reach = 1000  # a whole name is shorter than this, and more than any pattern
        return reach, self.ports.low - self.ports.high

    def has_name(self, name: str) -> bool:
        """Tell whether it stands for this name, given in small letters, without a final dot."""
        if self.name.startswith("*"):
            return name.endswith(self.name[1:])
        return name == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why something may not be dialed: ``entry`` of the list, and a sentence."""

    entry: str
    why: str


class EndpointLists:
    """Both lists of an agent; each question costs one look at every entry, and is remembered."""

    def __init__(
        self,
        *,
        allow: Iterable[Entry] = (),
        deny: Iterable[Entry] = (),
        deny_by_default: Iterable[Entry] = (),
    ) -> None:
        """Take the lists; what is denied by default is allowed by whoever lists exactly that."""
        deny, deny_by_default = tuple(deny), tuple(deny_by_default)
        self.allow = tuple(dict.fromkeys(allow))
        self.deny = tuple(dict.fromkeys((*deny_by_default, *deny)))
        # The most specific first; what denies before what allows the same.
        both = [(it, Verdict.DENIED) for it in deny]
        both += [(it, Verdict.ALLOWED) for it in self.allow]
        both += [(it, Verdict.DENIED) for it in deny_by_default]
        ranked = sorted(both, key=lambda it: it[0].rank(), reverse=True)  # a stable sort
        self._networks = [it for it in ranked if it[0].network is not None]
        self._names = [it for it in ranked if it[0].network is None]
        # The same targets are dialed again and again.
        self.refuse_address = lru_cache(maxsize=4096)(self._refuse_address)

    def refuse_name(self, name: str, port: int) -> Refusal | None:
        """Say why a name may not even be looked up; None: what it resolves to decides."""
        verdict, by = self._of_name(name, port)
        return _denied(by, name, port) if verdict is Verdict.DENIED and by is not None else None

    def refuse_found(self, name: str, host: str, port: int) -> Refusal | None:
        """Say why an address that a name resolves to may not be dialed."""
        verdict, by = self._of_host(host, port)
        if verdict is Verdict.DENIED and by is not None:
            return _denied(by, host, port)
        allowed = Verdict.ALLOWED in (verdict, self._of_name(name, port)[0])
        return None if allowed or not self.allow else _unlisted(host, port)

    def _refuse_address(self, host: str, port: int) -> Refusal | None:
        """Say why an address that was asked for may not be dialed."""
        verdict, by = self._of_host(host, port)
        if verdict is Verdict.DENIED and by is not None:
            return _denied(by, host, port)
        return _unlisted(host, port) if self.allow and verdict is not Verdict.ALLOWED else None

    def _of_name(self, name: str, port: int) -> tuple[Verdict, Entry | None]:
        plain = name.lower().removesuffix(".")
        for entry, verdict in self._names:
            if entry.ports.low <= port <= entry.ports.high and entry.has_name(plain):
                return verdict, entry
        return Verdict.UNLISTED, None

    def _of_host(self, host: str, port: int) -> tuple[Verdict, Entry | None]:
        found = weigh(reached(host), lambda address: self._of_address(address, port))
        return found.verdict, found.by

    def _of_address(self, address: IpAddress, port: int) -> Weighed[Entry | None]:
        for entry, verdict in self._networks:
            assert entry.network is not None  # these are those that have one
            if entry.ports.low <= port <= entry.ports.high and address in entry.network:
                return Weighed(verdict, entry)
        return Weighed(Verdict.UNLISTED, None)


def _denied(by: Entry, host: str, port: int) -> Refusal:
    return Refusal(
        entry=by.text, why=f"{by.text} of the agent's --endpoint-deny has {_shown(host, port)}"
    )


def _unlisted(host: str, port: int) -> Refusal:
    return Refusal(
        entry=UNLISTED, why=f"the agent's --endpoint-allow does not have {_shown(host, port)}"
    )


def _shown(host: str, port: int) -> str:
    return str(HostPort(host.partition("%")[0], port))
