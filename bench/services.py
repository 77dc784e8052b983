"""The node service proxy and kube-proxy with the same Services, each on its own node.

Times come from the proxies' metrics, whose names are the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from figures import SERVICES, Against, Figure, Goal
from measure import Samples
from processes import BenchError
from report import Row, draw, rows
from rich.console import Console
from services_rig import (
    Api,
    Kind,
    Nodes,
    forks_end_quietly,
    ground,
    programs,
    run_proxy,
    served,
)

_HERE = Path(__file__).resolve().parent
OURS, THEIRS = "isthmus", "kube-proxy"
_NAMES = {Kind.ISTHMUS: OURS, Kind.KUBE_PROXY: THEIRS}
MAX_ROUNDS = 3
_CHANGES = 5
_MEMORY_AT = 3_000
_RENDERED = 5_000
_RENDERING_LIMIT_S = 120.0
# mode, number of Services → bounds of a full sync and of one changed endpoint, against kube-proxy
_GOALS = {
    ("iptables", 1_000): (1.0, 1.2),
    ("iptables", 3_000): (0.6, 1.2),
    ("nftables", 1_000): (2.0, 0.3),
    ("nftables", 3_000): (2.0, 0.1),
}
SIZES = (1_000, 3_000)
MODES = ("nftables", "iptables")


def _load(mode: str, size: int, what: str) -> str:
    return f"{SERVICES}-{mode}-{size}-{what}"


def _figures(mode: str, size: int) -> list[Figure]:
    full, change = (Goal(bound=bound, at_least=False) for bound in _GOALS[mode, size])
    title = f"{mode}, {size:,} services"
    return [
        Figure(load=_load(mode, size, "full"), field="sync_s", title=f"{title}: full sync",
               unit="s", goal=full),
        Figure(load=_load(mode, size, "full"), field="start_s", title=f"{title}: from start",
               unit="s"),
        Figure(load=_load(mode, size, "change"), field="sync_s", title=f"{title}: an endpoint",
               unit="s", goal=change),
        Figure(load=_load(mode, size, "change"), field="seen_s", title=f"{title}: API to kernel",
               unit="s"),
    ]  # fmt: skip


def _own(bound: float) -> Goal:
    return Goal(bound=bound, at_least=False, against=Against.ITSELF)


SERVICE_FIGURES = (
    *(figure for mode in MODES for size in SIZES for figure in _figures(mode, size)),
    *(
        Figure(load=_load(mode, _MEMORY_AT, "memory"), field="rss_mb",
               title=f"{mode}, {_MEMORY_AT:,} services: memory", unit="MB", goal=_own(150.0))
        for mode in MODES
    ),
    *(
        Figure(load=_load(mode, _RENDERED, "rendering"), field="render_s",
               title=f"{mode}, {_RENDERED:,} services: rendering", unit="s", goal=_own(2.0))
        for mode in MODES
    ),
)  # fmt: skip


def services_table(samples: Samples, console: Console, *, rounds: int, quick: bool) -> list[Row]:
    """Measure both proxies and draw the table; if that is impossible, print the reason."""
    binaries = programs()
    if isinstance(binaries, str):
        console.print(f"services left out: {binaries}")
        return []
    with forks_end_quietly(), console.status("services") as status, ground(binaries) as nodes:
        run = ServicesRun(
            samples=samples,
            rounds=1 if quick else min(rounds, MAX_ROUNDS),
            say=lambda text: status.update(f"services: {text}"),
            tell=console.print,
        )
        run.render()
        for size in SIZES[:1] if quick else SIZES:
            run.measure(nodes, size)
    found = rows(samples, OURS, judge=True, baseline=THEIRS, figures=SERVICE_FIGURES)
    draw(found, [THEIRS, OURS], OURS, console, baseline=THEIRS)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesRun:
    """One run of the group: ``say`` shows progress, ``tell`` lasting messages."""

    samples: Samples
    rounds: int
    say: Callable[[str], None]
    tell: Callable[[str], None]

    def render(self) -> None:
        """Let new processes render, without a kernel."""
        for _ in range(self.rounds):
            self.say(f"rendering {_RENDERED:,}")
            for mode, taken in _rendering().items():
                self._take(mode, _RENDERED, "rendering", OURS, taken)

    def measure(self, nodes: Nodes, size: int) -> None:
        """Let both proxies program the Services, in turn."""
        self.say(f"writing {size:,}")
        with served(nodes, size) as api:
            for mode in MODES:
                # kube-proxy takes minutes for this mode: measure it once.
                long = mode == "iptables" and size > SIZES[0]
                for number in range(1 if long else self.rounds):
                    kinds = [Kind.KUBE_PROXY, Kind.ISTHMUS]
                    for kind in kinds if number % 2 else kinds[::-1]:
                        self.say(f"{size:,} by {mode}, round {number + 1}: {_NAMES[kind]}")
                        self._one(nodes, api, kind, mode, size)

    def _one(self, nodes: Nodes, api: Api, kind: Kind, mode: str, size: int) -> None:
        name = _NAMES[kind]
        try:
            with run_proxy(nodes, api, kind, mode) as running:
                self._take(mode, size, "full", name, running.wait_full())
                for _ in range(_CHANGES):
                    self._take(mode, size, "change", name, running.change_endpoint())
                if size == _MEMORY_AT:
                    self._take(mode, size, "memory", name, {"rss_mb": running.rss_mb()})
        except BenchError as exc:
            if kind is Kind.ISTHMUS:
                raise
            # Most likely a slow machine: Isthmus' own figures are still useful.
            self.tell(f"{size:,} services by {mode}: {exc}")

    def _take(self, mode: str, size: int, what: str, name: str, taken: dict[str, float]) -> None:
        of_load = self.samples.setdefault(_load(mode, size, what), {})
        of_load.setdefault(name, []).append(taken)


def _rendering() -> dict[str, dict[str, float]]:
    """Let a new process render; returns the times by mode."""
    done = subprocess.run(
        [sys.executable, str(_HERE / "services_rendering.py"), str(_RENDERED)],
        capture_output=True, text=True, timeout=_RENDERING_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"rendering failed:\n{done.stderr[-2000:]}")
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found
