"""A plain TCP balancer, as a cloud provides in front of servers, on Isthmus' own data path.

``python -m isthmus.lab.balancer --listen 8091 --by random --to one:8091 --to two:8091`` runs until
SIGTERM. It forwards half-closes and resets as such. A backend that does not answer within a second
is skipped; a client that no backend accepts is reset. ``pick`` and ``Outages``, which decide where
a connection goes, take chance and time as arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from isthmus.dial.dialers.direct import DirectDial, DirectDialer
from isthmus.errors import ConfigError, DialFailure
from isthmus.lab.servers import HttpEnd, JoinedEnds, PageAnswer, plain, until_told
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import NO_METADATA_BY_NAME
from isthmus.net.socket_end import SocketEnd
from isthmus.tunnel.end import End, Ending
from isthmus.values import HostPort

T = TypeVar("T")

DIAL_TIMEOUT_S = 1.0
MAX_CONNECTIONS = 10_000

#: How long a backend that did not answer gets no connections, as after a failed health check.
DOWN_S = 1.0


class BalanceBy(Enum):
    """The balancing method."""

    RANDOM = "random"
    SOURCE = "source"  # the same backend for the same client address
    LEAST = "least"  # the one with the fewest open connections


def pick(
    backends: Sequence[HostPort],
    by: BalanceBy,
    *,
    source_address: str,
    chance: Callable[[], float],
    down: Collection[HostPort] = (),
    load: Mapping[HostPort, int] | None = None,
) -> list[HostPort]:
    """Order the backends that are not down for trying, each once.

    ``chance`` returns numbers in [0, 1); ``load`` is the number of connections of each backend, 0
    if it is not listed.
    """
    up = [one for one in dict.fromkeys(backends) if one not in down]
    match by:
        case BalanceBy.RANDOM:
            return _shuffled(up, chance)
        case BalanceBy.SOURCE:
            return sorted(up, key=lambda one: _rank(source_address, one))
        case BalanceBy.LEAST:
            loads = load or {}
            # Sorting is stable, so equals stay in random order.
            return sorted(_shuffled(up, chance), key=lambda one: loads.get(one, 0))


def _shuffled(backends: Sequence[HostPort], chance: Callable[[], float]) -> list[HostPort]:
    left, order = list(backends), []
    while left:
        order.append(left.pop(int(chance() * len(left))))
    return order


def _rank(source_address: str, backend: HostPort) -> bytes:
    # Rendezvous hashing: every pair has its own rank, so that removing a backend does not affect
    # the others. Python's hash() differs between processes.
    return blake2b(f"{source_address} {backend}".encode(), digest_size=8).digest()


class Outages:
    """The backends that did not answer, each remembered for ``down_s``."""

    def __init__(self, *, down_s: float = DOWN_S) -> None:
        self._down_s = down_s
        self._until: dict[HostPort, float] = {}

    def failed(self, backend: HostPort, *, now: float) -> None:
        """Skip a backend for a while from now on."""
        self._until[backend] = now + self._down_s

    def down(self, *, now: float) -> frozenset[HostPort]:
        """The backends to skip."""
        return frozenset(backend for backend, until in self._until.items() if now < until)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSettings:
    """The settings of a balancer. Port 0 is any free port; no ``host`` is every address."""

    port: int
    host: str = ""
    by: BalanceBy
    backends: tuple[HostPort, ...]
    status_port: int | None = None
    dial_timeout_s: float = DIAL_TIMEOUT_S
    down_s: float = DOWN_S


class Passage:
    """One client on its way to a backend: tries backends in order until one answers."""

    __slots__ = ("_balancer", "_client", "_dial", "_order", "_trying")

    def __init__(self, balancer: Balancer, client: SocketEnd, order: list[HostPort]) -> None:
        self._balancer = balancer
        self._client = client
        self._order = order
        self._trying: HostPort | None = None
        self._dial: DirectDial | None = None

    def begin(self) -> None:
        """Try the first backend; everything may be over before this returns."""
        self._client.on_done = self._client_gone
        self._try_next()

    def give_up(self) -> None:
        self._client.abort(Ending.DRAINED)

    def _try_next(self) -> None:
        self._dial = None
        if not self._order:
            self._client.abort(Ending.RESET)
            return
        backend = self._trying = self._order.pop(0)
        dial = self._balancer.dialer.dial(
            backend,
            timeout_s=self._balancer.settings.dial_timeout_s,
            reached=self._reached,
            failed=self._failed,
        )
        if self._trying is backend:  # otherwise the backend answered at once
            self._dial = dial

    def _reached(self, far: SocketEnd) -> None:
        backend, self._trying, self._dial = self._trying, None, None
        assert backend is not None
        self._balancer.reached(self, self._client, far, backend)

    def _failed(self, failure: DialFailure, detail: str) -> None:
        backend, self._trying = self._trying, None
        assert backend is not None
        self._balancer.failed(backend, failure)
        self._try_next()

    def _client_gone(self, end: End, ending: Ending) -> None:
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        self._balancer.given_up(self)


class Balancer:
    """A running balancer."""

    def __init__(self, settings: BalancerSettings) -> None:
        self.settings = settings
        self._loop = loop = asyncio.get_running_loop()
        self._poller = Poller(loop)
        self._resolver = Resolver(loop)
        self.dialer = DirectDialer(loop, self._poller, self._resolver, metadata=NO_METADATA_BY_NAME)
        self._outages = Outages(down_s=settings.down_s)
        self._listeners: list[Listener] = []
        self._passages: set[Passage] = set()
        self._connections = JoinedEnds(loop, at_most=MAX_CONNECTIONS)
        self._asking = JoinedEnds(loop)
        #: Clients that no backend accepted, or that did not wait.
        self.unserved = 0
        #: By backend: open connections, all connections so far, and failed dials.
        self.open: Counter[HostPort] = Counter()
        self.opened: Counter[HostPort] = Counter()
        self.not_answered: Counter[HostPort] = Counter()
        self.port = 0
        self.status_port = 0

    def start(self) -> None:
        """Bind the ports and start balancing.

        Raises:
            ConfigError: a port cannot be bound; ``stop`` releases the other.
        """
        settings = self.settings
        bound = bind_tcp(settings.host, settings.port, flag="--listen")
        self._listeners += [Listener(self._loop, self._poller, s, self._accept) for s in bound]
        self.port = self._listeners[-1].port
        if settings.status_port is not None:
            (sock,) = bind_tcp("127.0.0.1", settings.status_port, flag="--status-port")
            self._listeners.append(Listener(self._loop, self._poller, sock, self._accept_asking))
            self.status_port = self._listeners[-1].port

    async def stop(self) -> None:
        """Close everything; open connections are reset."""
        for listener in self._listeners:
            listener.stop()
        for passage in list(self._passages):
            passage.give_up()
        self._connections.abort_all()
        self._asking.abort_all()
        self._resolver.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes sockets
        self._poller.shut_down()

    @property
    def dialing(self) -> int:
        return len(self._passages)

    def status(self) -> dict[str, object]:
        down = self._outages.down(now=self._loop.time())
        backends = {
            str(one): {
                "open": self.open[one],
                "opened": self.opened[one],
                "failed": self.not_answered[one],
                "down": one in down,
            }
            for one in self.settings.backends
        }
        return {"by": self.settings.by.value, "backends": backends, "unserved": self.unserved}

    # Clients.

    def _accept(self, sock: socket.socket) -> None:
        try:
            source = plain(sock.getpeername()[0])
        except OSError:  # reset before accept
            sock.close()
            self.unserved += 1
            return
        client = SocketEnd(sock, self._poller)
        if self._connections.full or self.dialing >= MAX_CONNECTIONS:
            client.abort(Ending.STALLED)
            self.unserved += 1
            return
        order = pick(
            self.settings.backends,
            self.settings.by,
            source_address=source,
            chance=random.random,
            down=self._outages.down(now=self._loop.time()),
            load=self.open,
        )
        passage = Passage(self, client, order)
        self._passages.add(passage)
        passage.begin()

    def reached(
        self, passage: Passage, client: SocketEnd, far: SocketEnd, backend: HostPort
    ) -> None:
        """A backend accepted a client: join them."""
        self._passages.discard(passage)
        self.open[backend] += 1
        self.opened[backend] += 1
        self._connections.join(client, far, partial(self._over, backend))

    def failed(self, backend: HostPort, failure: DialFailure) -> None:
        """A backend did not accept a client."""
        self.not_answered[backend] += 1
        if failure is not DialFailure.TOO_MANY:  # that is this process's fault, not the backend's
            self._outages.failed(backend, now=self._loop.time())

    def given_up(self, passage: Passage) -> None:
        """A client left, or was reset, before a backend accepted it."""
        self._passages.discard(passage)
        self.unserved += 1

    def _over(self, backend: HostPort) -> None:
        self.open[backend] -= 1

    # The status page.

    def _accept_asking(self, sock: socket.socket) -> None:
        end = SocketEnd(sock, self._poller)
        if self._asking.full:
            end.abort(Ending.STALLED)
            return
        self._asking.join(end, HttpEnd(self._page))

    def _page(self, method: str, path: str) -> PageAnswer:
        body = json.dumps(self.status(), indent=2).encode() + b"\n"
        return PageAnswer(200 if method in ("GET", "HEAD") else 405, "application/json", body)


def _port_of(text: str) -> int:
    return HostPort.parse(f"localhost:{text}").port


def _listen_of(text: str) -> tuple[str, int]:
    if ":" not in text:
        return "", _port_of(text)
    address = HostPort.parse(text)
    return address.host, address.port


def _read(flag: str, text: str, reader: Callable[[str], T]) -> T:
    try:
        return reader(text)
    except ValueError as exc:
        raise ConfigError(f"{flag} {text}: {exc}") from exc


async def _run(settings: BalancerSettings) -> None:
    balancer = Balancer(settings)
    try:
        balancer.start()
        await until_told("balancer: ready")
    finally:
        await balancer.stop()


def main(args: Sequence[str] | None = None) -> int:
    """Balance until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m isthmus.lab.balancer", description=__doc__)
    kinds = [by.value for by in BalanceBy]
    parser.add_argument("--listen", required=True, metavar="[ADDRESS:]PORT", help="Bind this")
    parser.add_argument("--by", choices=kinds, default=BalanceBy.RANDOM.value, help="How to choose")
    parser.add_argument(
        "--to", required=True, action="append", metavar="HOST:PORT", help="A backend; repeat it"
    )
    parser.add_argument("--status-port", help="Say on this loopback port what went where")
    told = parser.parse_args(args)
    try:
        host, port = _read("--listen", told.listen, _listen_of)
        backends = tuple(_read("--to", text, HostPort.parse) for text in told.to)
        asked = told.status_port
        status_port = None if asked is None else _read("--status-port", asked, _port_of)
        settings = BalancerSettings(
            host=host,
            port=port,
            by=BalanceBy(told.by),
            backends=backends,
            status_port=status_port,
        )
        asyncio.run(_run(settings))
    except ConfigError as exc:
        sys.stderr.write(f"balancer: {exc}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
