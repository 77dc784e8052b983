"""Living beside a kube-proxy that is still at work, until it is gone.

It is looked for at the start, which decides whether we may start at all, and again and again: its
rules are ours, and what it wrote last must not be the last word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from isthmus.errors import ConfigError
from isthmus.logs import log
from isthmus.programs.node_proxy.kernel import kube_proxy

#: How often to look while it is there.
LOOK_S = 0.5
#: An iptables-restore that it started waits so long for the lock, and writes then.
LAST_WORD_S = 6.0
Signs = Callable[[Collection[int]], Awaitable[list[str]]]
_log = logging.getLogger("isthmus.node_proxy")


class KubeProxyWatch:
    """Knows whether a kube-proxy is here.

    ``ports`` are asked for at every look: those that kube-proxy may answer at, without our own.
    ``alone`` is set while there is none.
    """

    def __init__(
        self, ports: Callable[[], Collection[int]], *, signs: Signs = kube_proxy.signs
    ) -> None:
        self.alone = asyncio.Event()
        self._ports = ports
        self._signs = signs
        self._sign = ""

    async def check(self, *, take_over: bool) -> None:
        """Look for the first time.

        Raises:
            ConfigError: there is one, and it is not to be taken over from.
        """
        self._sign = await self._look()
        if not self._sign:
            self.alone.set()
        elif not take_over:
            raise ConfigError(
                f"a kube-proxy is at work here ({self._sign}); stop it first, or take its place"
                " with --take-over"
            )
        else:
            log(_log, logging.INFO, "taking over from kube-proxy", sign=self._sign)

    async def _look(self) -> str:
        return next(iter(await self._signs(self._ports())), "")

    async def run(
        self, *, in_force: asyncio.Event, renew: Callable[[], None], period_s: float
    ) -> None:
        """Look on; ``renew`` writes all rules again, when its own may have been the last.

        ``in_force`` is set once all rules of ours were written.
        """
        if self._sign:
            await in_force.wait()
            self._say_stop("our rules are in force: kube-proxy should be stopped now")
        while True:
            await asyncio.sleep(LOOK_S if self._sign else period_s)
            before, self._sign = self._sign, await self._look()
            if self._sign and not before:
                self.alone.clear()
                self._say_stop("a kube-proxy was started beside us: it should be stopped")
            elif before and not self._sign:
                log(_log, logging.INFO, "kube-proxy is gone; writing all rules again")
                self.alone.set()
                renew()
                await asyncio.sleep(LAST_WORD_S)
                renew()

    def _say_stop(self, sentence: str) -> None:
        log(_log, logging.WARNING, sentence, sign=self._sign)
