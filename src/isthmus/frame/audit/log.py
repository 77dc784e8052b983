"""The audit log's file: lines are queued by the event loop and written by one thread.

``put`` never waits: lines that do not fit into the queue are dropped and counted, and when there
is space again a record has the number of missing ones. The file is rotated by size, and reopened
when another process moved it. Rotated files are named as kube-apiserver names its own:
``audit-2006-01-02T15-04-05.000.log`` beside ``audit.log``. The last lines stay in memory for the
admin port. Records are described in model.py.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.frame.audit.model import dropped, to_line
from isthmus.logs import log

MOST_BYTES = 16 * 1024 * 1024
MOST_RECORDS = 50_000
#: How many of the last lines are kept.
RECENT_RECORDS = 200
#: Lines within this time after a write are written together; the first after a pause is written at
#: once. During each write the event loop briefly shares the interpreter.
GATHER_S = 0.1
RETRY_S = 1.0
STOP_S = 5.0
_MOST_PIECE_BYTES = 256 * 1024
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
_log = logging.getLogger("isthmus.audit")
_DAY_S = 86400.0
_STAMP = r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}\.\d{3}"


class AuditLog:
    """One file, or standard output for ``-``.

    ``put`` is for one thread, that of the event loop. Each counter is written by one thread only:
    ``written`` and ``errors`` by the writer, ``dropped`` by the loop.
    """

    def __init__(
        self,
        path: str,
        *,
        max_bytes: int,
        backups: Backups | None = None,
        most_bytes: int = MOST_BYTES,
        most_records: int = MOST_RECORDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the file.

        Raises:
            ConfigError: it cannot be opened.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._most_bytes = most_bytes
        self._most_records = most_records
        self._clock = clock
        self._queue: deque[bytes] = deque()
        self._put_bytes = self._taken_bytes = 0
        self._recent: deque[bytes] = deque(maxlen=RECENT_RECORDS)
        self._seen = 0
        self._missing = 0  # dropped since the last record that was queued
        self._unwritten: list[bytes] = []
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._reopen = False
        self._complained = self._stuck = False
        self.dropped = self.written = self.errors = 0
        try:
            self._fd = self._open()
        except OSError as exc:
            raise ConfigError(f"--audit-log-path {path}: {exc.strerror or exc}") from exc
        if backups is not None:
            backups.prune(Path(path), now=clock())
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    # Called by the loop's thread.

    def put(self, line: bytes) -> None:
        """Queue one line, or drop and count it; never wait."""
        self._recent.append(line)
        self._seen += 1
        size, queue = len(line), self._queue
        waiting = self._put_bytes - self._taken_bytes
        if waiting + size > self._most_bytes or len(queue) >= self._most_records:
            self.dropped += 1
            self._missing += 1
            return
        if self._missing:
            note = to_line(dropped(self._missing, now=self._clock()))
            self._missing = 0
            queue.append(note)
            size += len(note)
        queue.append(line)
        self._put_bytes += size
        if not self._wake.is_set():
            self._wake.set()

    def recent(self, after: int, most: int) -> tuple[list[bytes], int]:
        """The last lines, oldest first, and the number of the newest; the first is 1.

        Only those after a number, and at most this many; includes lines that were not written.
        """
        count = max(0, min(self._seen - after, most, len(self._recent)))
        return list(islice(self._recent, len(self._recent) - count, None)), self._seen

    def counts(self) -> tuple[int, int, int]:
        """The numbers of written records, dropped records, and failed writes."""
        return self.written, self.dropped, self.errors

    @property
    def failing(self) -> bool:
        """Whether records cannot be written now, or some were dropped since the last one queued."""
        return self._complained or self._missing > 0

    def reopen(self) -> None:
        """Reopen the file before the next line: another process has moved it."""
        self._reopen = True
        self._wake.set()

    def close(self, timeout_s: float = STOP_S) -> None:
        """Write what is queued and close; waits for a limited time. May be called again."""
        if self._missing:
            note = to_line(dropped(self._missing, now=self._clock()))
            self._missing = 0
            self._queue.append(note)
            self._put_bytes += len(note)
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s)

    # Called by the writer's thread.

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            stopping = self._stopping.is_set()
            done = self._drain()
            if stopping:
                break
            if not done:
                self._wake.set()  # try again, even without new lines
            # Wait before the next write: lines that come meanwhile are written together.
            self._stopping.wait(GATHER_S if done else RETRY_S)
        left = len(self._unwritten) + len(self._queue)
        if left:
            log(_log, logging.ERROR, "audit records lost", records=left)
        if self._path != "-":
            os.close(self._fd)

    def _drain(self) -> bool:
        """Write everything; False if that is not possible now, and the rest waits."""
        while self._unwritten or self._queue or self._reopen:
            if not self._unwritten:
                self._take()
            try:
                self._write()
            except OSError as exc:
                self.errors += 1
                self._complain(exc)
                return False
        return True

    def _take(self) -> None:
        """Take whole lines from the queue, up to a good size for a write."""
        size, lines = 0, self._unwritten
        while self._queue and size < _MOST_PIECE_BYTES:
            line = self._queue.popleft()
            size += len(line)
            lines.append(line)

    def _write(self) -> None:
        regular, size = self._look_after()
        lines = self._unwritten
        fitting = len(lines)
        if regular and self._backups is not None:
            fitting = self._fitting(size)
            if not fitting and self._rotated():
                fitting = max(1, self._fitting(0))
            fitting = fitting or len(lines)  # a large file is better than a lost record
        piece = b"".join(lines[:fitting])
        if piece:
            self._write_whole(piece, fitting, regular)
        self._wrote(fitting, len(piece))
        if self._complained:
            self._complained = False
            log(_log, logging.INFO, "audit log writable again", path=self._path)

    def _fitting(self, size: int) -> int:
        """How many whole lines fit into this many bytes."""
        for count, line in enumerate(self._unwritten):
            size += len(line)
            if size > self._max_bytes:
                return count
        return len(self._unwritten)

    def _wrote(self, lines: int, size: int) -> None:
        del self._unwritten[:lines]
        self.written += lines
        self._taken_bytes += size

    def _write_whole(self, piece: bytes, lines: int, regular: bool) -> None:
        """Write this many lines; partial lines in a file are truncated at once."""
        start = os.fstat(self._fd).st_size if regular else 0
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            done = len(piece) - len(rest)
            if regular:
                whole = piece.rfind(b"\n", 0, done) + 1
                if whole < done:
                    os.ftruncate(self._fd, start + whole)
                self._wrote(piece.count(b"\n", 0, whole), whole)
            elif done:  # a pipe cannot give bytes back
                self._unwritten[:lines] = [bytes(rest)]
                self._taken_bytes += done
            raise

    def _look_after(self) -> tuple[bool, int]:
        """Reopen the file if it was moved; returns whether it is regular, and its size."""
        now = os.fstat(self._fd)
        if self._path == "-":
            self._reopen = False
            return False, 0
        regular = stat.S_ISREG(now.st_mode)
        if self._reopen or (regular and not self._is_at_path(now)):
            fresh = self._open()
            os.close(self._fd)
            self._fd, self._reopen = fresh, False
            now = os.fstat(fresh)
            regular = stat.S_ISREG(now.st_mode)
        return regular, now.st_size

    def _is_at_path(self, now: os.stat_result) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (now.st_dev, now.st_ino)

    def _rotated(self) -> bool:
        """Begin a new file; False if that is not possible, which is logged once."""
        assert self._backups is not None
        try:
            self._backups.move(Path(self._path), now=self._clock())
            fresh = self._open()
        except OSError as exc:
            if not self._stuck:
                self._stuck = True
                log(
                    _log, logging.ERROR, "cannot rotate the audit log, which keeps growing",
                    path=self._path,
                    error=exc.strerror or str(exc),
                )  # fmt: skip
            return False
        os.close(self._fd)
        self._fd, self._stuck = fresh, False
        self._backups.prune(Path(self._path), now=self._clock())
        return True

    def _open(self) -> int:
        if self._path == "-":
            if sys.__stdout__ is None:  # closed at the start: 1 may be another file by now
                raise OSError(errno.EBADF, "standard output is closed")
            return 1
        # A pipe without a reader is an error, not a reason to wait.
        fd = os.open(self._path, _FLAGS | os.O_NONBLOCK, 0o600)
        try:
            os.set_blocking(fd, True)
            _end_last_line(fd, self._path)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _complain(self, exc: OSError) -> None:
        if not self._complained:
            self._complained = True
            log(
                _log, logging.ERROR, "cannot write the audit log; queued records may be lost",
                path=self._path, error=exc.strerror or str(exc),
            )  # fmt: skip


def _end_last_line(fd: int, path: str) -> None:
    """End a partial line that a killed program left: the next line must not continue it."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            os.write(fd, b"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backups:
    """How many old files to keep, and for how long; 0 means no limit."""

    most: int = 0
    max_age_days: int = 0

    def move(self, path: Path, *, now: float) -> Path:
        """Rename the file, never over another one; returns its new name."""
        while (name := _named(path, now)).exists():
            now += 0.001
        os.rename(path, name)
        return name

    def prune(self, path: Path, *, now: float) -> None:
        """Delete the oldest beyond the number, and those that are too old."""
        names = self.found(path)
        doomed = names[: max(0, len(names) - self.most)] if self.most else []
        if self.max_age_days:
            oldest = _named(path, now - self.max_age_days * _DAY_S).name
            doomed += [name for name in names if name.name < oldest]
        for name in dict.fromkeys(doomed):
            # Another process may have been faster, and failing to delete is no reason to stop.
            with contextlib.suppress(OSError):
                name.unlink()

    def found(self, path: Path) -> list[Path]:
        """The old files of this log, oldest first; only names of the form that ``move`` uses."""
        pattern = re.compile(rf"{re.escape(path.stem)}-{_STAMP}{re.escape(path.suffix)}", re.ASCII)
        with contextlib.suppress(OSError):
            return sorted(it for it in path.parent.iterdir() if pattern.fullmatch(it.name))
        return []


def _named(path: Path, now: float) -> Path:
    at = datetime.fromtimestamp(now, UTC)
    stamp = f"{at:%Y-%m-%dT%H-%M-%S}.{at.microsecond // 1000:03d}"
    return path.with_name(f"{path.stem}-{stamp}{path.suffix}")
