"""Waiting for a dialer: any of ours tells by callbacks, and coroutines want to await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from isthmus.errors import DialError, DialFailure
from isthmus.net.connect import Failed
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.values import HostPort

Reached = Callable[[Any], None]  # each dialer gives its own kind of end


class TunnelResetError(ConnectionResetError):
    """A tunnel was reset, or lost, somewhere on the way; the message says how it ended."""


class Dialing(Protocol):
    """A dial under way."""

    def cancel(self) -> None:
        """Give up silently."""


class AnyDialer(Protocol):
    """Any of our dialers."""

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> Dialing:
        """Open a connection; see DirectDialer."""


#: A dial as a function of its deadline and its two callbacks.
Start = Callable[[float, Reached, Failed], Dialing]


async def reach(
    start: Start, target: HostPort, timeout_s: float, under_way: set[Failed] | None = None
) -> BaseEnd:
    """Dial, and wait; when cancelled, nothing of the dial is left.

    ``under_way`` holds, as long as it waits, a call that ends the dial for the reason it is given.

    Raises:
        DialError: the target was not reached.
    """
    answer: asyncio.Future[BaseEnd] = asyncio.get_running_loop().create_future()

    def reached(end: BaseEnd) -> None:
        if answer.done():
            end.abort(Ending.CANCELLED)
        else:
            answer.set_result(end)

    def failed(failure: DialFailure, detail: str) -> None:
        if not answer.done():
            answer.set_exception(DialError(failure, target, detail))

    def give_up(failure: DialFailure, detail: str) -> None:
        dial.cancel()
        failed(failure, detail)

    dial = start(timeout_s, reached, failed)
    if under_way is not None:
        under_way.add(give_up)
    try:
        return await answer
    except asyncio.CancelledError:
        dial.cancel()
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            answer.result().abort(Ending.CANCELLED)  # it came before we heard of it
        raise
    finally:
        if under_way is not None:
            under_way.discard(give_up)


async def reach_by(dialer: AnyDialer, target: HostPort, timeout_s: float) -> BaseEnd:
    """Dial a target with nothing to say besides, and wait; see ``reach``."""

    def start(timeout_s: float, reached: Reached, failed: Failed) -> Dialing:
        return dialer.dial(target, timeout_s=timeout_s, reached=reached, failed=failed)

    return await reach(start, target, timeout_s)
