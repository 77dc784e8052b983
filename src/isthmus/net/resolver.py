"""Resolves names to socket addresses: static aliases first, then the sources of nsswitch.conf.

This package reads /etc/hosts and queries DNS itself; getaddrinfo() handles any other source
(name_service.py). No lookup waits for another: each has its own socket, and cancelling it ends
it. There may be MOST_PENDING at once, half of them of one client; beyond that the oldest lookup of
the client with the most is dropped, because it is the least likely to be answered.

Why not aiodns 4.0 (pycares 5.2, c-ares; wheels for CPython 3.9 to 3.14 and PyPy), which was tried
first: a cancelled lookup continues. A channel ends all of its queries or none, and of 64
cancelled lookups all were sent again, 308 datagrams in 5 s. A channel for each lookup would end
them, but reads every file each time, hides its sockets from descriptors.py, and with aiodns has
a thread and four descriptors; c-ares supports no other source of nsswitch.conf, nor its actions,
and waits for an unanswered family although the other is answered. CPU time for both families of a
new name on uvloop, a server on loopback, at 1 and at 64 lookups at once: this 211 and 187 µs (a
name in /etc/hosts 15), aiodns 323 and 149, a channel for each 428 and 354, dns.asyncresolver 669
and 688, getaddrinfo in libuv's threads 154 and 118; with a search list of which three domains deny
the name, this 359 and 477, getaddrinfo 158 and 151. 512 unanswered lookups hold 4.0 MB and 512
descriptors here, 2.5 MB with aiodns, 11 MB and 1,024 descriptors with dns.asyncresolver.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.errors import DialFailure, IsthmusError
from isthmus.net.connect import Address, Failed, literal
from isthmus.net.descriptors import descriptors
from isthmus.net.name_service import NamePaths, NameService, SystemLookups
from isthmus.net.rules_names import LookupStatus, in_order
from isthmus.values import HostPort, is_address

if TYPE_CHECKING:
    from isthmus.net.dns_client import DnsClient

MOST_PENDING = 1024
#: Each lookup has a descriptor; all lookups use at most this part of them.
_PART = 8
_LEAST_PENDING = 32
#: A younger lookup is not dropped for another one of the same client.
YOUNG_S = 1.0
#: Attempts per new lookup; dropping a client of a shared lookup frees no slot.
_MOST_GIVEN_UP = 8
#: The limit of a lookup, whatever resolv.conf says.
MOST_LOOKUP_S = 60.0
TOO_MANY = "too many lookups are waiting for the resolver"
_SRV_LOOKUP_S = 5.0
_ANY_PORT = 9  # nothing is sent: a connected datagram socket only queries the routing table
_log = logging.getLogger("isthmus.names")

Found = Callable[[Sequence[Address]], None]
#: Cancels a lookup, without a callback; does nothing afterwards.
Cancel = Callable[[], None]


class UnresolvedError(IsthmusError):
    """A name has no address, or could not be resolved."""


def nothing() -> None:
    """Do nothing: cancels a finished lookup."""


class _Waiter:
    """A request for the addresses of a name."""

    __slots__ = ("failed", "found", "port")

    def __init__(self, port: int, found: Found, failed: Failed) -> None:
        self.port = port
        self.found = found
        self.failed = failed


class _Lookup:
    """One pending name, for all its requests; it counts for one client."""

    __slots__ = ("began_at", "client", "name", "task", "waiters")

    def __init__(self, name: str, client: Hashable, began_at: float) -> None:
        self.name = name
        self.client = client
        self.began_at = began_at
        self.waiters: dict[Hashable, dict[_Waiter, None]] = {}  # by client
        self.task: asyncio.Task[None] | None = None


class Resolver:
    """Resolves names; dials of literal addresses never come here.

    ``client`` is the requester, as far as known: limits are per client.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        aliases: Mapping[str, Sequence[str]] | None = None,
        *,
        max_pending: int | None = None,
        paths: NamePaths | None = None,
        for_peers: bool = True,
    ) -> None:
        """``for_peers`` False: it resolves the program's own links (descriptors.py).

        An alias stands for addresses, each optionally with a port that replaces the requested one.
        """
        self._loop = loop
        self._aliases = {
            _normal(name): tuple(map(_address_and_port, to)) for name, to in (aliases or {}).items()
        }
        self._most = _most_pending() if max_pending is None else max_pending
        self._names = NameService(paths)
        self._for_peers = for_peers
        self._dns: DnsClient | None = None
        self._system = SystemLookups(loop)
        self._lookups: dict[str, _Lookup] = {}
        self._by_client: dict[Hashable, dict[_Lookup, None]] = {}  # oldest first

    @property
    def pending(self) -> int:
        """The number of pending lookups."""
        return len(self._lookups)

    def lookup(
        self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
    ) -> Cancel:
        """Call ``found(addresses)`` or ``failed(why, detail)``, possibly before this returns.

        The returned function cancels the lookup, unless other requests wait for it.
        """
        known = self._known(target)
        if known is not None:
            found(known)
            return nothing
        name = target.host.lower()
        lookup = self._lookups.get(name)
        if lookup is None:
            if not self._has_room(client):
                failed(DialFailure.TOO_MANY, TOO_MANY)
                return nothing
            lookup = self._begin(name, client)
        waiter = _Waiter(target.port, found, failed)
        lookup.waiters.setdefault(client, {})[waiter] = None
        return lambda: self._leave(lookup, client, waiter)

    async def addresses(self, target: HostPort, client: Hashable = "") -> Sequence[Address]:
        """Look up a name or address and wait.

        Raises:
            OSError: the name does not resolve, or too many lookups are pending.
        """
        if is_address(target.host):
            return [literal(target.host, target.port)]
        answer: asyncio.Future[Sequence[Address]] = self._loop.create_future()

        def found(addresses: Sequence[Address]) -> None:
            if not answer.done():
                answer.set_result(addresses)

        def failed(failure: DialFailure, detail: str) -> None:
            if not answer.done():
                answer.set_exception(OSError(detail))

        cancel = self.lookup(target, found, failed, client)
        try:
            return await answer
        finally:
            cancel()

    def close(self) -> None:
        """Cancel all pending lookups."""
        for lookup in list(self._lookups.values()):
            lookup.waiters.clear()
            self._end(lookup)

    # Limits.

    def _has_room(self, client: Hashable) -> bool:
        """Whether one more lookup may start, dropping others if necessary."""
        share = max(1, self._most // 2)
        for _ in range(_MOST_GIVEN_UP):
            mine = len(self._by_client.get(client, ()))
            if mine < share and len(self._lookups) < self._most:
                return True
            if not self._make_room(client, mine, share):
                return False
        return False

    def _make_room(self, client: Hashable, mine: int, share: int) -> bool:
        """Drop the oldest lookup of the client with the most; of its own, none that is young."""
        largest = max(self._by_client, key=lambda it: len(self._by_client[it]), default=client)
        if mine >= share or mine >= len(self._by_client.get(largest, ())):
            largest = client
        oldest = next(iter(self._by_client.get(largest, ())), None)
        if oldest is None:
            return False
        if largest == client and self._loop.time() - oldest.began_at < YOUNG_S:
            return False
        self._give_up(oldest)
        return True

    def _give_up(self, lookup: _Lookup) -> None:
        """Drop it for the client that it counts for; other clients continue to wait."""
        out = lookup.waiters.pop(lookup.client)
        self._hand_over(lookup)
        for waiter in out:
            waiter.failed(DialFailure.TOO_MANY, TOO_MANY)

    def _begin(self, name: str, client: Hashable) -> _Lookup:
        lookup = self._lookups[name] = _Lookup(name, client, self._loop.time())
        self._by_client.setdefault(client, {})[lookup] = None
        lookup.task = self._loop.create_task(self._run(lookup), name=f"resolve:{name}")
        return lookup

    def _leave(self, lookup: _Lookup, client: Hashable, waiter: _Waiter) -> None:
        waiters = lookup.waiters.get(client, {})
        if waiter not in waiters:
            return
        del waiters[waiter]
        if not waiters:
            del lookup.waiters[client]
            if client == lookup.client:
                self._hand_over(lookup)

    def _hand_over(self, lookup: _Lookup) -> None:
        """Its client has left: count it for another waiting client, or end it."""
        if not lookup.waiters:
            self._end(lookup)
            return
        self._uncount(lookup)
        lookup.client = next(iter(lookup.waiters))
        self._by_client.setdefault(lookup.client, {})[lookup] = None

    def _end(self, lookup: _Lookup) -> None:
        """Remove the lookup and cancel its queries."""
        if self._lookups.get(lookup.name) is lookup:
            del self._lookups[lookup.name]
            self._uncount(lookup)
        if lookup.task is not None:
            lookup.task.cancel()

    def _uncount(self, lookup: _Lookup) -> None:
        held = self._by_client[lookup.client]
        del held[lookup]
        if not held:
            del self._by_client[lookup.client]

    # Queries.

    def _known(self, target: HostPort) -> Sequence[Address] | None:
        """Addresses known without a query: an alias, or the hosts file if it comes first."""
        name = _normal(target.host)
        aliases = self._aliases.get(name)
        if aliases is not None:
            return [literal(address, port or target.port) for address, port in aliases]
        first = next(iter(self._names.order()), None)
        if first is None or first.name != "files" or not first.is_plain:
            return None
        known = ordered(self._names.in_hosts(name))
        return interleaved([literal(address, target.port) for address in known]) or None

    async def _run(self, lookup: _Lookup) -> None:
        found: Sequence[str] = ()
        why = ""
        try:
            async with asyncio.timeout(MOST_LOOKUP_S):
                found = await self._find(lookup.name, lookup.client)
        except TimeoutError:
            why = f"no answer within {MOST_LOOKUP_S:g} s"
        except (UnresolvedError, OSError) as exc:
            why = getattr(exc, "strerror", None) or str(exc)
        except Exception as exc:  # the requests are answered in any case
            _log.exception("the lookup of %s failed", lookup.name)
            why = repr(exc)
        lookup.task = None  # the callbacks must not cancel this task
        waiters = [waiter for some in lookup.waiters.values() for waiter in some]
        lookup.waiters.clear()
        self._end(lookup)
        for waiter in waiters:
            try:
                self._tell(waiter, found, why)
            except Exception:
                _log.exception("a callback for %s failed", lookup.name)

    def _tell(self, waiter: _Waiter, found: Sequence[str], why: str) -> None:
        if found:
            waiter.found(interleaved([literal(address, waiter.port) for address in found]))
        else:
            waiter.failed(DialFailure.UNRESOLVED, why or "the name has no address")

    async def _find(self, name: str, client: Hashable) -> Sequence[str]:
        """Query each source in turn.

        Raises:
            UnresolvedError: no source has an address.
            OSError: the C library failed.
        """
        special = _special(_normal(name))
        why = "no such host"
        for source in self._names.order():
            if not source.is_plain:
                return await self._system.find(name, client)
            if source.name == "files":
                found: Sequence[str] = ordered(self._names.in_hosts(name))
                status = LookupStatus.NOT_FOUND
            elif special is not None:
                found, status = special, LookupStatus.NOT_FOUND
            else:
                found, status, why = await self._ask_dns(name)
            if found:
                return found
            if status in source.ends:
                break
        raise UnresolvedError(why)

    async def _ask_dns(self, name: str) -> tuple[Sequence[str], LookupStatus, str]:
        from isthmus.net.dns_client import DnsClient
        from isthmus.net.dns_messages import DnsError

        if self._dns is None:
            self._dns = DnsClient(self._loop, self._names.dns_port, for_peers=self._for_peers)
        conf = self._names.conf()
        why = ""
        for complete in conf.questions(name):
            try:
                found = await self._dns.addresses(conf, complete)
            except DnsError as exc:
                why = why or str(exc)
                if not exc.answered:
                    break  # as in res_search(3): the others would time out as well
                continue
            if found:
                return ordered(found), LookupStatus.SUCCESS, ""
        if why:
            return (), LookupStatus.TRY_AGAIN, why
        return (), LookupStatus.NOT_FOUND, "no such host"


def _most_pending() -> int:
    return min(MOST_PENDING, max(_LEAST_PENDING, descriptors() // _PART))


def _special(name: str) -> Sequence[str] | None:
    """The addresses of a name that is never sent to DNS (RFC 6761 §6.3, §6.4), or None."""
    last = name.rpartition(".")[2]
    if last == "localhost":
        return ("127.0.0.1", "::1")
    return () if last == "invalid" else None


def interleaved(addresses: Sequence[Address]) -> list[Address]:
    """Alternate the families, keeping each family's order (RFC 8305 §4); no duplicates."""
    unique = list(dict.fromkeys(addresses))
    if not unique:
        return []
    first = [a for a in unique if a[0] == unique[0][0]]
    second = [a for a in unique if a[0] != unique[0][0]]
    mixed: list[Address] = []
    for i in range(max(len(first), len(second))):
        mixed += first[i : i + 1] + second[i : i + 1]
    return mixed


def _address_and_port(text: str) -> tuple[str, int]:
    """Read ``ADDRESS`` (port 0) or ``ADDRESS:PORT``."""
    if is_address(text):
        return text, 0
    it = HostPort.parse(text)
    return it.host, it.port


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")


def ordered(addresses: Sequence[str]) -> list[str]:
    """Put the best address first; a single one costs nothing."""
    if len(addresses) < 2:
        return list(addresses)
    return in_order([(address, _source(address)) for address in addresses])


def _source(address: str) -> str:
    """The source address that this host would use for it; empty without a route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # A new socket each time: a datagram socket keeps its source address when it reconnects.
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.connect((address, _ANY_PORT))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:  # no route, no such family here, or no more descriptors
        return ""


async def srv_targets(name: str) -> list[HostPort]:
    """Look up an SRV name, best priority first; records without host and port are skipped.

    Raises:
        OSError: the name does not exist, no answer in time, or no usable record.
    """
    import dns.asyncresolver
    import dns.exception

    try:
        # Not the default resolver, which reads resolv.conf only once.
        resolver = dns.asyncresolver.Resolver()
        answer = await resolver.resolve(name, "SRV", lifetime=_SRV_LOOKUP_S)
    except dns.exception.DNSException as exc:
        raise OSError(f"SRV {name}: {exc}") from exc
    records = sorted(answer, key=lambda record: (record.priority, -record.weight))
    targets = [target for target in map(_target, records) if target is not None]
    if not targets:
        raise OSError(f"SRV {name}: no record names a host and a port")
    return targets


def _target(record: Any) -> HostPort | None:
    host = record.target.to_text(omit_final_dot=True)
    if host in ("", "."):
        return None  # RFC 2782: "the service is decidedly not available at this domain"
    try:
        return HostPort(host, record.port)
    except ValueError:
        return None
