"""Bringing a lab up, step by step, and holding it while something is done in it.

Blocking code: what runs are processes. A signal is only noted, and looked at between two deeds, so
that nothing is ever interrupted between making a thing and being able to remove it; and should this
process be killed, its guardian removes everything.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from isthmus.app import pki
from isthmus.app.pki import PkiFiles
from isthmus.errors import ConfigError, IsthmusError
from isthmus.lab import fabric, relay, removal, servers, state
from isthmus.lab.guardian import Guardian
from isthmus.lab.outcome import TlsFiles
from isthmus.lab.placeholders import fill, values
from isthmus.lab.plan import Names
from isthmus.lab.prober import Prober
from isthmus.lab.processes import Programs, last_words, log_of
from isthmus.lab.state import MARK, Lab
from isthmus.lab.topology import Attempt, Host, Process, Topology, Verb, Way

Progress = Callable[[str], None]
Told = threading.Event

READY_TIMEOUT_S = 60.0
_ASK_TIMEOUT_S = 2.0
_LOOK_AGAIN_S = 0.05
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ToldToStopError(Exception):
    """A signal came while something was under way."""


class LabError(IsthmusError):
    """Something in a lab did not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A lab that is up, in the hands of who made it or came back to it."""

    lab: Lab
    topology: Topology
    values: Mapping[str, str]
    files: PkiFiles
    programs: Programs
    ways: Mapping[str, Way]
    told: Told
    _probers: dict[str, Prober] = field(default_factory=dict)

    @property
    def names(self) -> Names:
        """What its namespaces are called."""
        return Names(self.lab.token)

    def prober(self, host: str) -> Prober:
        """The probe on a host, started when first asked for."""
        if host not in self._probers:
            tls = TlsFiles(
                ca_cert=str(self.files.ca_cert),
                client_cert=str(self.files.client_cert),
                client_key=str(self.files.client_key),
            )
            log = log_of(self.lab, f"probe-{host}")
            self._probers[host] = Prober(self.names.host(host), tls=tls, log=log)
        return self._probers[host]

    def close(self) -> None:
        """End the probes."""
        for prober in self._probers.values():
            prober.close()

    def wait(self, seconds: float) -> None:
        """Wait, or stop when told to.

        Raises:
            ToldToStopError: a signal came.
        """
        if self.told.wait(seconds):
            raise ToldToStopError


def enter(lab: Lab, topology: Topology, told: Told) -> Stage:
    """Come to a lab that is there."""
    files = PkiFiles.in_directory(lab.directory / "pki")
    known = values(topology, directory=str(lab.directory), files=files)
    return Stage(
        lab=lab,
        topology=topology,
        values=known,
        files=files,
        programs=Programs(lab, known),
        ways={
            way.name: replace(way, uds=fill(way.uds, known), tcp=fill(way.tcp, known))
            for way in topology.ways
        },
        told=told,
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
) -> Iterator[Stage]:
    """Have a lab up for the time of the block, and longer if it was kept by then.

    Raises:
        ConfigError: the kernel, a tool or a file does not allow it; nothing is left behind.
        LabError: a program did not come up; nothing is left behind.
        ToldToStopError: a signal came; nothing is left behind.
    """
    missing = [name for name in topology.needs if shutil.which(name) is None]
    if missing:
        raise ConfigError(f"{topology.name} needs {', '.join(missing)}, not found in the PATH")
    for left in filter(state.is_left_over, state.labs()):
        removal.remove(left.token)
    token = state.new_token()
    guardian = Guardian(token)
    try:
        os.environ[MARK] = token  # for every child, from its first moment on
        lab = state.make(token, topology=topology.name, source=source, firewall=firewall)
        with lab.owned(), contextlib.closing(enter(lab, topology, told)) as stage:
            _make(stage, firewall, without, progress)
            yield stage
    except BaseException:
        _take_down(guardian, progress)
        raise
    finally:
        os.environ.pop(MARK, None)
    if lab.kept:
        guardian.keep()
    else:
        _take_down(guardian, progress)


def _take_down(guardian: Guardian, progress: Progress) -> None:
    with contextlib.suppress(OSError):  # perhaps nobody reads what we say any more
        progress("taking it down")
    guardian.finish()


def _make(stage: Stage, firewall: str, without: Collection[str], progress: Progress) -> None:
    def step(what: str) -> None:
        stage.wait(0)
        progress(what)

    topology = stage.topology
    step("certificates")
    pki.init(stage.files.directory, server_names=_names_of(topology), days=1)
    for name, text in topology.files:
        (stage.lab.directory / name).write_text(fill(text, stage.values))
    for what, deed in fabric.deeds(topology, stage.names, firewall=firewall):
        step(what)
        deed()
    for host in topology.hosts:
        _furnish(stage, host, step)
    started = [one for one in topology.processes if one.start and one.name not in without]
    for process in started:
        step(f"starting {process.name}")
        stage.programs.start(process)
    for host in topology.hosts:
        if host.serves:
            step(f"waiting for the servers of {host.name}")
            for serve in host.serves:
                _wait_ready(stage, _servers_of(host), host.name, f"tcp:{serve.port}")
    for process in started:
        step(f"waiting for {process.name}")
        wait_ready(stage, process)
    step("ready")


def _names_of(topology: Topology) -> list[str]:
    """Everything that a server in it may be called."""
    hosts = [name for host in topology.hosts for name in (host.name, *map(str, host.addresses))]
    more = [text for name, address in topology.names for text in (name, str(address))]
    services = [str(one.address) for host in topology.hosts for one in host.services]
    return list(dict.fromkeys([*_LOOPBACK, *hosts, *more, *services]))


def _servers_of(host: Host) -> str:
    return f"servers-{host.name}"


def _furnish(stage: Stage, host: Host, step: Progress) -> None:
    """Start what a host has besides its processes: bad lines and small servers."""
    for attachment in host.attachments:
        if attachment.shape is not None:
            step(f"line of {host.name} to {attachment.network}")
            name = f"line-{host.name}-{attachment.network}"
            command = relay.command(
                namespace=stage.names.host(host.name),
                near=attachment.network,
                far=stage.names.port(host.name, attachment.network),
                shape=attachment.shape,
            )
            stage.programs.launch(name, stage.names.wall, command)
    if host.serves:
        step(f"servers of {host.name}")
        command = servers.command(
            host, cert=str(stage.files.server_cert), key=str(stage.files.server_key)
        )
        stage.programs.launch(_servers_of(host), stage.names.host(host.name), command)


def wait_ready(stage: Stage, process: Process) -> None:
    """Wait until a process that was started is ready.

    Raises:
        LabError: it ended, or is not ready in time; its last words are in the sentence.
        ToldToStopError: a signal came.
    """
    if process.ready:
        _wait_ready(stage, process.name, process.host, fill(process.ready, stage.values))


def _wait_ready(stage: Stage, name: str, host: str, ready: str) -> None:
    give_up_at = time.monotonic() + READY_TIMEOUT_S
    prober = stage.prober(host)
    is_ready = partial(_listens if ready.startswith("tcp:") else _answers, prober, ready)
    while not is_ready():
        code = stage.programs.exit_code(name)
        if code is not None:
            said = last_words(stage.lab, name)
            raise LabError(f"{name} ended with exit code {code}: {said or 'it said nothing'}")
        if time.monotonic() > give_up_at:
            said = last_words(stage.lab, name)
            raise LabError(f"{name} is not ready after {READY_TIMEOUT_S:g} s: {said or 'silent'}")
        stage.wait(_LOOK_AGAIN_S)


def _listens(prober: Prober, ready: str) -> bool:
    target = f"127.0.0.1:{ready.removeprefix('tcp:')}"
    knock = Attempt(source="", verb=Verb.CONNECT, target=target, timeout_s=_ASK_TIMEOUT_S)
    return prober.attempt(knock, None).worked


def _answers(prober: Prober, ready: str) -> bool:
    with contextlib.suppress(OSError):
        return prober.fetch(ready, timeout_s=_ASK_TIMEOUT_S)[0] == 200
    return False
