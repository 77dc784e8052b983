"""``isthmus up --namespaces``: a server and an agent on two sides of a real firewall, in a lab.

Shows that the direct path fails and the tunnel works. stage.py builds and removes the lab, which is
a small one of its own; tools/up/command.py prints the result.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from string import Template

from isthmus.errors import ConfigError
from isthmus.frame.signals import noting_signals
from isthmus.lab import fabric, reading
from isthmus.lab.probe_messages import AttemptOutcome
from isthmus.lab.prober import ProbeLostError
from isthmus.lab.processes import ISTHMUS, log_of
from isthmus.lab.stage import LabError, LabStage, ToldToStopError, standing
from isthmus.lab.steps import perform
from isthmus.lab.topology import Deed, LabAttempt, ProcessAction, Verb
from isthmus.tools.up.demo import NAME
from isthmus.tools.up.running import AGENT_ID, LOOPBACK, Say, curl_line, snapshot_line
from isthmus.values import HostPort

# The lab has its own network, so addresses and ports can be fixed.
ADDRESS = HostPort("10.200.0.6", 8080)
TARGET = HostPort(NAME, 8080)
FRONTEND = HostPort(LOOPBACK, 8090)
ADMIN = HostPort(LOOPBACK, 8095)
NEAR, FAR, WAY = "near-side", "far-side", "tunnel"

# The agent is started between the two attempts, to show the difference.
TOPOLOGY = f"""\
title: A server, an agent, and a wall that only the agent's link can cross
needs: ip
networks:
  near: {{cidr: 10.200.0.0/30}}
  far: {{cidr: 10.200.0.4/30}}
allow:
  - {{from: {FAR}, to: {NEAR}, port: 8091}}
hosts:
  {NEAR}:
    at: {{near: 10.200.0.2}}
    processes:
      server: >
        isthmus server --v=$v --mode=http-connect
        --server-port={FRONTEND.port} --server-bind-address={FRONTEND.host}
        --server-cert={{server_cert}} --server-key={{server_key}}
        --server-ca-cert={{client_ca_cert}}
        --cluster-cert={{server_cert}} --cluster-key={{server_key}} --cluster-ca-cert={{ca_cert}}
        --health-bind-address={LOOPBACK} --admin-port={ADMIN.port}
  {FAR}:
    at: {{far: {ADDRESS.host}}}
    serve: {{http: {ADDRESS.port}}}
    processes:
      agent:
        start: false
        command: >
          isthmus agent --v=$v --agent-id={AGENT_ID} --host-alias={NAME}={ADDRESS.host}
          --proxy-server-host={NEAR} --sync-interval=100ms --health-server-host={LOOPBACK}
          --ca-cert={{ca_cert}} --agent-cert={{agent_cert}} --agent-key={{agent_key}}
ways:
  {WAY}: {{protocol: http-connect, tcp: "{FRONTEND}"}}
"""
_DIRECTLY = LabAttempt(source=NEAR, verb=Verb.GET, target=str(ADDRESS))
_BY_TUNNEL = LabAttempt(source=NEAR, verb=Verb.GET, target=str(TARGET), through=WAY)
_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """The outcomes of the same request by both paths."""

    direct: AttemptOutcome
    tunnel: AttemptOutcome

    @property
    def convincing(self) -> bool:
        """The firewall blocks the direct path and the tunnel works."""
        return self.tunnel.worked and not self.direct.worked


class _Logs:
    """Copies the programs' logs to standard error as they grow."""

    def __init__(self, stage: LabStage) -> None:
        self._read = {log_of(stage.lab, one.name): 0 for one in stage.topology.processes}

    def pass_on(self) -> None:
        """Write new log lines to standard error."""
        for path, done in self._read.items():
            if path.exists():
                with path.open("rb") as log:
                    log.seek(done)
                    said = log.read()
                self._read[path] = done + len(said)
                sys.stderr.write(said.decode(errors="replace"))
        sys.stderr.flush()


def topology(v: int) -> str:
    """The topology, with the programs' log level."""
    return Template(TOPOLOGY).substitute(v=v)


def demonstrate(stage: LabStage) -> Demonstration:
    """Try both paths to the target from the server's side, the second once there is an agent.

    Raises:
        LabError: the agent did not start, or a probe failed.
        ToldToStopError: a signal arrived.
    """
    try:
        direct = stage.prober(NEAR).attempt(_DIRECTLY, None)
        perform(stage, ProcessAction(deed=Deed.START, process="agent"))
        tunnel = stage.prober(NEAR).attempt(_BY_TUNNEL, stage.ways[WAY])
    except ProbeLostError as exc:
        raise LabError(str(exc.strerror)) from exc
    stage.wait(0)
    return Demonstration(direct=direct, tunnel=tunnel)


def lines(stage: LabStage, *, pid: int) -> list[str]:
    """The lines for the user: a header, an empty line, and commands to paste."""
    isthmus = ["isthmus"] if shutil.which("isthmus") else ISTHMUS
    enter = f"{shlex.join([*isthmus, 'lab', 'shell', '--lab', stage.lab.token, NEAR])} "
    return [
        "Isthmus is up. Paste as root into another terminal: the direct path, the path through the"
        " tunnel, the server's snapshot, the end (or Ctrl-C here).",
        "",
        f"{enter}curl http://{ADDRESS}/",
        enter + curl_line(FRONTEND, stage.files, TARGET),
        enter + snapshot_line(ADMIN, {}),  # a shell of the lab has no proxy settings
        f"kill {pid}",
    ]


def main(*, v: int, once: bool, say: Say, show: Callable[[Demonstration], None]) -> int:
    """Show both paths, then wait for Ctrl-C or SIGTERM unless ``once``; returns the exit code.

    Raises:
        ConfigError: not root, or a requirement is missing; nothing is left behind.
        LabError: a program did not start, or ended; nothing is left behind.
        ToldToStopError: a signal arrived before both paths were shown; nothing is left behind.
    """
    if os.geteuid() != 0:
        raise ConfigError("--namespaces needs root: use sudo, or omit the flag")
    source = topology(v)
    try:
        with (
            noting_signals() as told,
            standing(
                reading.read(source, name="up", source="up"),
                source,
                firewall=fabric.find_firewall(),
                without=(),
                told=told,
                progress=lambda _: None,
            ) as stage,
        ):
            return _play(stage, once=once, say=say, show=show)
    except ToldToStopError:
        if once:
            raise
        return 0


def _play(stage: LabStage, *, once: bool, say: Say, show: Callable[[Demonstration], None]) -> int:
    logs = _Logs(stage)
    try:
        seen = demonstrate(stage)
    finally:
        logs.pass_on()
    show(seen)
    if once:
        return 0 if seen.convincing else 1
    say("")
    for line in lines(stage, pid=os.getpid()):
        say(line)
    while True:
        stage.wait(_LOOK_AGAIN_S)
        logs.pass_on()
        for name, code in stage.programs.ended():
            raise LabError(f"{name} ended with exit code {code}")
