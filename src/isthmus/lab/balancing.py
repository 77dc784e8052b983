"""Which backend a new connection goes to: the order to try them in, and which to leave out.

Pure: chance and time come in as arguments. The program that moves bytes is balancer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from hashlib import blake2b

from isthmus.values import HostPort

#: How long a backend that did not answer gets no connection, as if a health check had failed.
DOWN_S = 1.0


class By(Enum):
    """How a balancer chooses."""

    RANDOM = "random"
    SOURCE = "source"  # the same backend for the same client address
    LEAST = "least"  # the one with the fewest open connections


def pick(
    backends: Sequence[HostPort],
    by: By,
    *,
    source_address: str,
    chance: Callable[[], float],
    down: Collection[HostPort] = (),
    load: Mapping[HostPort, int] | None = None,
) -> list[HostPort]:
    """Put the backends that are not down into the order to try them in, each once.

    ``chance`` gives numbers from 0 up to, not including, 1; ``load`` is how many connections each
    has, none when it is not named.
    """
    up = [one for one in dict.fromkeys(backends) if one not in down]
    match by:
        case By.RANDOM:
            return _shuffled(up, chance)
        case By.SOURCE:
            return sorted(up, key=lambda one: _rank(source_address, one))
        case By.LEAST:
            loads = load or {}
            # Sorting keeps the order of equals, so equals are chosen by chance.
            return sorted(_shuffled(up, chance), key=lambda one: loads.get(one, 0))


def _shuffled(backends: Sequence[HostPort], chance: Callable[[], float]) -> list[HostPort]:
    left, order = list(backends), []
    while left:
        order.append(left.pop(int(chance() * len(left))))
    return order


def _rank(source_address: str, backend: HostPort) -> bytes:
    # Rendezvous hashing: every pair has a rank of its own, so that a backend that goes changes
    # nothing about the others. Python's hash() is another one in each process.
    return blake2b(f"{source_address} {backend}".encode(), digest_size=8).digest()


class Outages:
    """Remembers which backends did not answer, each for ``down_s``."""

    def __init__(self, *, down_s: float = DOWN_S) -> None:
        self._down_s = down_s
        self._until: dict[HostPort, float] = {}

    def failed(self, backend: HostPort, *, now: float) -> None:
        """Leave a backend out from now on, for a while."""
        self._until[backend] = now + self._down_s

    def down(self, *, now: float) -> frozenset[HostPort]:
        """Tell which backends to leave out."""
        return frozenset(backend for backend, until in self._until.items() if now < until)
