"""The programs of a lab: started on their hosts, signalled, and found again by other commands.

Programs outlive their starter, because ``lab up`` ends and the lab stays; removal.py ends them.
Their output goes to ``logs/`` in the lab's directory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.lab.commands import fill
from isthmus.lab.kubernetes import machine
from isthmus.lab.namespaces import in_namespace
from isthmus.lab.plan import Names
from isthmus.lab.python import module
from isthmus.lab.removal import NETNS, began_at, space_of
from isthmus.lab.state import LOGS, MARK, PIDS, Lab
from isthmus.lab.topology import Deed, Process, Topology

#: A program that drains takes 25 s at most, unless it is told otherwise.
_STOP_TIMEOUT_S = 35.0
_SIGNALS = {
    Deed.STOP: signal.SIGTERM,
    Deed.KILL: signal.SIGKILL,
    Deed.FREEZE: signal.SIGSTOP,
    Deed.THAW: signal.SIGCONT,
}
ISTHMUS = tuple(module("isthmus.cli.main"))
_PROXIES = {f"{of}_proxy" for of in ("http", "https", "no", "all")}


def environment(token: str, **more: str) -> dict[str, str]:
    """This process's environment with the lab's mark, and without proxy settings."""
    kept = {name: value for name, value in os.environ.items() if name.lower() not in _PROXIES}
    return {**kept, MARK: token, **more}


def for_people(lab: Lab, topology: Topology) -> dict[str, str]:
    """The environment of what people and steps run on a host: kubectl finds its cluster."""
    if topology.door is None:
        return environment(lab.token)
    return environment(lab.token, KUBECONFIG=str(lab.directory / topology.door.kubeconfig))


def argv(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Fill in a command's placeholders; ``isthmus`` is this installation, whatever the PATH."""
    words = [fill(word, values) for word in command]
    return [*ISTHMUS, *words[1:]] if words[0] == "isthmus" else words


class LabPrograms:
    """The programs of one lab, for the command that started them."""

    def __init__(self, lab: Lab, values: Mapping[str, str]) -> None:
        self._lab = lab
        self._values = values
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        self._on_machines: set[str] = set()

    def start(self, process: Process) -> None:
        """Start a process of the topology.

        Raises:
            ConfigError: it is running, or cannot be started.
        """
        command = on_host(self._lab, process.host, argv(process.command, self._values))
        if self._lab.machine(process.host).exists():
            self._on_machines.add(process.name)
        self.launch(process.name, command)

    def launch(self, name: str, command: Sequence[str]) -> int:
        """Start a command under a name; returns its pid."""
        if self.running(name):
            raise ConfigError(f"{name} is already running")
        self._told.discard(name)
        path = log_of(self._lab, name)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as log:
            self._children[name] = child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._lab.directory,
                env=environment(self._lab.token),
                start_new_session=True,
            )
        pid_file = _pid_file(self._lab, name)
        pid_file.parent.mkdir(exist_ok=True)
        pid_file.write_text(f"{child.pid} {began_at(child.pid)}")
        return child.pid

    def running(self, name: str) -> bool:
        child = self._children.get(name)
        return child is not None and child.poll() is None

    def exit_code(self, name: str) -> int | None:
        """The exit code of a process; None if it is running, or was never started."""
        child = self._children.get(name)
        return None if child is None else child.poll()

    def ended(self) -> list[tuple[str, int]]:
        """The processes that ended without being told to, with their exit codes."""
        codes = ((name, child.poll()) for name, child in self._children.items())
        return [(name, code) for name, code in codes if code is not None and name not in self._told]

    def signal(self, name: str, deed: Deed) -> None:
        """Signal a running process, and wait for its end if it is told to stop.

        Raises:
            ConfigError: it is not running, or does not end.
        """
        child = self._children.get(name)
        if child is None or child.poll() is not None:
            raise ConfigError(f"{name} is not running")
        self._tell(name, child, _SIGNALS[deed])
        if deed in (Deed.STOP, Deed.KILL):
            self._told.add(name)
            try:
                child.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired as exc:
                child.kill()
                raise ConfigError(f"{name} did not end within {_STOP_TIMEOUT_S:g} s") from exc

    def _tell(self, name: str, child: subprocess.Popen[bytes], number: int) -> None:
        """Signal a process; on a machine that is a child, and what brought it there waits."""
        inner = machine.child_of(child.pid) if name in self._on_machines else 0
        if inner:
            os.kill(inner, number)
        if not inner or number == signal.SIGCONT:  # which stopped with its child
            child.send_signal(number)


def on_host(lab: Lab, host: str, command: Sequence[str]) -> list[str]:
    """Write the command that runs another on a host.

    Raises:
        ConfigError: the host is a machine that is not there.
    """
    state = lab.machine(host)
    if not state.exists():
        return in_namespace(Names(lab.token).host(host), command)
    try:
        return machine.inside(state, command)
    except OSError as exc:
        raise ConfigError(f"{host} of lab {lab.token} is not there: {exc}") from exc


def log_of(lab: Lab, name: str) -> Path:
    """The log file of a process."""
    return lab.directory / LOGS / f"{name}.log"


def last_words(lab: Lab, name: str) -> str:
    """The last line of a process's log; empty if there is none."""
    with contextlib.suppress(OSError):
        lines = log_of(lab, name).read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def _pid_file(lab: Lab, name: str) -> Path:
    return lab.directory / PIDS / name


def was_started(lab: Lab, process: Process) -> bool:
    """Whether the lab's maker ever started a process."""
    return _pid_file(lab, process.name).exists()


def runs(lab: Lab, process: Process) -> bool:
    """Whether a process is running, checked without having started it."""
    try:
        pid, began = _pid_file(lab, process.name).read_text().split()
        # The pid may have been reused.
        there = space_of(NETNS / Names(lab.token).host(process.host))
        return began_at(int(pid)) == began and space_of(Path(f"/proc/{pid}/ns/net")) == there
    except (OSError, ValueError):
        return False
