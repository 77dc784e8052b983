"""Detects a running kube-proxy, or another node proxy, in this network namespace.

There are two signs because each can be missing: a process of that name, which a PID namespace may
hide, and ports that answer like kube-proxy's, which it may not open.

The first check decides whether the program may start; later ones notice a kube-proxy that starts
or ends: it writes the same rules, and what it wrote last must not stay.
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
    """The signs of a kube-proxy, as phrases; ``ports`` must not contain this program's own."""
    asked = [(host, port) for port in sorted(set(ports)) for host in _LOOPBACK]
    found, *answers = await asyncio.gather(
        asyncio.to_thread(lambda: list(processes())), *(_answers(*each) for each in asked)
    )
    signs = [f"process {pid} is in this network namespace" for pid in found]
    for (host, port), path in zip(asked, answers, strict=True):
        if path:
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            signs.append(f"http://{where}{path} answers like kube-proxy")
    return signs


def processes(proc: Path = Path("/proc")) -> Iterator[int]:
    """The ids of processes called kube-proxy in this network namespace; blocks."""
    own, ours = _namespace(proc / "thread-self"), _own_line(proc)
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            # A zombie process has no namespace any more.
            if _is_named(entry) and _namespace(entry) == own:
                yield int(entry.name)
        except OSError:
            continue  # the process has ended, or belongs to another user


def _own_line(proc: Path) -> set[int]:
    """This process and its ancestors: a script called kube-proxy may have started it."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        try:
            # After the name, which is in brackets and may contain anything: state, then parent.
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
    """The path at which a port answers like kube-proxy; empty if it does not."""
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


#: The interval of checks while kube-proxy runs.
LOOK_S = 0.5
#: An iptables-restore that kube-proxy started waits this long for the lock, and then writes.
LAST_WORD_S = 6.0
Signs = Callable[[Collection[int]], Awaitable[list[str]]]
_log = logging.getLogger("isthmus.node_proxy")


class KubeProxyWatch:
    """Tracks whether a kube-proxy runs on this node.

    ``ports`` returns the ports to check: those that kube-proxy may answer on, without this
    program's own. ``alone`` is set while there is none.
    """

    def __init__(self, ports: Callable[[], Collection[int]], *, signs: Signs = find_signs) -> None:
        self.alone = asyncio.Event()
        self._ports = ports
        self._signs = signs
        self._sign = ""

    async def check(self, *, take_over: bool) -> None:
        """Check for the first time.

        Raises:
            ConfigError: a kube-proxy runs, and ``take_over`` is false.
        """
        self._sign = await self._look()
        if not self._sign:
            self.alone.set()
        elif not take_over:
            raise ConfigError(
                f"a kube-proxy is running here ({self._sign}); stop it first, or replace it with"
                " --take-over"
            )
        else:
            log(_log, logging.INFO, "taking over from kube-proxy", sign=self._sign)

    async def _look(self) -> str:
        return next(iter(await self._signs(self._ports())), "")

    async def run(
        self, *, in_force: asyncio.Event, renew: Callable[[], None], period_s: float
    ) -> None:
        """Keep checking; ``renew`` rewrites all rules after kube-proxy may have written last.

        ``in_force`` is set once all rules are written.
        """
        if self._sign:
            await in_force.wait()
            self._warn("all rules written: stop kube-proxy now")
        while True:
            await asyncio.sleep(LOOK_S if self._sign else period_s)
            before, self._sign = self._sign, await self._look()
            if self._sign and not before:
                self.alone.clear()
                self._warn("a kube-proxy was started beside this node proxy: stop it")
            elif before and not self._sign:
                log(_log, logging.INFO, "kube-proxy ended: writing all rules again")
                self.alone.set()
                renew()
                await asyncio.sleep(LAST_WORD_S)
                renew()

    def _warn(self, event: str) -> None:
        log(_log, logging.WARNING, event, sign=self._sign)
