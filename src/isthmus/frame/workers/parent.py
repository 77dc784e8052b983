"""The parent as a program: starts workers, accepts for them, and restarts them.

Each worker has its own connections: one that dies resets its own tunnels and no others. The parent
has the audit log: workers write records into pipes, so there is a single writer, which rotates the
file. Records that are in the pipe of a worker that dies are not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import uuid
from typing import Any

from isthmus.errors import ConfigError
from isthmus.frame import lifetime
from isthmus.frame.admin.answers import Check, Watched
from isthmus.frame.admin.owner import OTHERS
from isthmus.frame.audit.log import AuditLog
from isthmus.frame.audit.recording import ignore_hangup, open_audit, reopen_on_hangup
from isthmus.frame.health import Health
from isthmus.frame.lifetime import counted
from isthmus.frame.operator_ports import OperatorPorts
from isthmus.frame.part import WorkerPlan
from isthmus.frame.program import Program
from isthmus.frame.workers.channel import Audit, Bound, Drain, Hangup, Stop
from isthmus.frame.workers.doorman import Doorman
from isthmus.frame.workers.metrics import WorkerCounts, WorkersMetrics
from isthmus.frame.workers.operating import Operating
from isthmus.frame.workers.process import Birth, Worker, WorkerLost
from isthmus.logs import OncePer, log
from isthmus.net.contexts import watch
from isthmus.net.poller import Poller
from isthmus.settings.audit import AuditSettings
from isthmus.settings.options import block_of
from isthmus.settings.program import worker_id

#: How long workers may take to end when told to end now, or after their drain.
STOP_S = 8.0
_LOOK_S = 0.05
_SWEEP_S = 1.0
_log = logging.getLogger("isthmus.workers")
_READ_BYTES = 256 * 1024
#: A record is a few hundred bytes; a longer line is not a record.
_MOST_LINE = 1024 * 1024


class Parent:
    """A running parent."""

    def __init__(self, program: Program, settings: Any) -> None:
        self.program = program
        self.settings = settings
        self.plan: WorkerPlan = program.found(program.workers)(settings)
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self.id = program.id_of(settings) or str(uuid.uuid4())
        self.count = settings.workers or len(os.sched_getaffinity(0))
        self.metrics = WorkersMetrics()
        self.once = OncePer(self.loop.time)
        self.poller = Poller(self.loop)
        self.ports = OperatorPorts(settings, once=self.once)
        self.records = GatheredRecords.open(self.loop, settings)
        if self.records is not None:
            self.metrics.audit_counts = self.records.log.counts
        birth = Birth(
            count=self.count,
            program_id=self.id,
            audited=self.records.follow if self.records is not None else None,
        )
        self.workers = [
            Worker(index, birth, self.poller, died=self._died, changed=self._changed)
            for index in range(self.count)
        ]
        self.operating = Operating(
            program, self.workers, self.metrics,
            clock=self.loop.time, draining=lambda: self.draining, known=self._known,
        )  # fmt: skip
        self.doorman = Doorman(
            self.loop, self.poller, self.plan, self.workers,
            {worker_id(self.id, worker.index): worker for worker in self.workers},
            metrics=self.metrics, once=self.once,
        )  # fmt: skip
        self.health = Health(
            self.metrics,
            leaving=lambda: self.draining,
            listeners=lambda: self.doorman.listeners,
            counted=self.operating.tally,
        )
        self.metrics.workers = self._counts
        self.metrics.gauges.lines_suppressed = lambda: self.once.suppressed

    # Program.

    async def start(self) -> None:
        """Start the workers, which check every file; then open every port."""
        try:
            await self._start_workers()
            for part in self.plan.parts:
                await part.prepare()
            for part in self.plan.parts:
                await part.open()
            self.doorman.bind()
            await self._open_ports()
            for worker in self.workers:
                worker.bound(Bound(where=self.doorman.where))
            self.doorman.open()
        except BaseException:
            await self.stop()
            raise
        self.health.start(self.ports.open_ones)
        if self.plan.reloads:
            self.loop.add_signal_handler(signal.SIGHUP, self.reload)
        ports: dict[str, Any] = {
            **{_as_field(flag): at[0][1] for flag, at in self.doorman.where.items()},
            **self._named(),
        }
        log(
            _log, logging.INFO, "serving", program=self.program.name, workers=self.count,
            listen=",".join(it.name for it in self.doorman.listeners),
            health_port=self.ports.health, admin_port=self.ports.admin,
            **ports,
        )  # fmt: skip

    async def _start_workers(self) -> None:
        failed: list[BaseException] = [
            error
            for error in await asyncio.gather(
                *(worker.start() for worker in self.workers), return_exceptions=True
            )
            if error is not None
        ]
        for error in failed:
            if isinstance(error, ConfigError):
                raise error
        for error in failed:
            if isinstance(error, WorkerLost):
                raise ConfigError(str(error)) from error
            raise error

    async def _open_ports(self) -> None:
        settings, operating = self.settings, self.operating
        watched = Watched(
            program=self.program.name,
            instance=self.id,
            settings=settings,
            live=self._live,
            ready=operating.ready,
            metrics=operating.metrics,
            open_metrics=operating.open_metrics,
            snapshot=operating.snapshot,
            history=self.health.history,
            records=self.records.log.recent if self.records is not None else None,
            end_tunnel=operating.end_tunnel,
        )
        own = operating.routes(profiling=settings.admin.enable_profiling)
        assert self.program.operator_flags is not None  # workers without ports have no views
        await self.ports.open(watched, self.program.operator_flags, own=own)

    async def watch(self) -> None:
        """Run and restart the workers."""
        async with self.health.tasks() as tasks:
            for worker in self.workers:
                tasks.create_task(worker.watch(), name=f"worker:{worker.index}")
            tasks.create_task(self._sweep(), name="sweep")
            if self.records is not None:
                tasks.create_task(self._tell_audit(self.records.log), name="audit")
            for part in self.plan.parts:
                for name, task in part.tasks():
                    tasks.create_task(task, name=name)
            if self.ports.contexts:
                tasks.create_task(watch(self.ports.contexts), name="reload")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.doorman.hand_waiting()

    async def _tell_audit(self, log: AuditLog) -> None:
        """Tell all workers, including ones started later, whether their records are written."""
        told: dict[int, tuple[int, bool]] = {}
        while True:
            for worker in self.workers:
                now = worker.pid, log.failing
                if worker.running and told.get(worker.index, (now[0], False)) != now:
                    worker.tell(Audit(failing=log.failing))
                if worker.running:
                    told[worker.index] = now
            await asyncio.sleep(_LOOK_S)

    async def drain(self, timeout_s: float) -> None:
        """Drain like a single server: let every worker finish its connections."""
        self.draining = True
        self.doorman.drain(elsewhere=any(worker.report.has_peers for worker in self.workers))
        for worker in self.workers:
            worker.leaving = True
            worker.tell(Drain(timeout_s=timeout_s))
        try:
            async with asyncio.timeout(timeout_s + STOP_S):
                # A worker between two lives has no process: it need not start again to end.
                while any(worker.pid for worker in self.workers):
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            log(_log, logging.WARNING, "workers still running after the drain timeout")

    async def stop(self) -> None:
        """End every worker and close everything."""
        self.draining = True
        if self.plan.reloads:
            self.loop.remove_signal_handler(signal.SIGHUP)
        self.health.stop()
        self.doorman.close()
        for worker in self.workers:
            worker.tell(Stop())
        await asyncio.gather(*(worker.finish(STOP_S) for worker in self.workers))
        await self.ports.close()
        for part in reversed(self.plan.parts):
            part.close()
        for part in reversed(self.plan.parts):
            await part.wait_closed()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes pending sockets
        self.poller.shut_down()
        if self.records is not None:
            await self.records.close()

    def reload(self) -> None:
        """Have the workers reload their files."""
        for worker in self.workers:
            worker.tell(Hangup())

    def status(self) -> str:
        """The state of the workers; see Supervisable."""
        running = sum(worker.running for worker in self.workers)
        tally = self.operating.tally()
        return (
            f"{running} of {counted(self.count, 'worker')}, {counted(tally.agents, 'agent')}, "
            f"{counted(tally.tunnels, 'tunnel')}"
        )

    # Workers.

    def _named(self) -> dict[str, Any]:
        return {self.program.id_field: self.id} if self.program.id_field else {}

    def _known(self) -> dict[str, Any]:
        known = self._named()
        for part in self.plan.parts:
            known |= part.snapshot(0)
        return known

    def _live(self) -> list[Check]:
        return [*self.health.live(), *self.operating.live()]

    def _died(self, worker: Worker) -> None:
        OTHERS.discard(worker.pid)
        self.operating.died(worker)

    def _changed(self) -> None:
        OTHERS.update(worker.pid for worker in self.workers if worker.pid)
        self.doorman.hand_waiting()

    def _counts(self) -> list[WorkerCounts]:
        return [
            WorkerCounts(
                index=worker.index,
                up=worker.running,
                restarts=worker.restarts,
                handed=worker.handed,
                open=worker.load,
                cpu_s=worker.cpu_s,
            )
            for worker in self.workers
        ]


def _as_field(flag: str) -> str:
    """The name of a port in the log lines of programs."""
    named = {"server_port": "frontend_port", "serving_port": "port", "listen": "port"}
    name = flag.removeprefix("--").replace("-", "_")
    return named.get(name, name)


def main(program: Program, settings: Any, *, before: lifetime.Before | None = None) -> int:
    """Run a parent until it is told to stop; returns the exit code."""
    os.umask(0o077)
    return lifetime.main(
        lambda: Parent(program, settings),
        settings.log,
        drain_s=settings.graceful_shutdown_timeout_s,
        before=before,
    )


class GatheredRecords:
    """Collects the audit records of all workers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: AuditLog) -> None:
        self._loop = loop
        self.log = log
        self._pipes: dict[int, bytes] = {}
        reopen_on_hangup(loop, log)

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop, settings: object) -> GatheredRecords | None:
        """Open the log, if one is configured.

        Raises:
            ConfigError: it cannot be opened.
        """
        wanted = block_of(settings, AuditSettings)
        if wanted is None:
            return None
        audit = open_audit(wanted, server_id="", believes=lambda _: False)
        return cls(loop, audit.log) if audit is not None else None

    def follow(self, reading: int) -> None:
        """Read a worker's pipe until its end."""
        os.set_blocking(reading, False)
        self._pipes[reading] = b""
        self._loop.add_reader(reading, self._read, reading)

    def _read(self, reading: int) -> bool:
        """Take the available records; False if there are no more now."""
        try:
            data = os.read(reading, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(reading)
            self._pipes.pop(reading)
            os.close(reading)
            return False
        *lines, rest = (self._pipes[reading] + data).split(b"\n")
        for line in lines:
            if line:
                self.log.put(line + b"\n")
        self._pipes[reading] = rest if len(rest) < _MOST_LINE else b""
        return True

    async def close(self) -> None:
        """Write the records that ended workers left, and close."""
        for reading in list(self._pipes):
            while self._read(reading):
                pass
        for reading in list(self._pipes):  # another process has it open
            self._loop.remove_reader(reading)
            with contextlib.suppress(OSError):
                os.close(reading)
        self._pipes.clear()
        ignore_hangup(self._loop)
        await asyncio.to_thread(self.log.close)
