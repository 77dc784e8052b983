"""Listing objects once and watching them from there: the loop, for any kind of object.

While the API is away nothing is said, and what was last known stands. How objects are asked for
is in listing.py; what is done with them is the caller's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from isthmus.errors import KubeError
from isthmus.kube.api import Change
from isthmus.kube.outage import Outage

CAP_S = 30.0
FIRST_RETRY_S = 0.5
_MIN_WATCH_S, _MAX_WATCH_S = 300.0, 600.0  # spread, or all programs would come back in step
# The API sends a bookmark every minute or so. Silence for longer may be a connection that died
# without a word: watch anew, from where we were.
SILENCE_S = 150.0
_GONE = 410

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Generic[T]):
    """One line of a watch; ``resource_version`` is where to go on from.

    A bookmark only says how far the watch has come: there is no ``item``.
    """

    change: Change
    item: T | None
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """All objects of a kind at one version, from which a watch goes on."""

    items: Sequence[T]
    resource_version: str


class Source(Protocol[T]):
    """Objects of one kind. Every call raises KubeError, and none waits for ever."""

    async def list(self) -> Listing[T]:
        """Read all of them."""

    def watch(
        self, *, after: str, timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[Event[T]]]:
        """Hear of every change after a version.

        The API ends a watch now and then. A version too old for it is a KubeError with status
        410, on entry or from the iterator: list again. Silence is for the caller to bound.
        """


class Follower(Generic[T]):
    """Tells of all objects of a source, and then of every change, while ``run`` runs."""

    def __init__(
        self,
        source: Source[T],
        doing: str,
        *,
        listed: Callable[[Sequence[T]], None],
        changed: Callable[[Change, T], None],
        failed: Callable[[KubeError], None] | None = None,
        silence_s: float = SILENCE_S,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        """``doing`` is a few words for the log, such as "watching services"."""
        self._source = source
        self._listed = listed
        self._changed = changed
        self._failed = failed
        self._silence_s = silence_s
        self._outage = Outage(doing, cap_s=CAP_S, first_s=first_retry_s)
        self._heard = False

    async def run(self) -> None:
        """List and watch, until cancelled."""
        while True:
            delay_s = await self._follow()
            if delay_s:
                await asyncio.sleep(delay_s)

    async def _follow(self) -> float:
        """List, then watch as long as that works; give the delay before the next time."""
        self._heard = False
        try:
            found = await self._source.list()
            self._listed(found.items)
            version = found.resource_version
            del found  # a long list, and a watch lasts
            while True:
                before = version
                version = await self._watch(version)
                if version == before:
                    # Whoever ends watches at once is not to be asked in a tight loop.
                    await asyncio.sleep(self._outage.pause_s())
        except KubeError as exc:
            if exc.status == _GONE and self._heard:
                return 0.0  # where we were has aged out: simply list again
            if self._failed is not None:
                self._failed(exc)
            return self._outage.failed(exc)

    async def _watch(self, version: str) -> str:
        """Follow one watch to its end; give the version that it came to.

        Raises:
            KubeError: it could not be opened, or broke.
        """
        loop = asyncio.get_running_loop()
        timeout_s = random.uniform(_MIN_WATCH_S, _MAX_WATCH_S)
        async with self._source.watch(after=version, timeout_s=timeout_s) as events:
            try:
                async with asyncio.timeout(self._silence_s) as quiet:
                    async for event in events:
                        # An event, and not a mere answer, ends an outage: some APIs accept every
                        # watch and then break it.
                        self._heard = True
                        self._outage.worked()
                        version = event.resource_version
                        if event.item is not None:
                            self._changed(event.change, event.item)
                        quiet.reschedule(loop.time() + self._silence_s)
            except TimeoutError:
                pass  # too quiet to be true: from here again
        return version
