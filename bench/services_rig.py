"""Services for the node service proxies to program, and both proxies on separate nodes.

Namespaces, the API server and kube-proxy are those of ``make interop`` (tests/interop/kube).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from processes import BenchError, process_tree, rss_kb

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "interop"))

# After the change of sys.path above.
from kube.api import Api
from kube.build import Binaries, NotBuiltError, build
from kube.node_proxy_ground import Nodes
from kube.node_proxy_ground import nodes as ground
from kube.node_proxy_objects import At, Objects, slice_of
from kube.node_proxy_programs import Kind, Proxy, proxy
from kube.node_proxy_writing import replace, write, write_node

__all__ = [
    "Api",
    "Kind",
    "Nodes",
    "Running",
    "forks_end_quietly",
    "ground",
    "make_objects",
    "programs",
    "run_proxy",
    "served",
]

ENDPOINTS = 10
_V4 = "IPv4"
_LAST = f'kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family="{_V4}"}}'
_FLAGS = ("--cluster-cidr=10.180.0.0/16",)
_TOOLS = ("ip", "nft", "iptables-restore", "iptables-save")
_TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
_DURATION = "kubeproxy_sync_proxy_rules_duration_seconds"
_FULL = "kubeproxy_sync_full_proxy_rules_duration_seconds"
_SEEN = "kubeproxy_network_programming_duration_seconds"
# A proxy waits this long between syncs: a change is then applied at once.
_SETTLE_S = 1.3
# kube-proxy takes minutes for many Services; the limit ends what hangs.
SYNC_LIMIT_S = 600.0
# Rarely: a proxy that serves metrics does not sync meanwhile.
_LOOK_AGAIN_S = 0.25


def programs() -> Binaries | str:
    """Find or build the programs; returns them, or the reason why that is impossible."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        return f"network namespaces need root{''.join(f' and {tool}' for tool in missing)}"
    try:
        return build(lambda line: None)
    except NotBuiltError as exc:
        return str(exc)


@contextmanager
def forks_end_quietly() -> Iterator[None]:
    """Let children that pyroute2 forks and terminates end quietly during the block.

    They inherit the handler of SIGTERM, and would run this process's cleanup.
    """
    parent, before = os.getpid(), signal.getsignal(signal.SIGTERM)

    def ended(number: int, frame: FrameType | None) -> None:
        if os.getpid() != parent:
            os._exit(1)
        if callable(before):
            before(number, frame)

    if callable(before):
        signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ats(number: int, first: int = 0) -> list[At]:
    return [At(number=number * ENDPOINTS + first + i) for i in range(ENDPOINTS)]


def make_objects(services: int) -> Objects:
    """Make Services with ten endpoints each."""
    made = Objects()
    for number in range(services):
        made.add(f"service-{number}", _ats(number), families=(_V4,))
    return made


@contextmanager
def served(nodes: Nodes, services: int) -> Iterator[Api]:
    """Run an apiserver with Services of ten endpoints each, during the block."""
    made = make_objects(services)
    with nodes.apiserver() as api:
        write_node(api)
        write(api, made.services, made.slices)
        yield api


class Running:
    """A proxy after its first full sync, measured by its own metrics."""

    def __init__(self, api: Api, proxy: Proxy, began: float) -> None:
        self._api = api
        self._began = began
        self._proxy = proxy
        self._metrics: dict[str, float] = {}
        self._changes = 0

    def wait_full(self) -> dict[str, float]:
        """Wait for the first sync; returns its seconds, and those since the process's start."""
        self._metrics = self._wait({_key(name, "count"): 1 for name in (_FULL, _DURATION)})
        return {
            # kube-proxy may sync twice, when it learns its node's labels.
            "sync_s": self._mean({}, _FULL),
            "start_s": self._metrics[_LAST] - self._began,
        }

    def change_endpoint(self) -> dict[str, float]:
        """Change one endpoint; returns seconds of the sync, and from the change to its end."""
        time.sleep(_SETTLE_S)
        before = self._metrics
        self._changes += 1
        ats = _ats(self._changes)
        ats[0] = At(number=60_000 + self._changes)
        body = slice_of(f"service-{self._changes}", _V4, ats)
        body["metadata"]["annotations"] = {_TRIGGER: datetime.now(UTC).isoformat()}
        replace(self._api, slices=[body])
        counts = [_key(name, "count") for name in (_DURATION, _SEEN)]
        self._metrics = self._wait({count: before.get(count, 0) + 1 for count in counts})
        return {
            "sync_s": self._mean(before, _DURATION),
            "seen_s": self._mean(before, _SEEN),
        }

    def restore(self) -> None:
        """Undo the changes, so that the next proxy finds the same objects."""
        numbers = range(1, self._changes + 1)
        replace(self._api, slices=[slice_of(f"service-{n}", _V4, _ats(n)) for n in numbers])

    def rss_mb(self) -> float:
        """Its resident memory."""
        return rss_kb(process_tree([self._proxy.program.pid])) / 1000

    def _mean(self, before: dict[str, float], name: str) -> float:
        total, count = (
            self._metrics[_key(name, part)] - before.get(_key(name, part), 0.0)
            for part in ("sum", "count")
        )
        return total / count

    def _wait(self, wanted: dict[str, float]) -> dict[str, float]:
        def reached(found: Mapping[str, float]) -> bool:
            return all(found.get(key, 0) >= least for key, least in wanted.items())

        try:
            return self._proxy.wait_metrics(
                reached, f"metrics {wanted}", every_s=_LOOK_AGAIN_S, limit_s=SYNC_LIMIT_S
            )
        except AssertionError as exc:
            why = str(exc) if not self._proxy.program.running else f"{SYNC_LIMIT_S:g} s passed"
            raise BenchError(f"{self._proxy.kind.value} was not done: {why}") from exc


def _key(name: str, part: str) -> str:
    return f'{name}_{part}{{ip_family="{_V4}"}}'


@contextmanager
def run_proxy(nodes: Nodes, api: Api, kind: Kind, mode: str) -> Iterator[Running]:
    """Run a proxy on a new node during the block."""
    began = time.time()
    with proxy(nodes, api, kind, mode, _FLAGS) as one:
        running = Running(api, one, began)
        try:
            yield running
        finally:
            running.restore()
