"""``isthmus up --namespaces``: a server and an agent on two sides of a real firewall.

The server in one namespace, the agent and a demo target in another, and in between what
app/up_topology.py makes. Shows that the direct way fails and the tunnel works. Plain blocking code:
the programs are processes of their own, and a signal is only noted and looked at between steps, so
nothing is ever interrupted between making a thing and knowing how to remove it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType

from isthmus.app import demo, pki
from isthmus.app.demo import Visit
from isthmus.app.pki import PkiFiles
from isthmus.app.up import (
    AGENT_ID,
    LOOPBACK,
    VISIT_TIMEOUT_S,
    Say,
    curl_line,
    snapshot_line,
    stop_signals,
)
from isthmus.app.up_state import NAMESPACES, own_directory, state_home
from isthmus.app.up_topology import (
    AGENT,
    AGENT_PORT,
    FIREWALLS,
    SERVER,
    Names,
    find_tool,
    remove_run,
    topology,
)
from isthmus.errors import ConfigError, LinkError, LinkStage
from isthmus.net.namespaces import in_namespace, inside
from isthmus.values import HostPort

Told = threading.Event
Children = Mapping[str, subprocess.Popen[bytes]]

# Nobody else is in the namespaces, so ports may be fixed.
FRONTEND = HostPort(LOOPBACK, 8090)
HEALTH = HostPort(LOOPBACK, 8092)
ADMIN = HostPort(LOOPBACK, 8095)
ADDRESS = HostPort(AGENT, 8080)
TARGET = HostPort(demo.NAME, 8080)

KNOCK_TIMEOUT_S = 2.0
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
_LOOK_AGAIN_S = 0.05
_CHECK_CHILDREN_S = 1.0
_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """What happened to the same wish, reach the target, on both ways."""

    address: HostPort
    target: HostPort
    direct: Visit
    tunnel: Visit

    @property
    def convincing(self) -> bool:
        """The firewall holds and the tunnel gets through."""
        return self.tunnel.worked and not self.direct.worked


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What runs, once the agent is linked."""

    names: Names
    files: PkiFiles
    children: Children


class _ToldToStopError(Exception):
    """A signal came while something was under way."""


@contextlib.contextmanager
def process(namespace: str, argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python module inside a namespace until the block ends; its log is ours."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def die_with_parent() -> None:
        # Should we be killed the children go too, which nothing else could see to.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before we asked

    child = subprocess.Popen(
        in_namespace(namespace, [sys.executable, "-m", *argv]),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        # Ctrl-C goes to the whole group of a terminal, and it is for us to end the children.
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _commands(names: Names, files: PkiFiles, v: int) -> dict[str, tuple[str, list[str]]]:
    """The three programs, each with its namespace."""
    common = [f"--v={v}", "--graceful-shutdown-timeout=0"]
    server = [
        "--mode=http-connect",
        f"--server-port={FRONTEND.port}", f"--server-bind-address={FRONTEND.host}",
        f"--server-cert={files.server_cert}", f"--server-key={files.server_key}",
        f"--server-ca-cert={files.ca_cert}",
        f"--agent-port={AGENT_PORT}", f"--cluster-cert={files.server_cert}",
        f"--cluster-key={files.server_key}", f"--cluster-ca-cert={files.ca_cert}",
        f"--health-port={HEALTH.port}", f"--admin-port={ADMIN.port}",
    ]  # fmt: skip
    agent = [
        f"--agent-id={AGENT_ID}", f"--host-alias={demo.NAME}={AGENT}",
        f"--proxy-server-host={SERVER}", f"--proxy-server-port={AGENT_PORT}",
        f"--ca-cert={files.ca_cert}", f"--agent-cert={files.agent_cert}",
        f"--agent-key={files.agent_key}", "--sync-interval=100ms",
    ]  # fmt: skip
    target = [f"--host={AGENT}", f"--port={ADDRESS.port}", f"--agent-id={AGENT_ID}"]
    return {
        "server": (names.server, ["isthmus.cli.main", "server", *server, *common]),
        "demo target": (names.agent, ["isthmus.app.demo", *target]),
        "agent": (names.agent, ["isthmus.cli.main", "agent", *agent, *common]),
    }


def _wait_until(ready: Callable[[], bool], children: Children, told: Told) -> None:
    give_up_at = time.monotonic() + READY_TIMEOUT_S
    while not ready():
        if told.wait(_LOOK_AGAIN_S):
            raise _ToldToStopError
        _check(children)
        if time.monotonic() > give_up_at:
            raise LinkError(
                f"the agent did not link to the server within {READY_TIMEOUT_S:g} s",
                LinkStage.TIMED_OUT,
            )


def _check(children: Children) -> None:
    for name, child in children.items():
        if child.poll() is not None:
            raise LinkError(f"the {name} ended with exit code {child.returncode}", LinkStage.LOST)


def _answers(namespace: str, path: str) -> bool:
    """Tell whether the server's health port says 200."""

    def ask() -> bool:
        connection = HTTPConnection(HEALTH.host, HEALTH.port, timeout=KNOCK_TIMEOUT_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    return inside(namespace, ask)


def demonstrate(names: Names, files: PkiFiles) -> Demonstration:
    """Try both ways to the target, from the server's namespace."""
    return Demonstration(
        address=ADDRESS,
        target=TARGET,
        direct=inside(names.server, partial(demo.knock, ADDRESS, timeout_s=KNOCK_TIMEOUT_S)),
        tunnel=inside(
            names.server, partial(demo.visit, FRONTEND, files, TARGET, timeout_s=VISIT_TIMEOUT_S)
        ),
    )


@contextlib.contextmanager
def running(directory: Path, names: Names, told: Told, *, firewall: str, v: int) -> Iterator[Stage]:
    """Run everything, with its files in a directory, until the block ends.

    Raises:
        ConfigError: namespaces or files cannot be made.
        LinkError: the agent did not reach the server.
    """
    with contextlib.ExitStack() as stack:
        (directory / NAMESPACES).touch()  # before there are any: a later run has to know
        files = pki.init(directory / "pki", server_names=(SERVER, LOOPBACK), days=1)
        stack.enter_context(topology(names, firewall))
        commands = _commands(names, files, v)
        children: dict[str, subprocess.Popen[bytes]] = {}

        def start(name: str) -> None:
            children[name] = stack.enter_context(process(*commands[name]))

        start("server")
        start("demo target")
        knock = partial(demo.knock, ADDRESS, timeout_s=KNOCK_TIMEOUT_S)
        _wait_until(partial(_answers, names.server, "/healthz"), children, told)
        _wait_until(lambda: inside(names.agent, knock).worked, children, told)
        # Only now: an agent that finds no server says so and waits before it tries again.
        start("agent")
        _wait_until(partial(_answers, names.server, "/readyz"), children, told)
        yield Stage(names=names, files=files, children=children)


def lines(stage: Stage, *, pid: int) -> list[str]:
    """Write what to tell the user: a header, an empty line, and lines to paste."""
    enter = f"{shlex.join(in_namespace(stage.names.server, []))} "
    return [
        "Isthmus is up. Paste as root into another terminal: the direct way, the way through the"
        " tunnel, a look at the server, the end (or Ctrl-C here).",
        "",
        f"{enter}curl --noproxy '*' --connect-timeout {KNOCK_TIMEOUT_S:g} http://{ADDRESS}/",
        enter + curl_line(FRONTEND, stage.files, TARGET),
        enter + snapshot_line(ADMIN, os.environ),
        f"kill {pid}",
    ]


@contextlib.contextmanager
def _noting_signals() -> Iterator[Told]:
    """Note the signals that end a run instead of being interrupted by them."""
    told = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        told.set()

    before = {number: signal.signal(number, note) for number in stop_signals()}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(*, v: int, once: bool, say: Say, show: Callable[[Demonstration], None]) -> int:
    """Show both ways, then wait for Ctrl-C or SIGTERM unless told ``once``; the exit code.

    Raises:
        ConfigError: not root, or something that it takes is missing; nothing is left behind.
        LinkError: a program did not come up; nothing is left behind.
    """
    if os.geteuid() != 0:
        raise ConfigError("--namespaces needs root; use sudo, or leave the flag out")
    find_tool("ip")
    firewall = find_tool(*FIREWALLS)
    os.umask(0o077)
    with (
        _noting_signals() as told,
        own_directory(state_home(os.environ), sweep=remove_run) as directory,
    ):
        try:
            names = Names.of(directory.name)
            with running(directory, names, told, firewall=firewall, v=v) as stage:
                return _play(stage, told, once=once, say=say, show=show)
        except _ToldToStopError:
            return 0


def _play(
    stage: Stage, told: Told, *, once: bool, say: Say, show: Callable[[Demonstration], None]
) -> int:
    seen = demonstrate(stage.names, stage.files)
    show(seen)
    if once:
        return 0 if seen.convincing else 1
    say("")
    for line in lines(stage, pid=os.getpid()):
        say(line)
    while not told.wait(_CHECK_CHILDREN_S):
        _check(stage.children)
    return 0
