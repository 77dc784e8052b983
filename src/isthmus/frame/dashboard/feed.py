"""The feed of one program: one sampler for all viewers, running only while somebody looks.

Once a second it takes a snapshot and tells everybody what changed; newcomers get everything first.
Between steps of its work it lets tunnels go on (``in_steps``).

What a tick costs with 5,000 tunnels, at best, on one core of a small machine that others used as
well (twice as much when they did):

- the snapshot itself, in one piece: 55 ms, 11 ms for each thousand tunnels;
- finding that nothing moved: 5 ms in 11 steps of at most 0.7 ms;
- finding that all moved, and writing it: 14 ms in 64 steps; 54 kB for each viewer;
- a full for newcomers: 50 ms in 104 steps of at most 0.7 ms; 1.4 MB for each.

The first is why a program that takes long to look at is looked at less often (``rest_s``).
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
#: A snapshot holds everybody up: it is to be a twentieth of the time at most.
_REST = 20
_LONGEST_REST_S = 10.0
OWN = "0"
_log = logging.getLogger("isthmus.dashboard")
#: Ten times a full with 5,000 tunnels.
MOST_EVENT_BYTES = 16 * 1024 * 1024
_BREAK = b"\n\n"


class Feed(Protocol):
    """Where viewers come to; of one program, or of several (merging.py)."""

    def enter(self) -> Viewer | None:
        """One more viewer; None when there are too many."""

    def leave(self, viewer: Viewer) -> None:
        """A viewer has gone."""

    def close(self) -> None:
        """End every stream, and let nobody in any more."""


async def in_steps(steps: Steps[T]) -> T:
    """Make it, and let others go on between the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            made: T = done.value
            return made
        await asyncio.sleep(0)


def rest_s(took_s: float) -> float:
    """How long after a snapshot the next one is due, when it took so long."""
    return min(max(EVERY_S, took_s * _REST), _LONGEST_REST_S)


def rfc3339(now: datetime) -> str:
    """A time as events have it, with milliseconds: rates are made of the differences."""
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
        """One more viewer, which gets a hello at once and a full soon; the first starts it all."""
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
        """A viewer has gone; the last one ends it all."""
        self._viewers.remove(viewer)
        if not len(self._viewers) and self._sampler is not None:
            self._sampler.cancel()
            self._sampler = None

    def close(self) -> None:
        """End every stream, and let nobody in any more."""
        self._viewers.close()

    def source(self) -> Json:
        """The program, as a hello names it."""
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
        # A mistake of ours. Pages come again by themselves, and with them a new sampler.
        log(_log, logging.ERROR, "the dashboard's feed failed", exc_info=sampler.exception())
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
        """Wait until it is time for a sample; False when somebody came before that."""
        try:
            async with asyncio.timeout_at(due):
                await self._newcomers.wait()
        except TimeoutError:
            return True
        return False

    async def _welcome(self, moment: Moment) -> None:
        """Give everything to those who have nothing, until all have."""
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
    """Cuts what arrives into events; keeps at most one that is not whole.

    ``taken_bytes`` is how much has arrived in all.
    """

    __slots__ = ("_looked", "_rest", "taken_bytes")

    def __init__(self) -> None:
        self.taken_bytes = 0
        self._rest = bytearray()
        self._looked = 0

    def take(self, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Take in some bytes; the events that are whole now. Comments give nothing.

        Raises:
            ProtocolError: it is no such stream, or one event is too large.
        """
        self._rest += data
        self.taken_bytes += len(data)
        found: list[tuple[str, dict[str, Any]]] = []
        while (end := self._rest.find(_BREAK, self._looked)) >= 0:
            one = _read(bytes(self._rest[:end]))
            del self._rest[: end + len(_BREAK)]
            self._looked = 0
            found += [one] if one is not None else []
        # The break may have come half.
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
