"""Whether a kube-proxy, or another node proxy, is at work in our network namespace.

Two signs tell, for none is enough: a process of that name, which a PID namespace can hide, and
ports that answer as kube-proxy's do, which it can be told not to open.

It is looked for at the start, which decides whether we may start at all, and again and again: its
rules are ours, and what it wrote last must not be the last word.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from pathlib import Path

import aiohttp

from isthmus.errors import ConfigError
from isthmus.logs import log

NAME = "kube-proxy"
METRICS_PORT, HEALTHZ_PORT = 10249, 10256
_LOOPBACK = ("127.0.0.1", "::1")
_MODES = frozenset({"iptables", "nftables", "ipvs", "userspace", "kernelspace"})
_ANSWER_S = 2.0
_MAX_BYTES = 4096


async def find_signs(ports: Iterable[int] = (METRICS_PORT, HEALTHZ_PORT)) -> list[str]:
    """What tells of one, a clause each; ports that are our own are not to be among those given."""
    asked = [(host, port) for port in sorted(set(ports)) for host in _LOOPBACK]
    found, *answers = await asyncio.gather(
        asyncio.to_thread(lambda: list(processes())), *(_answers(*place) for place in asked)
    )
    told = [f"process {pid} is in this network namespace" for pid in found]
    for (host, port), path in zip(asked, answers, strict=True):
        if path:
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            told.append(f"http://{where}{path} answers as it does")
    return told


def processes(proc: Path = Path("/proc")) -> Iterator[int]:
    """The ids of processes called kube-proxy that share our network namespace; blocks."""
    own, ours = _namespace(proc / "thread-self"), _own_line(proc)
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            # A process that has ended and waits for its parent has no namespace any more.
            if _is_named(entry) and _namespace(entry) == own:
                yield int(entry.name)
        except OSError:
            continue  # gone by now, or not ours to look at


def _own_line(proc: Path) -> set[int]:
    """Us, and who started us: a script of that name may have."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        try:
            # Behind the name, which is in brackets and may hold anything: state, then parent.
            pid = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return line


def _is_named(entry: Path) -> bool:
    if (entry / "comm").read_bytes().rstrip(b"\n") == NAME.encode():
        return True
    with (entry / "cmdline").open("rb") as file:
        program = file.read(_MAX_BYTES).partition(b"\0")[0]
    return os.path.basename(program) == NAME.encode()


def _namespace(entry: Path) -> tuple[int, int]:
    found = (entry / "ns" / "net").stat()
    return found.st_dev, found.st_ino


async def _answers(host: str, port: int) -> str:
    """The path that a port answers at as kube-proxy does; empty if it does not."""
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            mode = await _get(session, f"http://{authority}/proxyMode")
            if mode.decode(errors="replace").strip() in _MODES:
                return "/proxyMode"
            health = json.loads(await _get(session, f"http://{authority}/healthz"))
            if isinstance(health, dict) and {"lastUpdated", "currentTime"} <= health.keys():
                return "/healthz"
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError, RecursionError):
        pass
    return ""


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url, allow_redirects=False) as answer:
        return await answer.content.read(_MAX_BYTES)


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

    def __init__(self, ports: Callable[[], Collection[int]], *, signs: Signs = find_signs) -> None:
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
