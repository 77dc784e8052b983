"""The topology nodes-behind-wall, up: its hosts, its programs, and connections that tests hold."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from machine import HOME, environment, lab, wait_until

from isthmus.lab.fabric import set_cables
from isthmus.lab.namespaces import in_namespace, inside
from isthmus.lab.plan import Names
from isthmus.lab.probe_messages import ProbeTlsFiles
from isthmus.lab.prober import Prober
from isthmus.lab.processes import argv
from isthmus.lab.reading import read
from isthmus.lab.topology import Cable

TOPOLOGY = "nodes-behind-wall"
ADDRESS = "10.99.0.1"
ECHO = 7
LIMIT_S = 60.0
#: What a thousand connections need in the program that has both ends of each, and some more.
_DESCRIPTORS = 8192
_LISTENS = "0A"  # TCP_LISTEN of net/tcp_states.h
ADMIN = {"server": 8095, "agent": 8094}
HEALTH = {"server": 8092, "agent": 8093}


def raise_limit() -> None:
    """Let programs that we start open enough files; skip where we may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS:
        pytest.skip(f"a thousand connections need more than {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _DESCRIPTORS), hard))


class Bed:
    """A lab that is up."""

    def __init__(self, token: str) -> None:
        self.names = Names(token)
        self.directory = HOME / token
        self.topology = read(
            (self.directory / "topology.yaml").read_text(), name=TOPOLOGY, source=TOPOLOGY
        )
        pki = self.directory / "pki"
        self._tls = ProbeTlsFiles(
            ca_cert=str(pki / "ca.crt"),
            client_cert=str(pki / "client.crt"),
            client_key=str(pki / "client.key"),
        )
        self._stack = ExitStack()
        self._probers: dict[str, Prober] = {}

    def close(self) -> None:
        """End what was started here; the lab goes on."""
        self._stack.close()

    def prober(self, host: str) -> Prober:
        """The project's own probe, on a host."""
        if host not in self._probers:
            made = Prober(self.names.host(host), tls=self._tls)
            self._stack.callback(made.close)
            self._probers[host] = made
        return self._probers[host]

    def connect(self, host: str, port: int = ECHO, address: str = ADDRESS) -> socket.socket:
        """Connect from a host; the socket stays there, the test holds it."""
        dial = partial(socket.create_connection, (address, port), LIMIT_S)
        return inside(self.names.host(host), dial)

    def run(self, host: str, *words: str) -> str:
        """Run a command on a host: what it prints."""
        command = in_namespace(self.names.host(host), words)
        return subprocess.run(command, check=True, text=True, capture_output=True).stdout

    # Programs.

    def snapshot(self, host: str, kind: str) -> dict[str, Any]:
        """What a program says of itself; OSError while it is starting."""
        url = f"http://127.0.0.1:{ADMIN[kind]}/snapshot"
        status, text = self.prober(host).fetch(url, timeout_s=LIMIT_S)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise ConnectionRefusedError(text)
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def open_on_node(self, host: str) -> int:
        """How many connections its agent has joined and still has."""
        return int(self.snapshot(host, "agent")["nodeTraffic"]["open"])

    def carried_by(self, host: str) -> int:
        """How many connections of nodes a server has."""
        status, text = self.prober(host).fetch(
            f"http://127.0.0.1:{HEALTH['server']}/metrics", timeout_s=LIMIT_S
        )
        assert status == 200, text
        found = re.search(r"^isthmus_server_node_tunnels (\S+)$", text, re.MULTILINE)
        assert found, text
        return int(float(found[1]))

    def unready(self, host: str) -> str:
        """What the agent of a host waits for; empty when it is ready."""
        status, text = self.prober(host).fetch(
            f"http://127.0.0.1:{HEALTH['agent']}/readyz?verbose", timeout_s=LIMIT_S
        )
        assert (status == 200) == ("[-]" not in text)
        found = re.search(r"^\[-\]node-listeners failed: (.*)$", text, re.MULTILINE)
        return found[1] if found else ""

    def log(self, process: str) -> str:
        """What a process of the topology has said."""
        path = self.directory / "logs" / f"{process}.log"
        return path.read_text() if path.exists() else ""

    def start(self, process: str) -> None:
        """Start a process of the topology, as the lab does."""
        found = next(one for one in self.topology.processes if one.name == process)
        values = {"dir": str(self.directory)} | {
            f"{who}_{what}": str(self.directory / "pki" / f"{who}.{ending}")
            for who in ("ca", "server", "agent", "client")
            for what, ending in (("cert", "crt"), ("key", "key"))
        }
        path = self.directory / "logs" / f"{process}.log"
        with path.open("ab") as log:
            child = subprocess.Popen(
                in_namespace(self.names.host(found.host), argv(found.command, values)),
                env={**environment(), "ISTHMUS_LAB": self.directory.name},
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._stack.callback(child.wait, LIMIT_S)
        self._stack.callback(child.kill)
        (self.directory / "pids" / process).write_text(f"{child.pid} 0")

    def end(self, process: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a process of the topology, and wait until it is gone."""
        pid = int((self.directory / "pids" / process).read_text().split()[0])
        os.kill(pid, number)
        wait_until(lambda: _is_gone(pid), f"{process} is gone", LIMIT_S)

    def cable(self, host: str, *, whole: bool) -> None:
        """Cut the cable of a node, or mend it."""
        set_cables(self.names, Cable(host=host, networks=("nodes",), whole=whole))

    def kernel(self, host: str) -> dict[str, str]:
        """All that an agent changes on its node: addresses, rules, and ports that listen."""
        return {
            "addresses": self.run(host, "ip", "-o", "addr", "show"),
            "rules": self.run(host, "nft", "list", "ruleset"),
            "links": self.run(host, "ip", "-br", "link", "show"),
            "ports": " ".join(sorted(self._ports(host))),
        }

    def _ports(self, host: str) -> Iterator[str]:
        """The ports of the address that somebody listens at, as the kernel writes them."""
        address = socket.inet_aton(ADDRESS)[::-1].hex().upper()
        for line in self.run(host, "cat", "/proc/net/tcp").splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == _LISTENS and local.startswith(address):
                yield local


def _is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"  # its parent has not asked yet


def talk(sock: socket.socket, said: bytes) -> None:
    """Say something to an echo, and hear it."""
    sock.sendall(said)
    heard = b""
    while len(heard) < len(said):
        data = sock.recv(len(said) - len(heard))
        assert data, f"ended after {heard!r}"
        heard += data
    assert heard == said


@contextmanager
def up() -> Iterator[Bed]:
    """Have the topology up, with its servers and agents."""
    printed = lab("up", TOPOLOGY, limit_s=120.0)
    found = re.search(r"lab ([0-9a-f]{6}) is up", printed)
    assert found, printed
    bed = Bed(found[1])
    try:
        yield bed
    finally:
        bed.close()
        lab("down", "--lab", found[1])
