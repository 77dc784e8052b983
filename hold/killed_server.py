"""I: the server is killed under a real kube-apiserver's traffic, which stays ready and recovers.

The kube-apiserver, etcd and the node behind a firewall are those of the interop tests; their
programs have to be built (by ``make interop``), and namespaces need root.
"""

from __future__ import annotations

import http.client
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from processes import BenchError

from hold.ground import Ground
from hold.kube_programs import NOT_BUILT, built
from hold.outcome import Outcome

if TYPE_CHECKING:
    from kube.api import Api
    from kube.tunnels import Mode, Tunnel

LETTER, TITLE = "I", "the server killed under kube-apiserver's traffic"
RECOVERY_GOAL_S = 10.0
NODE_PAGE = "/api/v1/nodes/plain/proxy/healthz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario; ``ways`` counts HTTP CONNECT over mux, and gRPC over gRPC."""

    ways: int = 2
    kills: int = 2
    up_s: float = 3.0
    down_s: float = 3.0
    pause_s: float = 0.1


FULL = Numbers()
QUICK = Numbers(ways=1, kills=1)


@dataclass(slots=True)
class Seen:
    """Requests with start, end and outcome; and the readiness of kube-apiserver."""

    requests: list[tuple[float, float, bool]] = field(default_factory=list)
    #: The time from each kill until requests were answered again.
    down: list[tuple[float, float]] = field(default_factory=list)
    ready: int = 0
    not_ready: int = 0
    recovered_s: list[float] = field(default_factory=list)

    def answered_since(self, moment: float) -> float | None:
        """The start of the first successful request after a moment."""
        return min((at for at, _, ok in list(self.requests) if ok and at > moment), default=None)

    def failed(self) -> tuple[int, int]:
        """The number of failed requests while the server was down, and at other times."""
        failed = [(began, ended) for began, ended, ok in self.requests if not ok]
        met = sum(
            any(began <= back and ended >= kill for kill, back in self.down)
            for began, ended in failed
        )
        return met, len(failed) - met


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """One path after the other, each with its own kube-apiserver."""
    outcome = Outcome(LETTER, TITLE)
    binaries = built()
    if binaries is None or os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("nft")):
        why = NOT_BUILT if binaries is None else "network namespaces need root, ip and nft"
        outcome.notes.append(f"left out: {why}")
        return outcome
    from kube.cluster import cluster
    from kube.objects import create_nodes
    from kube.tunnels import GRPC_UDS, HTTP_UDS

    ways: list[tuple[Mode, str]] = [(HTTP_UDS, "mux"), (GRPC_UDS, "grpc")]
    ground.say("I: etcd and a node start")
    with cluster(binaries) as made:
        for mode, link in ways[: numbers.ways]:
            tunnel = made.tunnel(mode)
            tunnel.agent._argv.append(f"--link={link}")
            selector = [{"name": "cluster", "connection": tunnel.connection}]
            name = f"{mode.protocol}, {link} link"
            ground.say(f"I: {name}")
            with tunnel.up(), made.control_plane.apiserver(selector=selector) as api:
                create_nodes(api)
                write(outcome, name, kill_often(numbers, tunnel, api))
    return outcome


def kill_often(numbers: Numbers, tunnel: Tunnel, api: Api) -> Seen:
    """Kill the server and start it again, under requests, while checking readiness."""
    seen = Seen()
    with asking(numbers, api, seen), watching(api, seen):
        for _ in range(numbers.kills):
            _answered(seen, since=time.monotonic())
            time.sleep(numbers.up_s)
            killed = time.monotonic()
            tunnel.server.kill()
            time.sleep(numbers.down_s)
            tunnel.server.start()
            began = time.monotonic()
            tunnel.wait_linked()
            linked = time.monotonic()
            back = max(_answered(seen, since=began), linked)
            seen.down.append((killed, back))
            seen.recovered_s.append(back - began)
        time.sleep(numbers.up_s)
    return seen


def _answered(seen: Seen, *, since: float, limit_s: float = 60.0) -> float:
    """Wait for the first successful request that starts after a moment; returns its start."""
    while time.monotonic() < since + limit_s:
        first = seen.answered_since(since)
        if first is not None:
            return first
        time.sleep(0.02)
    raise BenchError(f"no request was answered for {limit_s:.0f} s")


@contextmanager
def asking(numbers: Numbers, api: Api, seen: Seen) -> Iterator[None]:
    """Request the node's page through kube-apiserver, at most 64 at a time."""
    from kube.api import CallFailedError

    stop = threading.Event()

    def ask() -> None:
        began = time.monotonic()
        try:
            ok = api.get(NODE_PAGE) == "ok"
        except (CallFailedError, OSError, http.client.HTTPException):
            ok = False
        seen.requests.append((began, time.monotonic(), ok))

    def go_on() -> None:
        with ThreadPoolExecutor(64) as pool:
            while not stop.wait(numbers.pause_s):
                pool.submit(ask)

    with _thread(go_on, stop):
        yield


@contextmanager
def watching(api: Api, seen: Seen) -> Iterator[None]:
    """Ask kube-apiserver ten times a second whether it is ready."""
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(0.1):
            if api.is_ready():
                seen.ready += 1
            else:
                seen.not_ready += 1

    with _thread(go_on, stop):
        yield


@contextmanager
def _thread(work: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60.0)


def write(outcome: Outcome, name: str, seen: Seen) -> None:
    """The figures of one way."""
    met, other = seen.failed()
    outcome.tell(f"{name}: requests answered", len(seen.requests) - met - other)
    outcome.tell(f"{name}: requests that failed while it was down", met)
    outcome.count(f"{name}: requests that failed at any other time", other, 0)
    outcome.tell(f"{name}: times that the apiserver was asked and ready", seen.ready)
    outcome.count(f"{name}: times that it was not ready", seen.not_ready, 0)
    outcome.tell(f"{name}: kills that it came back from", len(seen.recovered_s))
    worst = max(seen.recovered_s, default=0.0)
    outcome.time(
        f"{name}: from the server's start to an answer", worst, "s", at_most=RECOVERY_GOAL_S
    )
