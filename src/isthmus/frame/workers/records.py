"""The audit log of a program with workers: they write records into pipes, the parent into the file.

So there is one writer, whatever the file is, and it rotates alone. A worker that dies takes no
record with it that is in its pipe already.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from isthmus.frame.audit.log import AuditLog
from isthmus.frame.audit.recording import ignore_hangup, open_audit, reopen_on_hangup
from isthmus.settings.audit import AuditSettings
from isthmus.settings.options import block_of

_READ_BYTES = 256 * 1024
#: A record is a few hundred bytes; what is longer than this is none.
_MOST_LINE = 1024 * 1024


class Records:
    """Where the records of all workers come together."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: AuditLog) -> None:
        self._loop = loop
        self.log = log
        self._pipes: dict[int, bytes] = {}
        reopen_on_hangup(loop, log)

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop, settings: object) -> Records | None:
        """Open the log, if one is asked for.

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
        """Take what is there; False when there is nothing more now."""
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
        """Write what the workers have left, and close; they are gone."""
        for reading in list(self._pipes):
            while self._read(reading):
                pass
        for reading in list(self._pipes):  # somebody else has it
            self._loop.remove_reader(reading)
            with contextlib.suppress(OSError):
                os.close(reading)
        self._pipes.clear()
        ignore_hangup(self._loop)
        await asyncio.to_thread(self.log.close)
