"""Lists objects once and watches them from there, for any kind of object.

While the API is unreachable nothing is reported, and the last known state stands. listing.py
sends the requests; the caller uses the objects.
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
_MIN_WATCH_S, _MAX_WATCH_S = 300.0, 600.0  # random, so that programs do not reconnect at once
# The API sends a bookmark about every minute. A longer silence may mean a dead connection:
# open a new watch from the last version.
SILENCE_S = 150.0
_GONE = 410

_log = logging.getLogger("isthmus.kube")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """The longest silence of a watch, and the first retry delay."""

    silence_s: float = SILENCE_S
    first_retry_s: float = FIRST_RETRY_S


class Follower(Generic[T]):
    """Reports all objects of a source, and then every change, while ``run`` runs."""

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
        """``doing`` describes the activity for the log, such as "watching services"."""
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
        """List, then watch as long as possible; return the delay before the next attempt."""
        self._heard = False
        try:
            found = await self._source.list()
            self._listed(found.items)
            version = found.resource_version
            del found  # frees a long list for the duration of the watch
            while True:
                before = version
                version = await self._watch(version)
                if version == before:
                    # An API that ends watches at once must not cause a tight loop.
                    await asyncio.sleep(self._outage.pause_s())
        except KubeError as exc:
            if exc.status == _GONE and self._heard:
                return 0.0  # the version expired: list again
            if self._failed is not None:
                self._failed(exc)
            return self._outage.failed(exc)

    async def _watch(self, version: str) -> str:
        """Follow one watch to its end; return the last version.

        Raises:
            KubeError: the watch could not be opened, or broke.
        """
        loop = asyncio.get_running_loop()
        timeout_s = random.uniform(_MIN_WATCH_S, _MAX_WATCH_S)
        async with self._source.watch(after=version, timeout_s=timeout_s) as events:
            try:
                async with asyncio.timeout(self._silence_s) as quiet:
                    async for event in events:
                        # Only an event ends an outage, not a mere answer: some APIs accept every
                        # watch and then break it.
                        self._heard = True
                        self._outage.worked()
                        version = event.resource_version
                        if event.item is not None:
                            self._changed(event.change, event.item)
                        quiet.reschedule(loop.time() + self._silence_s)
            except TimeoutError:
                pass  # suspiciously silent: open a new watch from here
        return version


class Outage:
    """Counts the failures of one repeated activity, and sets the delay between attempts."""

    def __init__(self, doing: str, *, cap_s: float, first_s: float = FIRST_RETRY_S) -> None:
        """``doing`` describes the activity for the log, such as "renewing the lease"."""
        self._doing = doing
        self._backoff = Backoff(first_s=min(first_s, cap_s), cap_s=cap_s, chance=random.random)
        self._failures = 0

    def failed(self, error: KubeError) -> float:
        """Log the failure, once per outage; return the delay before the next attempt."""
        self._failures += 1
        if self._failures == 1:
            log(
                _log,
                logging.WARNING,
                "request to the Kubernetes API failed",
                doing=self._doing,
                status=error.status,
                reason=str(error),
            )
        return self._backoff.next_s()

    def pause_s(self) -> float:
        """The delay before the next attempt after a success."""
        return self._backoff.next_s()

    def worked(self) -> None:
        """Record a success, which ends an outage."""
        if self._failures:
            log(
                _log,
                logging.INFO,
                "requests to the Kubernetes API succeed again",
                doing=self._doing,
                failures=self._failures,
            )
        self._failures = 0
        self._backoff.reset()
