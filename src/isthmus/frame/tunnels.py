"""The table of open tunnels, for metrics, snapshots and draining."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from typing_extensions import override

from isthmus.dial.metered import Gate, MeteredTunnel
from isthmus.dial.rules_stalls import Held, ReaderPace, why_slow, why_stalled
from isthmus.frame.lifetime import counted
from isthmus.frame.model.snapshot import RecentEndings, TunnelState, TunnelView
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.frame.views import memory_view, totals
from isthmus.logs import log
from isthmus.net.charging import charge_tunnel
from isthmus.net.socket_end import SocketEnd
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd, Ending, unsent
from isthmus.tunnel.first_byte import DialAgain, UntouchedTunnel
from isthmus.tunnel.stream import Stream
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import DIRECTLY, DialOutcome, DialRequest, TunnelId

SWEEP_S = 30.0
#: How often readers are checked: a stopped reader shows between two checks.
LOOK_S = 2.5
#: Checking one tunnel takes a microsecond or two; other work runs after this many.
_LOOKS_AT_ONCE = 500
LEFTOVERS_S = 300.0
_log = logging.getLogger("isthmus.tunnel")


class TunnelTable:
    """All tunnels of a program, from join to the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: ProgramMetrics) -> None:
        self._loop = loop
        self._metrics = metrics
        self._ids = itertools.count(1)
        self._open: dict[TunnelId, Tunnel] = {}
        # Tunnels with one end done and unread bytes at the other: how many bytes, and since when
        # they have not moved.
        self._leftovers: dict[TunnelId, tuple[int, float]] = {}
        # What half-closed tunnels over gRPC links had carried, and since when that has not changed.
        self._still: dict[TunnelId, tuple[int, float]] = {}
        # How much the readers with waiting bytes take, by tunnel and side.
        self._paces: dict[tuple[TunnelId, str], ReaderPace] = {}
        self.endings = RecentEndings()

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        request: DialRequest,
        outcome: DialOutcome,
        *,
        client: BaseEnd,
        far: BaseEnd,
        on_ended: Callable[[Tunnel, float], None] | None = None,
        gates: tuple[Sequence[Gate], Sequence[Gate]] | None = None,
        again: DialAgain | None = None,
    ) -> None:
        """Join two ends and keep their tunnel until both are done.

        ``on_ended`` is then called with its lifetime in seconds. ``gates`` limit its rate.
        ``again`` dials again if its link is lost before the first byte.
        """
        kind = Tunnel if again is None else UntouchedTunnel
        tunnel = (kind if gates is None else MeteredTunnel)(
            TunnelId(next(self._ids)),
            request,
            outcome,
            client=client,
            far=far,
            opened_at=self._loop.time(),
            on_done=self._done,
        )
        tunnel.on_ended = on_ended
        if isinstance(tunnel, UntouchedTunnel):
            tunnel.dial_again_by(again)
        if isinstance(tunnel, MeteredTunnel):
            assert gates is not None  # otherwise there would be no share
            tunnel.hold_to(gates)
        # Count the tunnel's bytes, not the dial, its answer and the reply that set it up.
        client.bytes_written = far.bytes_written = 0
        self._open[tunnel.id] = tunnel
        tunnel.open()

    def open_here(
        self,
        request: DialRequest,
        *,
        client: BaseEnd,
        far: BaseEnd,
        payer: Account | None,
        on_ended: Callable[[Tunnel, float], None] | None = None,
        gates: tuple[Sequence[Gate], Sequence[Gate]] | None = None,
    ) -> None:
        """Join to a target that no agent dialed; ``payer`` is charged for what the ends hold."""
        if payer is not None:
            charge_tunnel(client, far, payer)
        self.open(request, DIRECTLY, client=client, far=far, on_ended=on_ended, gates=gates)
        if payer is not None and isinstance(client, SocketEnd):
            client.keeps(0)  # early bytes have been passed on

    @property
    def all(self) -> tuple[Tunnel, ...]:
        """All open tunnels."""
        return tuple(self._open.values())

    def count_of(self, frontend: str) -> int:
        """The number of tunnels of this frontend."""
        return sum(tunnel.request.frontend == frontend for tunnel in self._open.values())

    def live_bytes(self) -> tuple[int, int]:
        """Bytes (to target, to client) of the open tunnels."""
        tunnels = self._open.values()
        return (
            sum(tunnel.far.bytes_written for tunnel in tunnels),
            sum(tunnel.client.bytes_written for tunnel in tunnels),
        )

    def end(self, tunnel_id: TunnelId, by: str) -> str | None:
        """Reset a tunnel on request; its connection id, or None if there is no such tunnel."""
        tunnel = self._open.get(tunnel_id)
        if tunnel is None:
            return None
        tunnel.abort(Ending.ADMIN, by)
        return tunnel.request.connection_id

    def end_on(self, link_id: int, by: str) -> None:
        """Reset the tunnels of a link that is to be closed.

        A tunnel that can be dialed again is not reset: no byte of it has passed the link.
        """
        for tunnel in list(self._open.values()):
            if tunnel.outcome.link_id == link_id and not tunnel.untouched:
                tunnel.abort(Ending.ADMIN, by)

    def abort_all(self, reason: Ending) -> None:
        """Reset every tunnel."""
        for tunnel in list(self._open.values()):
            tunnel.abort(reason)

    async def watch(self) -> None:
        """Check and sweep, forever."""
        due = self._loop.time() + SWEEP_S
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()
            if self._loop.time() >= due:
                self.sweep(self._loop.time())
                due = self._loop.time() + SWEEP_S

    async def look(self) -> None:
        """Remember what readers have taken, for later snapshots; other work runs in between."""
        tunnels = iter(self.all)
        while batch := list(itertools.islice(tunnels, _LOOKS_AT_ONCE)):
            now = self._loop.time()
            for tunnel in batch:
                if tunnel.id in self._open:
                    self._sides(tunnel, now)
            await asyncio.sleep(0)

    def sweep(self, now: float) -> None:
        """Reset the tunnels whose last bytes have been unread for too long.

        While both ends are open, the session watches them; the last bytes are in a socket end only.
        """
        before, self._leftovers = self._leftovers, {}
        for tunnel in list(self._open.values()):
            end = tunnel.last_end
            self._sides(tunnel, now)
            if end is None:
                if self._half_dead(tunnel, now):
                    tunnel.abort(Ending.TIMED_OUT)
                continue
            unsent = getattr(end, "out_bytes", 0)
            seen, since = before.get(tunnel.id, (-1, now))
            if seen != unsent:
                self._leftovers[tunnel.id] = (unsent, now)
            elif now - since < LEFTOVERS_S:
                self._leftovers[tunnel.id] = (unsent, since)
            else:
                tunnel.abort(Ending.TIMED_OUT)

    def _half_dead(self, tunnel: Tunnel, now: float) -> bool:
        """Half-closed without a byte for too long; a mux session watches its own streams."""
        ends = (tunnel.client, tunnel.far)
        key = tunnel.id
        if not any(getattr(end, "half_closed", False) for end in ends) or any(
            isinstance(end, Stream) for end in ends
        ):
            self._still.pop(key, None)
            return False
        moved = sum(end.bytes_written for end in ends)
        seen, since = self._still.get(key, (-1, now))
        if moved != seen:
            self._still[key] = (moved, now)
            return False
        return now - since >= LEFTOVERS_S

    def views(self, limit: int) -> tuple[TunnelView, ...]:
        """The views of the oldest tunnels, at most ``limit``."""
        now = self._loop.time()
        return tuple(
            self._view(tunnel, now) for tunnel in itertools.islice(self._open.values(), limit)
        )

    def _done(self, tunnel: Tunnel) -> None:
        del self._open[tunnel.id]
        self._still.pop(tunnel.id, None)
        if self._paces:
            self._paces.pop((tunnel.id, "client"), None)
            self._paces.pop((tunnel.id, "target"), None)
        now, request = self._loop.time(), tunnel.request
        to_target, to_client = tunnel.far.bytes_written, tunnel.client.bytes_written
        duration_s = now - tunnel.opened_at
        self._metrics.tunnel_ended(tunnel.ending, duration_s, to_target, to_client)
        if tunnel.ending is Ending.STALLED:
            self._metrics.stream_reset_for_budget()
        self.endings.add(
            (now, request, tunnel.ending, tunnel.ended_by, to_target, to_client, duration_s)
        )
        if tunnel.on_ended is not None:
            tunnel.on_ended(tunnel, duration_s)
        if isinstance(tunnel, MeteredTunnel):
            tunnel.leave()
        if _log.isEnabledFor(logging.DEBUG):
            log(
                _log, logging.DEBUG, "tunnel ended", tunnel=tunnel.id, target=str(request.target),
                ending=tunnel.ending.value, by=tunnel.ended_by, to_target=to_target,
                to_client=to_client, seconds=round(duration_s, 3),
                connection=request.connection_id,
            )  # fmt: skip

    def _view(self, tunnel: Tunnel, now: float) -> TunnelView:
        to_client, to_target = self._sides(tunnel, now)
        stalled = why_stalled(to_client=to_client, to_target=to_target)
        slow = "" if stalled else why_slow(to_client=to_client, to_target=to_target)
        client, far, request, outcome = tunnel.client, tunnel.far, tunnel.request, tunnel.outcome
        half = getattr(client, "half_closed", False) or getattr(far, "half_closed", False)
        state = TunnelState.HALF_CLOSED if half else TunnelState.OPEN
        return TunnelView(
            id=tunnel.id,
            frontend=request.frontend,
            requester=str(request.requester),
            target=str(request.target),
            agent_id=outcome.agent_id,
            link_id=outcome.link_id,
            relay=outcome.relay,
            state=TunnelState.STALLED if stalled else TunnelState.SLOW if slow else state,
            age_s=now - tunnel.opened_at,
            bytes_to_target=far.bytes_written,
            bytes_to_client=client.bytes_written,
            stalled=stalled,
            slow=slow,
            connection_id=request.connection_id,
        )

    def _sides(self, tunnel: Tunnel, now: float) -> tuple[Held, Held]:
        """What waits for the client and for the target; also remembers what they have taken."""
        if isinstance(tunnel, MeteredTunnel) and tunnel.held:
            return _NOTHING  # nothing is wrong: the tunnel waits for its share
        client, far = tunnel.client, tunnel.far
        if tunnel.last_end is None:
            for end in (far, client):
                if isinstance(end, Stream):
                    return self._of_stream(tunnel, end, now)
        return (
            self._held(tunnel, "client", client, unsent(client), now),
            self._held(tunnel, "target", far, unsent(far), now),
        )

    def _of_stream(self, tunnel: Tunnel, stream: Stream, now: float) -> tuple[Held, Held]:
        """Ask the stream, which knows what its sink and its peer do not take."""
        held, backlog = stream.held, stream.backlog_bytes
        if not held and not backlog and not self._paces:
            return _NOTHING  # nearly all; the rest is most of a snapshot
        inward = stream is tunnel.far
        sink, towards_sink = (tunnel.client, "client") if inward else (tunnel.far, "target")
        taken = self._held(tunnel, towards_sink, sink, held, now)
        waits = self._held(
            tunnel, "target" if inward else "client", stream, backlog, now,
            no_credit=stream.credit <= 0,
        )  # fmt: skip
        return (taken, waits) if inward else (waits, taken)

    def _held(
        self,
        tunnel: Tunnel,
        side: str,
        end: BaseEnd,
        waiting: int,
        now: float,
        *,
        no_credit: bool = False,
    ) -> Held:
        """What waits for one side, and its rate, as of the last check."""
        key = (tunnel.id, side)
        pace = self._paces.get(key)
        if not waiting:
            if pace is not None and pace.rest(now=now):
                del self._paces[key]
            return _NONE
        if pace is None:
            pace = self._paces[key] = ReaderPace(now=now)
        queued = getattr(end, "kernel_bytes", 0)
        pace.look(passed=end.bytes_written - unsent(end), queued=queued, now=now)
        return pace.held(waiting, now=now, no_credit=no_credit)


_NONE = Held()
_NOTHING = (_NONE, _NONE)


class TunnelsPart(Part):
    """The tunnels of a program: swept while it runs, waited for when it drains, reset at its end.

    ``noun`` is the word for one in a status line; empty if another part reports the number.
    """

    def __init__(
        self,
        ground: Ground[Any, Any],
        table: TunnelTable | None = None,
        *,
        noun: str = "connection",
    ) -> None:
        self._ground = ground
        self._noun = noun
        self.table = table if table is not None else TunnelTable(ground.loop, ground.metrics)
        self.end_tunnel = self.table.end

    @override
    def start(self) -> None:
        gauges = self._ground.metrics.gauges
        gauges.tunnels = lambda: len(self.table)
        gauges.live_bytes = self.table.live_bytes

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "sweep", self.table.watch()

    @override
    def busy(self) -> bool:
        return len(self.table) > 0

    @override
    def close(self) -> None:
        self.table.abort_all(Ending.DRAINED)

    @override
    def status(self) -> str:
        return counted(len(self.table), self._noun) if self._noun else ""

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        table = self.table
        return {
            "totals": totals(self._ground.metrics),
            "tunnels": table.views(limit),
            "truncated": max(0, len(table) - limit),
            "recent_endings": table.endings.views(now=self._ground.now()),
            "memory": memory_view(self._ground.budget),
        }
