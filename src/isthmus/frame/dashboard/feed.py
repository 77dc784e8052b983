"""The feed of one program: one sampler for all viewers, running only while there are any.

Once a second it takes a snapshot and sends what changed; new viewers get everything first. Between
steps of its work, tunnels continue (``in_steps``).

The cost of a tick with 5,000 tunnels, at best, on one core of a small shared machine (twice as
much while others used it):

- the snapshot itself, in one piece: 55 ms, 11 ms for each thousand tunnels;
- comparing, if nothing changed: 5 ms in 11 steps of at most 0.7 ms;
- comparing and writing, if all changed: 14 ms in 64 steps; 54 kB for each viewer;
- a full for new viewers: 50 ms in 104 steps of at most 0.7 ms; 1.4 MB for each.

Because of the first, a program whose snapshot takes long is sampled less often (``rest_s``).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from isthmus import __version__
from isthmus.errors import ProtocolError
from isthmus.frame.admin.answers import Watched, settled
from isthmus.frame.dashboard.delta import Json, Moment, Steps, T, at_once, delta, event, full
from isthmus.frame.dashboard.picture import MOST_RECORDS
from isthmus.frame.dashboard.viewers import Viewer, Viewers
from isthmus.logs import log

EVERY_S = 1.0
MOST_TUNNELS = 5000
#: A snapshot blocks the loop: it may take a twentieth of the time at most.
_REST = 20
_LONGEST_REST_S = 10.0
OWN = "0"
_log = logging.getLogger("isthmus.dashboard")
#: Ten times the size of a full with 5,000 tunnels.
MOST_EVENT_BYTES = 16 * 1024 * 1024
_BREAK = b"\n\n"


class Feed(Protocol):
    """A feed for viewers, of one program or of several (merging.py)."""

    def enter(self) -> Viewer | None:
        """Add a viewer; None if there are too many."""

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer."""

    def close(self) -> None:
        """End every stream, and accept no more viewers."""


async def in_steps(steps: Steps[T]) -> T:
    """Run the steps, and let other work continue between them."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            made: T = done.value
            return made
        await asyncio.sleep(0)


def rest_s(took_s: float) -> float:
    """The time until the next snapshot, by how long the last one took."""
    return min(max(EVERY_S, took_s * _REST), _LONGEST_REST_S)


def rfc3339(now: datetime) -> str:
    """A time for events, with milliseconds: the page computes rates from the differences."""
    return now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def hello(sources: list[Json]) -> bytes:
    """The first event of a stream."""
    data = {"version": __version__, "everySeconds": int(EVERY_S), "sources": sources}
    return at_once(event("hello", data))


class LocalFeed:
    """The feed of the program that it runs in."""

    def __init__(
        self, watched: Watched, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._watched = watched
        self._clock = clock
        self._viewers = Viewers()
        self._newcomers = asyncio.Event()
        self._sampler: asyncio.Task[None] | None = None

    def enter(self) -> Viewer | None:
        """Add a viewer, which gets a hello now and a full soon; the first starts the sampler."""
        viewer = self._viewers.add()
        if viewer is None:
            return None
        viewer.push(hello([self.source()]))
        self._newcomers.set()
        if self._sampler is None:
            self._sampler = asyncio.create_task(self._sample(), name="dashboard")
            self._sampler.add_done_callback(self._ended)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer; the last one stops the sampler."""
        self._viewers.remove(viewer)
        if not len(self._viewers) and self._sampler is not None:
            self._sampler.cancel()
            self._sampler = None

    def close(self) -> None:
        """End every stream, and accept no more viewers."""
        self._viewers.close()

    def source(self) -> Json:
        """The program's entry in a hello."""
        watched = self._watched
        return {
            "id": OWN,
            "program": watched.program,
            "instance": watched.instance,
            "address": "",
            "canEnd": watched.end_tunnel is not None,
        }

    def _ended(self, sampler: asyncio.Task[None]) -> None:
        if sampler.cancelled():
            return
        # A bug. Pages reconnect by themselves, which starts a new sampler.
        log(_log, logging.ERROR, "dashboard feed failed", exc_info=sampler.exception())
        self._sampler = None
        self._viewers.end()

    async def _sample(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        moment = await self._take(None)
        due += rest_s(clock() - due)
        while True:
            await self._welcome(moment)
            if not await self._wait(due):
                continue
            due = clock()
            before, moment = moment, await self._take(moment)
            due += rest_s(clock() - due)
            made = await in_steps(delta(before, moment, self._head(moment)))
            self._viewers.tell(await in_steps(event("delta", made)))

    async def _wait(self, due: float) -> bool:
        """Wait until the next sample is due; False if a viewer came before that."""
        try:
            async with asyncio.timeout_at(due):
                await self._newcomers.wait()
        except TimeoutError:
            return True
        return False

    async def _welcome(self, moment: Moment) -> None:
        """Send a full to new viewers, until all have one."""
        made: bytes | None = None
        self._newcomers.clear()
        while new := [viewer for viewer in self._viewers if not viewer.settled]:
            if made is None:
                data = await in_steps(full(moment, self._head(moment)))
                made = await in_steps(event("full", data))
            for viewer in new:
                viewer.settled = True
                viewer.push(made)

    async def _take(self, before: Moment | None) -> Moment:
        watched = self._watched
        known, recorded = (before.records, before.recorded) if before else ((), 0)
        if watched.records is not None:
            lines, recorded = watched.records(recorded, MOST_RECORDS)
            known = (*known, *lines)[-MOST_RECORDS:]
        return Moment(
            view=await settled(watched.snapshot(MOST_TUNNELS)),
            steps=watched.history.steps(),
            audited=watched.records is not None,
            records=known,
            recorded=recorded,
        )

    def _head(self, moment: Moment) -> Json:
        taken = getattr(moment.view, "taken_at", None) or self._clock()
        return {"source": OWN, "at": rfc3339(taken)}


class EventReader:
    """Splits arriving bytes into events; holds at most one incomplete event.

    ``taken_bytes`` is the number of bytes so far.
    """

    __slots__ = ("_looked", "_rest", "taken_bytes")

    def __init__(self) -> None:
        self.taken_bytes = 0
        self._rest = bytearray()
        self._looked = 0

    def take(self, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Take some bytes, and return the events completed by them; comments are skipped.

        Raises:
            ProtocolError: it is not such a stream, or an event is too large.
        """
        self._rest += data
        self.taken_bytes += len(data)
        found: list[tuple[str, dict[str, Any]]] = []
        while (end := self._rest.find(_BREAK, self._looked)) >= 0:
            one = _read(bytes(self._rest[:end]))
            del self._rest[: end + len(_BREAK)]
            self._looked = 0
            found += [one] if one is not None else []
        # The separator may be split.
        self._looked = max(0, len(self._rest) - 1)
        if len(self._rest) > MOST_EVENT_BYTES:
            raise ProtocolError(f"an event of the feed is larger than {MOST_EVENT_BYTES} bytes")
        return found


def _read(block: bytes) -> tuple[str, dict[str, Any]] | None:
    name, data = "", b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.strip().decode("utf-8", "replace")
        elif field == b"data":
            data = value
    if not data:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as exc:  # the latter by [[[[…
        raise ProtocolError("an event of the feed is not JSON") from exc
    if not isinstance(found, dict):
        raise ProtocolError("an event of the feed is not a JSON object")
    return name, found
