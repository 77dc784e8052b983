"""From a name to socket addresses: static aliases first, then the system's resolver."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence

from isthmus.errors import DialFailure
from isthmus.net.connect import Address, Failed, literal
from isthmus.values import HostPort, is_address

Found = Callable[[Sequence[Address]], None]


class Resolver:
    """Looks names up; literal addresses never come here on the dial path."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        aliases: Mapping[str, Sequence[str]] | None = None,
        *,
        max_pending: int = 1024,
    ) -> None:
        self._loop = loop
        self._aliases = {_normal(name): tuple(to) for name, to in (aliases or {}).items()}
        self._max_pending = max_pending
        self._pending: set[asyncio.Task[None]] = set()

    def lookup(self, target: HostPort, found: Found, failed: Failed) -> None:
        """Call ``found(addresses)`` or ``failed(why, detail)``; at once for aliases."""
        aliases = self._aliases.get(_normal(target.host))
        if aliases is not None:
            found([literal(address, target.port) for address in aliases])
        elif len(self._pending) >= self._max_pending:
            failed(DialFailure.TOO_MANY, "too many lookups are waiting for the resolver")
        else:
            task = self._loop.create_task(
                self._ask_system(target, found, failed), name=f"resolve:{target.host}"
            )
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    def forget(self, found: Found) -> None:
        """Nobody waits for this answer any more; it may come all the same."""

    async def _ask_system(self, target: HostPort, found: Found, failed: Failed) -> None:
        try:
            infos = await self._loop.getaddrinfo(
                target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
            )
        except (OSError, UnicodeError) as exc:
            failed(DialFailure.UNRESOLVED, getattr(exc, "strerror", None) or str(exc))
            return
        found(interleaved([(info[0], info[4]) for info in infos]))  # type: ignore[misc]

    async def addresses(self, target: HostPort) -> Sequence[Address]:
        """Look a name or address up and wait.

        Raises:
            OSError: the name does not resolve, or too many lookups are waiting.
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

        self.lookup(target, found, failed)
        return await answer

    def close(self) -> None:
        """Forget the lookups that are still waiting."""
        for task in list(self._pending):
            task.cancel()


def interleaved(addresses: Sequence[Address]) -> list[Address]:
    """Alternate the families, keeping each family's order (RFC 8305 §4); no repeats."""
    unique = list(dict.fromkeys(addresses))
    if not unique:
        return []
    first = [a for a in unique if a[0] == unique[0][0]]
    second = [a for a in unique if a[0] != unique[0][0]]
    mixed: list[Address] = []
    for i in range(max(len(first), len(second))):
        mixed += first[i : i + 1] + second[i : i + 1]
    return mixed


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")
