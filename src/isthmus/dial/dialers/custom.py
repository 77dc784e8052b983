"""Custom dialers, found by the entry point group ``isthmus.dialers``.

A package registers one under the name that configurations use:

    [project.entry-points."isthmus.dialers"]
    jump = "jump_dialer:JumpDialer"

It refers to an object with ``open``, or to a class or function that creates one without arguments.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from isthmus.errors import ConfigError, DialError, DialFailure
from isthmus.net.connect import FAILURE_OF_ERRNO, Failed
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.values import HostPort

GROUP = "isthmus.dialers"

Reached = Callable[[SocketEnd], None]


class CustomDialer(Protocol):
    """The interface of a custom dialer."""

    async def open(
        self, target: HostPort, *, timeout_s: float, options: Mapping[str, str]
    ) -> socket.socket:
        """Return a connected stream socket to the target, which Isthmus then owns.

        Raise DialError for a specific reason; an OSError is translated by its errno.
        The call is cancelled after the timeout or when the client has left.
        """


def installed() -> dict[str, EntryPoint]:
    """The installed dialers, by name."""
    return {found.name: found for found in entry_points(group=GROUP)}


def load(name: str) -> CustomDialer:
    """Load a dialer by its name.

    Raises:
        ConfigError: the name is unknown, or the dialer cannot be loaded.
    """
    there = installed()
    if name not in there:
        known = ", ".join(sorted(there)) or "none"
        raise ConfigError(f"unknown dialer {name!r}: installed are {known}")
    try:
        made = there[name].load()
        if isinstance(made, type) or not hasattr(made, "open"):
            made = made()
    except Exception as exc:
        raise ConfigError(
            f"the dialer {name!r} ({there[name].value}) cannot be loaded: {_said(exc)}"
        ) from exc
    if not callable(getattr(made, "open", None)):
        raise ConfigError(f"the dialer {name!r} ({there[name].value}) has no method open")
    dialer: CustomDialer = made
    return dialer


class ForeignDial:
    """One pending dial; calls one of two callbacks once, unless cancelled."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> None:
        """Cancel, without a callback."""
        self._task.cancel()


class ForeignDialer:
    """Wraps a custom dialer in the interface of our own."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        custom: CustomDialer,
        *,
        name: str,
        options: Mapping[str, str],
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._custom = custom
        self._name = name
        self._options = dict(options)
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<ForeignDialer {self._name!r}, {len(self._tasks)} pending>"

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> ForeignDial:
        """Open a connection; ``timeout_s`` is the total limit."""
        task = self._loop.create_task(
            self._dial(target, timeout_s, reached, failed), name=f"dialer:{self._name}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ForeignDial(task)

    def close(self) -> None:
        """Cancel all pending dials."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _dial(
        self, target: HostPort, timeout_s: float, reached: Reached, failed: Failed
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                sock = await self._custom.open(target, timeout_s=timeout_s, options=self._options)
            end = self._end(sock)
        except Exception as exc:
            failed(*self._why(exc))
            return
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            end.reset()  # the dialer ignored the cancellation, and the result is no longer wanted
        else:
            reached(end)

    def _end(self, sock: socket.socket) -> SocketEnd:
        wrong = _not_a_stream(sock)
        if wrong:
            if isinstance(sock, socket.socket):
                sock.close()
            raise TypeError(f"it returned {wrong} instead of a connected stream socket")
        sock.setblocking(False)
        return SocketEnd(sock, self._poller)

    def _why(self, exc: Exception) -> tuple[DialFailure, str]:
        by = f"by the dialer {self._name!r}"
        match exc:
            case DialError():
                return exc.reason, exc.detail
            case TimeoutError():
                return DialFailure.TIMED_OUT, f"{by}: no connection in time"
            case socket.gaierror():
                return DialFailure.UNRESOLVED, f"{by}: {_said(exc)}"
            case OSError():
                failure = FAILURE_OF_ERRNO.get(exc.errno or 0, DialFailure.INTERNAL)
                return failure, f"{by}: {exc.strerror or _said(exc)}"
            case _:
                return DialFailure.INTERNAL, f"{by}: {_said(exc)}"


def _not_a_stream(sock: object) -> str:
    """Why a dialer's result is unusable; empty if it is usable."""
    if not isinstance(sock, socket.socket):
        return f"a {type(sock).__name__}"
    if isinstance(sock, ssl.SSLSocket):
        return "an SSLSocket, which cannot be read by its descriptor"
    if sock.fileno() < 0:
        return "a closed socket"
    if not sock.type & socket.SOCK_STREAM:
        return "a socket of another type"
    return ""


def _said(exc: BaseException) -> str:
    """An exception as part of a message."""
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
