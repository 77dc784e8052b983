"""What manifests and units say, done: the privileged part as root, the agent without capability.

Turned on, off and on again, as a node's owner would, by replacing one file.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from clients import LIMIT_S, Target, free_port
from forked import run
from own_network import needs_root, own_network
from programs import COMMAND, ENVIRONMENT, Programs
from stack import wait_until
from test_node_programs import ADDRESS, GATE, LISTENS, connect, has_address

from isthmus.tools.pki import making as pki

pytestmark = needs_root

#: Where a node has its files; ours are in a temporary directory, which a unit could not see.
PKI = "/etc/isthmus"
#: A user without privilege may be unable to run this Python; without capabilities, root has none.
BARE = [
    "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


@dataclass
class Plan:
    """The command lines of a manifest, without the program."""

    before: list[str]
    agent: list[str]
    after: list[str]


def write(form: str, *flags: str) -> str:
    done = run("manifest", "agent", f"--as={form}", *flags, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plan(form: str, *flags: str) -> Plan:
    text = write(form, *flags)
    if form == "static-pod":
        spec = yaml.safe_load(text)["spec"]
        init: list[dict[str, Any]] = spec["initContainers"]
        return Plan(init[0]["args"], spec["containers"][0]["args"], [])
    lines = dict(
        line.split("=", 1)
        for line in text.replace("\\\n", " ").splitlines()
        if line.startswith("Exec")
    )
    words = {key: shlex.split(value)[1:] for key, value in lines.items()}
    return Plan(words["ExecStartPre"], words["ExecStart"], words.get("ExecStopPost", []))


def as_root(words: list[str]) -> None:
    if words:
        argv = [*COMMAND, *words]
        done = subprocess.run(
            argv, capture_output=True, text=True, env=ENVIRONMENT, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr


class Agent:
    """The agent of a plan, without any capability."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*BARE, *COMMAND, *words], stderr=file, env=ENVIRONMENT
            )

    def wait_log(self, text: str) -> None:
        wait_until(lambda: text in self.log or self._process.poll() is not None, text)
        assert text in self.log, self.log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(LIMIT_S) == 0, self.log

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LIMIT_S)


@pytest.mark.parametrize(
    # A pod as it is confined is in test_pod_programs.py.
    "form",
    [pytest.param("static-pod", marks=pytest.mark.nightly), "systemd"],
)
def test_on_off_and_on_again(
    form: str, programs: Programs, certificates: pki.PkiFiles, tmp_path: Path
) -> None:
    directory = str(certificates.directory)
    with Target() as target:
        server = programs.server(GATE, f"--allowed-destination={target.name}")
        flags = [
            "--proxy-server-host=127.0.0.1", f"--proxy-server-port={server.port('agent_port')}",
            f"--ca-cert={PKI}/ca.crt", f"--agent-cert={PKI}/agent.crt",
            f"--agent-key={PKI}/agent.key", "--health-server-host=127.0.0.1",
            f"--health-server-port={free_port()}", f"--admin-server-port={free_port()}",
            f"--bind-address={ADDRESS}", f"--target=6443:{target.name}",
        ]  # fmt: skip
        for turn, gate in enumerate([[GATE], [], [GATE]]):
            made = plan(form, *flags, *gate)
            words = [word.replace(PKI, directory) for word in made.agent]
            as_root(made.before)
            assert has_address() is bool(gate)
            agent = Agent(words, tmp_path / f"agent-{turn}.log")
            try:
                agent.wait_log("linked ")
                if gate:
                    agent.wait_log(LISTENS)
                    with connect() as client, target.accept() as far:
                        client.send(b"through")
                        assert far.read_exactly(7) == b"through"
                assert has_address() is bool(gate)
                agent.stop()
            finally:
                agent.end()
            as_root(made.after)
            # A unit takes the address away with it; a pod's stays for the next.
            assert has_address() is (bool(gate) and form == "static-pod")
        as_root(["agent", "setup-interface", f"--bind-address={ADDRESS}", "--remove"])
