"""The work of the lab's commands: run a topology, bring it up, take it down, show it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from isthmus.errors import ConfigError, IsthmusError
from isthmus.frame.signals import Told, noting_signals
from isthmus.lab import catalog, fabric, reading, removal
from isthmus.lab.kubernetes import bundle
from isthmus.lab.kubernetes.bundle import NOTHING, Built
from isthmus.lab.kubernetes.programs import PROGRAMS
from isthmus.lab.namespaces import in_namespace
from isthmus.lab.picture_live import LiveState
from isthmus.lab.plan import WALL, Names
from isthmus.lab.processes import for_people, last_words, on_host, runs, was_started
from isthmus.lab.stage import LabStage, enter, standing
from isthmus.lab.state import Lab
from isthmus.lab.steps import StepResult, describe, perform, snapshot
from isthmus.lab.topology import LabStep, Topology
from isthmus.text.suggestions import nearest

_OWNER_TIMEOUT_S = 15.0
_LOOK_AGAIN_S = 0.05


class Display(Protocol):
    """Receives progress."""

    def doing(self, what: str) -> None: ...

    def say(self, sentence: str) -> None: ...

    def seen(self, number: int, of: int, seen: StepResult) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run: the result of each step, and the overall verdict."""

    topology: str
    token: str
    firewall: str
    steps: tuple[StepResult, ...]
    of: int
    kept: bool
    up_s: float
    took_s: float

    @property
    def held(self) -> bool:
        """Whether every step was performed and held, and no program failed."""
        return all(seen.held for seen in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The user's options besides the topology."""

    firewall: str = ""
    without: tuple[str, ...] = ()
    keep: bool = False
    path: tuple[str, ...] = ()


def need_root() -> None:
    """Check for root.

    Raises:
        ConfigError: this process cannot create network namespaces.
    """
    if os.geteuid() != 0:
        raise ConfigError("isthmus lab needs root to create network namespaces: use sudo")


def run(name: str, wishes: RunOptions, display: Display) -> RunReport:
    """Bring a topology up, perform its steps, and take it down.

    Raises:
        ConfigError: the topology is invalid, or this machine cannot build it.
        LabError: a program did not start.
        ToldToStopError: a signal arrived.
    """
    need_root()
    topology, source, built = _load(name, wishes, display)
    began = time.monotonic()
    with (
        noting_signals() as told,
        standing(
            topology,
            source,
            firewall=fabric.find_firewall(wishes.firewall),
            without=(),
            told=told,
            progress=display.doing,
            built=built,
        ) as stage,
    ):
        up_s = time.monotonic() - began
        steps = _perform(stage, topology.steps, display)
        if wishes.keep:
            stage.lab.keep()
        report = RunReport(
            topology=topology.name,
            token=stage.lab.token,
            firewall=stage.lab.firewall,
            steps=tuple(steps),
            of=len(topology.steps),
            kept=wishes.keep,
            up_s=up_s,
            took_s=time.monotonic() - began,
        )
    return report


def _load(name: str, wishes: RunOptions, display: Display) -> tuple[Topology, str, Built]:
    # Programs of a lab have another working directory.
    _look_in([os.path.abspath(path) for path in wishes.path])
    source = catalog.text(name)
    topology, sentences = fabric.effective(catalog.parse(name, source))
    for sentence in sentences:
        display.say(sentence)
    _check(wishes.without, topology)
    return topology, source, build(topology, display)


def build(topology: Topology, display: Display) -> Built:
    """Build what a topology says is built, if any of it is missing, and have it in the PATH.

    Raises:
        ConfigError: this machine cannot have it.
        NotBuiltError: it cannot be built.
    """
    if not topology.builds:
        return NOTHING
    bundle.check()
    built = bundle.build(display.doing)
    _look_in(map(str, built.directories))
    return built


def _look_in(directories: Iterable[str]) -> None:
    """Look for programs in these directories first."""
    os.environ["PATH"] = os.pathsep.join([*directories, os.environ.get("PATH", os.defpath)])


def _check(without: Collection[str], topology: Topology) -> None:
    known = {process.name for process in topology.processes}
    for name in without:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"--without={name}: no such process; {topology.name} has {there}")


def _perform(stage: LabStage, steps: Sequence[LabStep], display: Display) -> list[StepResult]:
    done = [describe(stage.topology, step) for step in steps]
    for number, step in enumerate(steps, 1):
        stage.wait(0)
        display.doing(f"step {number} of {len(steps)}")
        broken = False
        try:
            seen = perform(stage, step)
        except (IsthmusError, OSError, ValueError) as exc:
            seen, broken = replace(done[number - 1], seen=str(exc)), True
        done[number - 1] = seen
        display.seen(number, len(steps), seen)
        if broken:
            break  # later steps depend on this one
    stage.wait(0)
    return [*done, *_unasked(stage)]


def _unasked(stage: LabStage) -> list[StepResult]:
    """The programs that failed on their own."""
    return [
        StepResult(
            source="", what=name, through="", expected="runs",
            seen=f"ended with exit code {code}: {last_words(stage.lab, name)}",
        )
        for name, code in stage.programs.ended()
        if code
    ]  # fmt: skip


def up(name: str, wishes: RunOptions, display: Display) -> Lab:
    """Bring a topology up and leave it.

    Raises:
        ConfigError, LabError, ToldToStopError: as in ``run``; nothing is left behind.
    """
    need_root()
    topology, source, built = _load(name, wishes, display)
    with (
        noting_signals() as told,
        standing(
            topology,
            source,
            firewall=fabric.find_firewall(wishes.firewall),
            without=wishes.without,
            told=told,
            progress=display.doing,
            built=built,
        ) as stage,
    ):
        stage.lab.keep()
    return stage.lab


def down(labs: Iterable[Lab]) -> None:
    """Take labs down; a command that works on one is asked to end first.

    Raises:
        ConfigError: that command does not end.
    """
    need_root()
    for lab in labs:
        _end_owner(lab)
        with lab.owned():  # if the lab is gone by now, remove() does nothing
            removal.remove(lab.token)


def _end_owner(lab: Lab) -> None:
    """Ask the command that works on a lab to end, and kill it if it does not."""
    # A stopped process handles SIGTERM only once it continues.
    for numbers in ((signal.SIGTERM, signal.SIGCONT), (signal.SIGKILL,)):
        give_up_at = time.monotonic() + _OWNER_TIMEOUT_S
        if not (owner := lab.owner):
            return
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner, number)
        while lab.owner and time.monotonic() < give_up_at:
            time.sleep(_LOOK_AGAIN_S)
    if owner := lab.owner:
        raise ConfigError(f"lab {lab.token}: process {owner} is working on it and does not end")


def topology_of(lab: Lab) -> Topology:
    """The topology of a lab, as it was when the lab was built.

    Raises:
        ConfigError: the lab is incomplete.
    """
    read = reading.read(lab.source, name=lab.topology, source=f"lab {lab.token}")
    return fabric.effective(read)[0]


def look(lab: Lab) -> tuple[Topology, LiveState]:
    """The state of a lab: its processes, and the snapshots of its servers and agents.

    Raises:
        ConfigError: the lab is incomplete.
    """
    need_root()
    topology = topology_of(lab)
    with contextlib.closing(enter(lab, topology, Told())) as stage:
        running, snapshots = {}, {}
        for process in topology.processes:
            picture = snapshot(stage, process)
            if picture is not None:
                snapshots[process.name] = picture
            # A process started by hand has no pid file, but answers all the same.
            if picture is not None or was_started(lab, process):
                running[process.name] = picture is not None or runs(lab, process)
    return topology, LiveState(running=running, snapshots=snapshots)


def shell_command(lab: Lab, host: str, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command that runs words on a host, by default a shell; and its environment.

    Raises:
        ConfigError: there is no such host.
    """
    topology = topology_of(lab)
    hosts = [*(one.name for one in topology.hosts), WALL]
    if host not in hosts:
        raise ConfigError(f"{host}: no such host in lab {lab.token}{nearest(host, hosts)}")
    if topology.builds:
        _look_in(str(target.directory) for target in PROGRAMS)
    variables = for_people(lab, topology)
    own = Path(sys.executable).parent  # where isthmus is, if installed with this Python
    variables |= {
        "LAB": str(lab.directory),
        "PATH": f"{own}{os.pathsep}{variables.get('PATH', os.defpath)}",
        "debian_chroot": host,  # bash shows it in the prompt
    }
    words = words or [os.environ.get("SHELL", "/bin/sh")]
    if host == WALL:
        return in_namespace(Names(lab.token).wall, words), variables
    return on_host(lab, host, words), variables
