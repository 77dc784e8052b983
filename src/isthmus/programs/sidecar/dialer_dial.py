"""One dial of a sidecar: resolve the name, then try its addresses by the way that was chosen."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from isthmus.dial.dialers.direct import DirectDial
from isthmus.dial.rules_name_order import Resolution, Source, Way
from isthmus.errors import DialFailure, LinkError, LinkStage
from isthmus.net.connect import Dialing, Failed, Reached, literal
from isthmus.net.rules_proxies import FAILURE_OF_STATUS, ProxyAddress
from isthmus.net.socket_end import SocketEnd
from isthmus.net.through_proxy import ProxyRefused, connect_through
from isthmus.tunnel.end import BaseEnd
from isthmus.values import HostPort, is_address

if TYPE_CHECKING:
    from isthmus.programs.sidecar.dialer import SidecarDialer

#: An address gets at least so much of the time that is left, however many come after it.
_LEAST_S = 1.0
#: For what we time ourselves, with a sentence of ours.
_LATER_S = 1.0


def _nobody(*_: object) -> None:
    """Stand in for callbacks of a dial that is over."""


def _failure_of(error: LinkError) -> DialFailure:
    """What a proxy that leads nowhere says of the target."""
    if isinstance(error, ProxyRefused):
        return FAILURE_OF_STATUS.get(error.status, DialFailure.INTERNAL)
    # A proxy that is not there is no way; one that cannot prove its name is a mistake somewhere.
    return DialFailure.UNREACHABLE if error.stage is LinkStage.CONNECT else DialFailure.INTERNAL


class SidecarDial:
    """One dial under way; tells once, by one of two callbacks, unless cancelled."""

    __slots__ = (
        "_addresses",
        "_attempt",
        "_deadline",
        "_dialer",
        "_due",
        "_failed",
        "_reached",
        "_resolution",
        "_target",
        "_task",
        "_tried",
        "done",
    )

    def __init__(
        self,
        dialer: SidecarDialer,
        target: HostPort,
        *,
        timeout_s: float,
        reached: Reached,
        failed: Failed,
    ) -> None:
        self._dialer = dialer
        self._target = target
        self._due = dialer.loop.time() + timeout_s
        self._reached = reached
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._attempt: Dialing | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._resolution: Resolution | None = None
        self._addresses: list[HostPort] = []
        self._tried = 0
        self.done = False

    def cancel(self) -> None:
        """Give up silently."""
        if not self.done:
            self._finish()

    def begin(self) -> None:
        """Go on at once if the name needs nobody to be asked."""
        known = self._dialer.names.known(self._target.host)
        if known is not None:
            self._go(known)
            return
        loop = self._dialer.loop
        self._deadline = loop.call_at(
            self._due, self._fail, DialFailure.TIMED_OUT, "the name was not resolved in time"
        )
        self._task = loop.create_task(self._resolve(), name=f"resolve:{self._target.host}")

    async def _resolve(self) -> None:
        try:
            resolution = await self._dialer.names.resolve(self._target.host)
        except Exception:  # a fault of ours: whoever waits hears of it, and so does the loop
            self._task = None
            self._fail(DialFailure.INTERNAL, "the name could not be resolved, see the log")
            raise
        self._task = None  # what is done from here on is not this task's
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if not self.done:
            self._go(resolution)

    def _go(self, resolution: Resolution) -> None:
        self._resolution = resolution
        if resolution.failure is not None:
            self._fail(resolution.failure, resolution.detail)
            return
        dialer, port = self._dialer, self._target.port
        way = dialer.way(resolution, port)
        dialer.names.counts.ways[way] += 1
        # A name that has to go by the tunnel after all goes as it is: its addresses are not there.
        usable = way is resolution.way or resolution.source is Source.ADDRESS
        hosts = resolution.addresses if usable else ()
        self._addresses = [HostPort(host, port) for host in hosts or (resolution.host,)]
        denied = [why for it in self._addresses if (why := self._denied(it))]
        if denied:
            self._addresses = [it for it in self._addresses if not self._denied(it)]
            if not self._addresses:
                self._fail(DialFailure.DENIED, denied[0])
                return
        match way:
            case Way.TUNNEL:
                self._try_next()
            case Way.DIRECT:
                self._dial_directly()
            case Way.PROXIED:
                self._dial_cloud(self._addresses[0])

    def _denied(self, at: HostPort) -> str:
        return self._dialer.metadata.refuse(at.host) if is_address(at.host) else ""

    @property
    def _left_s(self) -> float:
        return max(0.0, self._due - self._dialer.loop.time())

    # Through the tunnel.

    def _try_next(self) -> None:
        """Try the next address; each has its share of the time that is left."""
        count = len(self._addresses)
        target = self._addresses.pop(0)
        self._tried += 1
        share_s = self._left_s if count == 1 else max(self._left_s / count, _LEAST_S)
        self._attempt = None
        attempt = self._dialer.tunnel.dial(
            target,
            timeout_s=min(share_s, self._left_s),
            reached=self._won,
            failed=self._one_failed,
        )
        # The callbacks may have come already, and begun the next one.
        if not self.done and not attempt.done:
            self._attempt = attempt

    def _one_failed(self, failure: DialFailure, detail: str) -> None:
        if self.done:
            return
        if self._addresses and self._left_s > 0:
            self._try_next()
            return
        assert self._resolution is not None
        if self._resolution.source is Source.GUEST_DNS:
            self._dialer.names.forget(self._resolution)
        if self._tried > 1:
            detail = f"the last of {self._tried} addresses: {detail}".removesuffix(": ")
        self._fail(failure, detail)

    # From here.

    def _dial_directly(self) -> None:
        dialer = self._dialer
        attempt = DirectDial(dialer.direct, self._left_s, self._won, self._fail)
        self._attempt = attempt
        attempt.try_each([literal(each.host, each.port) for each in self._addresses])

    def _dial_cloud(self, target: HostPort) -> None:
        proxy = self._dialer.proxies.proxy_for(target.host, target.port)
        if proxy is None:
            attempt = self._dialer.direct.dial(
                target, timeout_s=self._left_s, reached=self._won, failed=self._fail
            )
            if not self.done:
                self._attempt = attempt
            return
        self._task = self._dialer.loop.create_task(
            self._dial_by(proxy, target), name=f"proxy:{target}"
        )

    async def _dial_by(self, proxy: ProxyAddress, target: HostPort) -> None:
        dialer, left_s = self._dialer, self._left_s
        try:
            async with asyncio.timeout(left_s):
                sock = await connect_through(
                    dialer.poller,
                    dialer.resolver,
                    proxy,
                    target,
                    timeout_s=left_s + _LATER_S,
                    for_peer=True,
                )
        except TimeoutError:
            self._task = None
            self._fail(DialFailure.TIMED_OUT, f"proxy {proxy}: no way within {left_s:g} s")
            return
        except LinkError as exc:
            self._task = None
            self._fail(_failure_of(exc), str(exc))
            return
        self._task = None
        self._take(sock)

    def _take(self, sock: socket.socket) -> None:
        if self.done:
            self._dialer.poller.close(sock)
            return
        end = SocketEnd(sock, self._dialer.poller)
        self._won(end)
        end.read_again()  # what came while nobody owned the socket made its edge already

    # The end of it.

    def _won(self, end: BaseEnd) -> None:
        reached = self._reached
        self._finish()
        reached(end)

    def _fail(self, failure: DialFailure, detail: str) -> None:
        failed = self._failed
        self._finish()
        failed(failure, detail)

    def _finish(self) -> None:
        self.done = True
        self._dialer.over(self)
        # Whoever is called back keeps us: without this, neither is freed until a collection.
        self._reached, self._failed = _nobody, _nobody
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
