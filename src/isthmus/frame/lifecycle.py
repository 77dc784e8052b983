"""The life cycle of a program: prepare, open and start its parts; drain, close and wait for them.

One of these runs in its own process, or in each worker. Signals, logging and the event loop are in
lifetime.py, the parent of workers in workers/parent.py; running.py chooses between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from aiohttp import web

from isthmus import __version__
from isthmus.frame.admin.answers import PING, Check, Routes, Watched
from isthmus.frame.health import Health
from isthmus.frame.model.snapshot import ProgramView
from isthmus.frame.observe.tracing import open_tracing
from isthmus.frame.operator_ports import OperatorPorts
from isthmus.frame.part import Ground, Handed, Part
from isthmus.frame.program import Program
from isthmus.frame.views import certificates, tally
from isthmus.logs import log
from isthmus.net.contexts import HotContext, lifetimes_of, watch
from isthmus.net.poller import Poller

P = TypeVar("P", bound=Part)
_LOOK_AGAIN_S = 0.05


class Lifecycle:
    """One run of a program; lifetime.py and workers/worker.py call its passes."""

    def __init__(
        self,
        program: Program,
        settings: Any,
        *,
        handed: Handed | None = None,
        signals: bool = False,
    ) -> None:
        """Create the parts, in the loop; a worker gets its connections from ``handed``.

        With ``signals``, SIGHUP makes every part reload, if any can.

        Raises:
            ConfigError: a part cannot be created from these settings.
        """
        self.program = program
        self.ground: Ground[Any, Any] = Ground(program, settings, handed)
        self.parts: tuple[Part, ...] = program.found(program.parts)(self.ground)
        self.metrics = self.ground.metrics
        self.health = Health(
            self.metrics,
            leaving=lambda: self.ground.draining,
            listeners=lambda: (it for part in reversed(self.parts) for it in part.listeners()),
            counted=lambda: tally(self.metrics, tunnels=self.metrics.gauges.tunnels()),
        )
        self.ports: OperatorPorts | None = None
        self._serves = False
        self._hears = signals and self.reloads
        self._log = logging.getLogger(f"isthmus.{program.log}")

    # The way up.

    async def start(self) -> None:
        """Prepare everything, open everything, then begin; nothing stays open on failure.

        Raises:
            ConfigError: a setting or a file is wrong, or a port cannot be bound.
        """
        ground = self.ground
        try:
            self._prepare_own()
            for part in self.parts:
                await part.prepare()
            await self._open_ports()
            for part in self.parts:
                await part.open()
        except BaseException:
            await self.stop()
            raise
        for part in self.parts:
            part.start()
        self._set_gauges()
        self.health.start(self.ports.open_ones if self.ports is not None else {})
        if self._hears:
            ground.loop.add_signal_handler(signal.SIGHUP, self.reload)
        self._serves = True
        self._say_serving()

    def _prepare_own(self) -> None:
        ground, flags = self.ground, self.program.operator_flags
        if flags is None:
            return
        ground.tracing = open_tracing(
            ground.settings.tracing.endpoint, os.environ, service=f"isthmus-{self.program.name}",
            instance=ground.id,
        )  # fmt: skip
        self.ports = OperatorPorts(
            ground.settings, once=ground.once, refused=ground.admin_refused, handed=ground.handed
        )
        ground.contexts += self.ports.contexts

    async def _open_ports(self) -> None:
        flags = self.program.operator_flags
        if self.ports is not None and flags is not None:
            own: Routes = {path: it for part in self.parts for path, it in part.routes().items()}
            await self.ports.open(self._watched(), flags, own=own)

    def _watched(self) -> Watched:
        records = (part.records for part in self.parts if part.records is not None)
        ends = (part.end_tunnel for part in self.parts if part.end_tunnel is not None)
        return Watched(
            program=self.program.name,
            instance=self.ground.id,
            settings=self.ground.settings,
            live=self.health.live,
            ready=self.ready,
            metrics=self.metrics.render,
            open_metrics=self.metrics.render_open,
            snapshot=self.view,
            history=self.health.history,
            records=next(records, None),
            end_tunnel=next(ends, None),
        )

    def _set_gauges(self) -> None:
        gauges, ground = self.metrics.gauges, self.ground
        gauges.draining = lambda: int(ground.draining)
        gauges.lines_suppressed = lambda: ground.once.suppressed
        if self.program.operator_flags is None:
            return
        gauges.budget = ground.budget
        gauges.reload_failures = lambda: sum(it.failures for it in self._contexts())
        gauges.certificates = lambda: lifetimes_of(self._contexts())

    def _say_serving(self) -> None:
        program, ground = self.program, self.ground
        fields: dict[str, Any] = {program.id_field: ground.id} if program.id_field else {}
        if ground.handed is not None:
            log(
                self._log, logging.INFO, "worker started",
                **(fields or {"program": program.name}),
            )  # fmt: skip
            return
        *rest, last = self.parts
        fields |= last.serving()
        if self.ports is not None:
            fields |= {"health_port": self.ports.health, "admin_port": self.ports.admin}
        for part in reversed(rest):
            fields |= part.serving()
        log(self._log, logging.INFO, "serving", **fields)

    async def watch(self) -> None:
        """Run the tasks that live as long as the program; cancelled at the end."""
        async with self.health.tasks() as tasks:
            if self.program.operator_flags is not None:
                tasks.create_task(watch(self.ground.contexts), name="reload")
            for part in self.parts:
                for name, task in part.tasks():
                    tasks.create_task(task, name=name)

    # The way down.

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing new and wait for what is open, at most this long."""
        self.ground.draining = True
        for part in reversed(self.parts):
            part.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(part.busy() for part in self.parts):
                    await asyncio.sleep(_LOOK_AGAIN_S)
        for part in reversed(self.parts):
            part.drained()

    async def stop(self) -> None:
        """Close every part, listeners first, and the operator ports last."""
        ground = self.ground
        if self._serves and self._hears:
            ground.loop.remove_signal_handler(signal.SIGHUP)
        self.health.stop()
        for part in reversed(self.parts):
            part.close()
        for part in reversed(self.parts):
            await part.wait_closed()
        if self.ports is not None:
            await self.ports.close()
        if "poller" in vars(ground):
            await asyncio.sleep(0)  # one turn, in which the poller closes its sockets
            ground.poller.shut_down()
        if ground.tracing is not None:
            await ground.tracing.close()

    # Queries.

    def part(self, kind: type[P]) -> P:
        """The part of this class."""
        return next(part for part in self.parts if isinstance(part, kind))

    @property
    def health_port(self) -> int:
        """The port of probes; 0 while it is not open."""
        return self.ports.health if self.ports is not None else 0

    @property
    def admin_port(self) -> int:
        """The port for operators; 0 while it is not open."""
        return self.ports.admin if self.ports is not None else 0

    @property
    def poller(self) -> Poller:
        """What watches its sockets."""
        return self.ground.poller

    @property
    def calls(self) -> int:
        """How many requests share sockets with other requests."""
        return sum(part.calls for part in self.parts)

    @property
    def has_peers(self) -> bool:
        """Whether it knows other servers for agents, besides its parent's workers."""
        return any(part.has_peers for part in self.parts)

    @property
    def reloads(self) -> bool:
        """Whether a part has something to reload."""
        return any(type(part).reload is not Part.reload for part in self.parts)

    def reload(self) -> None:
        """Make every part reload its files."""
        for part in self.parts:
            part.reload()

    def status(self) -> str:
        """Its state in one line; see Supervisable."""
        return ", ".join(said for part in self.parts if (said := part.status()))

    def ready(self) -> list[Check]:
        """Every check of readiness, passed or failed."""
        return [
            PING,
            *(() if self._serves else (Check("start", "starting"),)),
            *(check for part in self.parts for check in part.ready()),
            Check("drain", "draining" if self.ground.draining else ""),
        ]

    def view(self, limit: int) -> ProgramView:
        """The snapshot, with at most ``limit`` tunnels."""
        if not self._serves:
            raise web.HTTPServiceUnavailable(text="starting\n")
        program, ground = self.program, self.ground
        fields: dict[str, Any] = {
            "version": __version__,
            "taken_at": datetime.now(UTC),
            "uptime_s": ground.now() - ground.started_at,
            "draining": ground.draining,
            "certificates": certificates([*self._contexts()]),
        }
        if program.id_field:
            fields[program.id_field] = ground.id
        for part in self.parts:
            fields |= part.snapshot(limit)
        view: ProgramView = program.view_class(**fields)
        return view

    def _contexts(self) -> Iterable[HotContext]:
        """Every certificate in use."""
        yield from self.ground.contexts
        for part in self.parts:
            yield from part.contexts()
