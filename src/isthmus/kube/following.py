"""Listing objects once and watching them from there: the loop, for any kind of object.

While the API is away nothing is said, and what was last known stands. How objects are asked for
is in listing.py; what is done with them is the caller's.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from isthmus.errors import KubeError
from isthmus.kube.api import Change, ObjectSource
from isthmus.logs import log
from isthmus.text.pacing import Backoff

CAP_S = 30.0
FIRST_RETRY_S = 0.5
_MIN_WATCH_S, _MAX_WATCH_S = 300.0, 600.0  # spread, or all programs would come back in step
# The API sends a bookmark every minute or so. Silence for longer may be a connection that died
# without a word: watch anew, from where we were.
SILENCE_S = 150.0
_GONE = 410

_log = logging.getLogger("isthmus.kube")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """How long a watch may be silent, and when what failed is tried again at first."""

    silence_s: float = SILENCE_S
    first_retry_s: float = FIRST_RETRY_S


class Follower(Generic[T]):
    """Tells of all objects of a source, and then of every change, while ``run`` runs."""

    def __init__(
        self,
        source: ObjectSource[T],
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


class Outage:
    """Counts the failures of one thing done again and again, and spaces the attempts."""

    def __init__(self, doing: str, *, cap_s: float, first_s: float = FIRST_RETRY_S) -> None:
        """``doing`` is a few words for the log, such as "renewing the lease"."""
        self._doing = doing
        self._backoff = Backoff(first_s=min(first_s, cap_s), cap_s=cap_s, chance=random.random)
        self._failures = 0

    def failed(self, error: KubeError) -> float:
        """Say so, once per outage; give the delay before the next attempt."""
        self._failures += 1
        if self._failures == 1:
            log(
                _log,
                logging.WARNING,
                "the Kubernetes API fails",
                doing=self._doing,
                status=error.status,
                reason=str(error),
            )
        return self._backoff.next_s()

    def pause_s(self) -> float:
        """Give the delay before trying again after something that was no failure."""
        return self._backoff.next_s()

    def worked(self) -> None:
        """An attempt worked: an outage, if there was one, is over."""
        if self._failures:
            log(
                _log,
                logging.INFO,
                "the Kubernetes API works again",
                doing=self._doing,
                failures=self._failures,
            )
        self._failures = 0
        self._backoff.reset()
