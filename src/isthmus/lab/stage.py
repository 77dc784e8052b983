"""Brings a lab up, step by step, and keeps it while something is done in it.

Blocking code: whatever runs is a process. Signals are only recorded, and checked between steps, so
that no step is interrupted before its result can be removed; if this process is killed, its
guardian removes everything.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import isthmus
from isthmus.errors import ConfigError, IsthmusError
from isthmus.frame.signals import Told
from isthmus.lab import fabric, relay, removal, servers, state
from isthmus.lab.commands import fill, values
from isthmus.lab.guardian import Guardian
from isthmus.lab.kubernetes import door, images, machine, programs
from isthmus.lab.kubernetes.bundle import NOTHING, Built, built_values
from isthmus.lab.namespaces import in_namespace
from isthmus.lab.plan import Names
from isthmus.lab.probe_messages import ProbeTlsFiles
from isthmus.lab.prober import Prober
from isthmus.lab.processes import LabPrograms, argv, last_words, log_of
from isthmus.lab.state import MARK, PKI, STATE, Lab
from isthmus.lab.topology import (
    READY_WITHIN_S,
    Cable,
    LabAttempt,
    LabFrontend,
    LabHost,
    Process,
    Run,
    Topology,
    Verb,
)
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles

T = TypeVar("T")
Progress = Callable[[str], None]

_ASK_TIMEOUT_S = 2.0
_LOOK_AGAIN_S = 0.05
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ToldToStopError(Exception):
    """A signal arrived."""


class LabError(IsthmusError):
    """A part of a lab did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStage:
    """A lab that is up, for the command that made it or came back to it."""

    lab: Lab
    topology: Topology
    values: Mapping[str, str]
    files: PkiFiles
    programs: LabPrograms
    ways: Mapping[str, LabFrontend]
    told: Told
    built: Built = NOTHING
    _probers: dict[str, Prober] = field(default_factory=dict)

    @property
    def names(self) -> Names:
        return Names(self.lab.token)

    def prober(self, host: str) -> Prober:
        """The probe on a host, started on first use."""
        if host not in self._probers:
            tls = ProbeTlsFiles(
                ca_cert=str(self.files.ca_cert),
                client_cert=str(self.files.client_cert),
                client_key=str(self.files.client_key),
            )
            log = log_of(self.lab, f"probe.{host}")
            self._probers[host] = Prober(self.names.host(host), tls=tls, log=log)
        return self._probers[host]

    def close(self) -> None:
        for prober in self._probers.values():
            prober.close()

    def wait(self, seconds: float) -> None:
        """Wait, or stop when told to.

        Raises:
            ToldToStopError: a signal arrived.
        """
        if self.told.wait(seconds):
            raise ToldToStopError

    def during(self, work: Callable[[], T]) -> T:
        """Do something that waits for a probe, or stop when told to.

        Raises:
            ToldToStopError: a signal arrived; the work continues until the probes are closed.
        """
        one = ThreadPoolExecutor(1)
        try:
            done = one.submit(work)
            while not wait([done], _LOOK_AGAIN_S).done:
                self.wait(0)
            return done.result()
        finally:
            one.shutdown(wait=False)


def enter(lab: Lab, topology: Topology, told: Told, built: Built = NOTHING) -> LabStage:
    """Attach to an existing lab."""
    files = PkiFiles.in_directory(lab.directory / PKI)
    known = {
        **values(topology, directory=str(lab.directory), files=files),
        **(built_values() if topology.builds else {}),
    }
    return LabStage(
        lab=lab,
        topology=topology,
        values=known,
        files=files,
        programs=LabPrograms(lab, known),
        ways={
            way.name: replace(way, uds=fill(way.uds, known), tcp=fill(way.tcp, known))
            for way in topology.ways
        },
        told=told,
        built=built,
    )


@contextlib.contextmanager
def standing(
    topology: Topology,
    source: str,
    *,
    firewall: str,
    without: Collection[str],
    told: Told,
    progress: Progress,
    built: Built = NOTHING,
) -> Iterator[LabStage]:
    """Have a lab up during the block, and longer if it is marked as kept by then.

    Raises:
        ConfigError: the kernel, a tool or a file prevents it; nothing is left behind.
        LabError: a program did not start; nothing is left behind.
        ToldToStopError: a signal arrived; nothing is left behind.
    """
    _check_programs(topology)
    removal.sweep()
    token = state.new_token()
    with _guarded(token, progress) as kept, contextlib.ExitStack() as stack:
        os.environ[MARK] = token  # inherited by every child
        stack.callback(os.environ.pop, MARK, None)
        born = state.made(token, topology=topology.name, source=source, firewall=firewall)
        lab = stack.enter_context(born)
        stage = stack.enter_context(contextlib.closing(enter(lab, topology, told, built)))
        try:
            _make(stage, firewall, without, progress)
        except OSError as exc:
            raise LabError(f"cannot build the lab: {exc}") from exc
        yield stage
        kept.append(lab.kept)


def _check_programs(topology: Topology) -> None:
    """Check before anything is created that all programs are installed.

    Raises:
        ConfigError: a program is missing.
    """
    missing = [name for name in topology.needs if shutil.which(name) is None]
    if missing:
        raise ConfigError(f"{topology.name} needs {', '.join(missing)}: not found in the PATH")
    runs = [step.command for step in topology.steps if isinstance(step, Run)]
    if any(isinstance(step, Cable) for step in topology.steps):
        runs.append((fabric.BRIDGE_PROGRAM,))
    for command in (*(process.command for process in topology.processes), *runs):
        program = argv(command, {"python": sys.executable})[0]
        if "{" not in program and shutil.which(program) is None:
            raise ConfigError(f"{topology.name} runs {program}: not found in the PATH")


@contextlib.contextmanager
def _guarded(token: str, progress: Progress) -> Iterator[list[bool]]:
    """Have a lab guarded; it is removed at the end unless the list says that it is kept."""
    guardian = Guardian(token)
    kept: list[bool] = []
    try:
        yield kept
    finally:
        if any(kept):
            guardian.keep()
        else:
            with contextlib.suppress(OSError):  # standard error may be closed
                progress("taking it down")
            guardian.finish()


def _make(stage: LabStage, firewall: str, without: Collection[str], progress: Progress) -> None:
    def step(what: str) -> None:
        stage.wait(0)
        progress(what)

    topology = stage.topology
    step("certificates")
    pki.init(stage.files.directory, server_names=_names_of(topology), days=1)
    for name, text in topology.files:
        with (stage.lab.directory / name).open("x") as file:
            file.write(fill(text, stage.values))
    for what, build in fabric.build_steps(topology, stage.names, firewall=firewall):
        step(what)
        try:
            build()
        except ConfigError as exc:
            raise ConfigError(f"{topology.name}: {what}: {exc}") from exc
    _start_machines(stage, step)
    for host in topology.hosts:
        _furnish(stage, host, step)
    if topology.door is not None:
        step("kubeconfig")
        command = door.command(stage.lab, topology.door, stage.names.host(topology.door.host))
        stage.programs.launch(door.NAME, command)
    started = [one for one in topology.processes if one.start and one.name not in without]
    ready: set[str] = set()
    for process in sorted(started, key=lambda one: bool(one.after)):
        for one in started:
            if one.name in process.after and one.name not in ready:
                step(f"waiting for {one.name}")
                wait_ready(stage, one)
                ready.add(one.name)
        step(f"starting {process.name}")
        stage.programs.start(process)
    for host in topology.hosts:
        if host.serves:
            step(f"waiting for the servers of {host.name}")
            for serve in host.serves:
                _wait_ready(stage, _servers_of(host), host.name, f"tcp:{serve.port}")
    # An agent is not ready without the server that the user wants to start by hand.
    for process in () if without else (one for one in started if one.name not in ready):
        step(f"waiting for {process.name}")
        wait_ready(stage, process)
    _check_running(stage)
    step("ready")


def _check_running(stage: LabStage) -> None:
    """Fail if a program ended at once.

    Raises:
        LabError: a program ended.
    """
    for name, code in stage.programs.ended():
        if code:
            raise LabError(_ended(stage, name, code))


def _ended(stage: LabStage, name: str, code: int) -> str:
    said = last_words(stage.lab, name)
    return f"{name} ended with exit code {code}: {said or 'no output'}"


def _names_of(topology: Topology) -> list[str]:
    """All names by which a server of the lab may be addressed."""
    hosts = [name for host in topology.hosts for name in (host.name, *map(str, host.addresses))]
    more = [text for name, address in topology.names for text in (name, str(address))]
    services = [str(one.address) for host in topology.hosts for one in host.services]
    return list(dict.fromkeys([*_LOOPBACK, *hosts, *more, *services]))


def _start_machines(stage: LabStage, step: Progress) -> None:
    """Start the hosts that are machines, each with its files on a disk and the images that it has.

    Raises:
        LabError: one does not come up.
    """
    hosts = [host for host in stage.topology.hosts if host.machine]
    if not hosts:
        return
    folder = programs.cache() / "nodes" / stage.lab.token
    folder.mkdir(parents=True)
    (stage.lab.directory / STATE).symlink_to(folder)
    prefixes = (sys.prefix, sys.base_prefix, isthmus.__path__[0])
    see = [stage.lab.directory, *map(Path, prefixes), programs.cache()]
    pids = {}
    for host in hosts:
        step(f"machine {host.name}")
        state = stage.lab.machine(host.name)
        command = machine.command(stage.lab.token, host.name, state=state.resolve(), see=see)
        if stage.built.images is not None:
            own = machine.folder(state.resolve(), "/var/lib/containerd")
            images.copy(stage.built.images, Path(own))
        pids[host.name] = stage.programs.launch(f"machine.{host.name}", command)
    for name, pid in pids.items():
        _wait_up(stage, name, pid)


def _wait_up(stage: LabStage, host: str, pid: int) -> None:
    name, give_up_at = f"machine.{host}", time.monotonic() + READY_WITHIN_S
    while not machine.is_up(stage.lab.machine(host), pid):
        if (code := stage.programs.exit_code(name)) is not None:
            raise LabError(_ended(stage, name, code))
        if time.monotonic() > give_up_at:
            raise LabError(_late(stage, name, READY_WITHIN_S, "ready"))
        stage.wait(_LOOK_AGAIN_S)


def _servers_of(host: LabHost) -> str:
    return f"servers.{host.name}"  # the dot separates it from processes of a topology


def _furnish(stage: LabStage, host: LabHost, step: Progress) -> None:
    """Start a host's bad lines and small servers."""
    for attachment in host.attachments:
        if attachment.shape is not None:
            step(f"line of {host.name} to {attachment.network}")
            name = f"line.{host.name}.{attachment.network}"
            command = relay.command(
                namespace=stage.names.host(host.name),
                near=attachment.network,
                far=stage.names.port(host.name, attachment.network),
                shape=attachment.shape,
            )
            stage.programs.launch(name, in_namespace(stage.names.wall, command))
    if host.serves:
        step(f"servers of {host.name}")
        command = servers.command(
            host, cert=str(stage.files.server_cert), key=str(stage.files.server_key)
        )
        stage.programs.launch(_servers_of(host), in_namespace(stage.names.host(host.name), command))
    if host.serves or any(process.ready for process in host.processes):
        stage.prober(host.name)  # start the probe early: it takes time


def wait_ready(stage: LabStage, process: Process) -> None:
    """Wait until a started process is ready.

    Raises:
        LabError: it ended, or is not ready in time; the message has its last log line.
        ToldToStopError: a signal arrived.
    """
    if process.once:
        _wait_done(stage, process)
    elif process.ready:
        ready = fill(process.ready, stage.values)
        _wait_ready(stage, process.name, process.host, ready, within_s=process.within_s)
    elif code := stage.programs.exit_code(process.name):
        raise LabError(_ended(stage, process.name, code))


def _wait_done(stage: LabStage, process: Process) -> None:
    give_up_at = time.monotonic() + process.within_s
    while (code := stage.programs.exit_code(process.name)) is None:
        if time.monotonic() > give_up_at:
            raise LabError(_late(stage, process.name, process.within_s, "done"))
        stage.wait(_LOOK_AGAIN_S)
    if code:
        raise LabError(_ended(stage, process.name, code))


def _late(stage: LabStage, name: str, within_s: float, what: str) -> str:
    said = last_words(stage.lab, name)
    return f"{name} is not {what} after {within_s:g} s: {said or 'no output'}"


def _wait_ready(
    stage: LabStage, name: str, host: str, ready: str, *, within_s: float = READY_WITHIN_S
) -> None:
    give_up_at = time.monotonic() + within_s
    prober = stage.prober(host)
    is_ready = partial(_listens if ready.startswith("tcp:") else _answers, prober, ready)
    while True:
        answers = is_ready()
        # Checked afterwards: another program may answer on the port.
        code = stage.programs.exit_code(name)
        if code is not None:
            raise LabError(_ended(stage, name, code))
        if answers:
            return
        if time.monotonic() > give_up_at:
            raise LabError(_late(stage, name, within_s, "ready"))
        stage.wait(_LOOK_AGAIN_S)


def _listens(prober: Prober, ready: str) -> bool:
    target = f"127.0.0.1:{ready.removeprefix('tcp:')}"
    knock = LabAttempt(source="", verb=Verb.CONNECT, target=target, timeout_s=_ASK_TIMEOUT_S)
    return prober.attempt(knock, None).worked


def _answers(prober: Prober, ready: str) -> bool:
    with contextlib.suppress(OSError):
        return prober.fetch(ready, timeout_s=_ASK_TIMEOUT_S)[0] == 200
    return False
