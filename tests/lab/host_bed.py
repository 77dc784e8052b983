"""A node in a namespace: a neighbour at its uplink, a pod behind its bridge, and who reaches it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from machine import environment

from isthmus.lab.namespaces import in_namespace, inside, remove
from isthmus.net.host_address import HostAddress, put

T = TypeVar("T")
Address = IPv4Address | IPv6Address

V4: Address = ip_address("10.99.0.1")
V6: Address = ip_address("fd99::1")
INTERFACE = "isthmus0"
KIND = "bridge"  # virtual, and there in every kernel that can have a lab
PORT = 6443
SERVICES = {4: "10.96.0.1", 6: "fd96::1"}
SERVICE_PORT = 443
REACHED, DROPPED, REFUSED = "reached", "timed out", "refused"
#: A packet between namespaces of one machine takes microseconds; a dropped one never comes.
_DROPPED_AFTER_S = 1.0
TOOLS = {
    "nft": ["nft"],
    "iptables": ["iptables", "iptables-restore", "ip6tables", "ip6tables-restore"],
    "neither": [],
}
_numbers = count()
# As it was before a test took firewalls out of it.
_PATH = os.environ["PATH"]


class Bed:
    """One node and those around it."""

    def __init__(self) -> None:
        self.name = f"isthmus-bind-{os.getpid()}-{next(_numbers)}"
        self.node, self.pod, self.neighbour = (
            f"{self.name}-{who}" for who in ("node", "pod", "neighbour")
        )

        self._made: list[HostAddress] = []

    def make(self) -> None:
        """Make everything, apart from the address."""
        for namespace in (self.node, self.pod, self.neighbour):
            run("ip", "netns", "add", namespace)
            self.ip(namespace, "link", "set", "lo", "up")
        self._cable("uplink", self.neighbour, "10.60.0", "fd60::")
        self.ip(self.node, "link", "add", "cni0", "type", "bridge")
        self._cable("veth0", self.pod, "10.50.0", "fd50::", bridge="cni0")
        for family, gateway in (("-4", "10.60.0.2"), ("-6", "fd60::2")):
            self.ip(self.node, family, "route", "add", "default", "via", gateway)
        for namespace, four, six in (
            (self.pod, "10.50.0.1", "fd50::1"),
            (self.neighbour, "10.60.0.1", "fd60::1"),
        ):
            self.ip(namespace, "-4", "route", "add", "default", "via", four)
            self.ip(namespace, "-6", "route", "add", "default", "via", six)

    def _cable(self, near: str, far: str, four: str, six: str, bridge: str = "") -> None:
        peer = ("peer", "name", "eth0", "netns", far)
        self.ip(self.node, "link", "add", near, "type", "veth", *peer)
        if bridge:
            self.ip(self.node, "link", "set", near, "master", bridge, "up")
        for namespace, link, last in ((self.node, bridge or near, "1"), (far, "eth0", "2")):
            self.ip(namespace, "link", "set", link, "up")
            self.ip(namespace, "addr", "add", f"{four}.{last}/24", "dev", link)
            self.ip(namespace, "addr", "add", f"{six}{last}/64", "dev", link, "nodad")

    def remove(self) -> None:
        """Remove everything."""
        for one in self._made:
            self.on_node(one.take_away)
        for namespace in (self.node, self.pod, self.neighbour):
            remove(namespace)

    def ip(self, namespace: str, *args: str) -> str:
        """Run iproute2 for a namespace."""
        return run("ip", "-n", namespace, *args)

    def on_node(self, work: Callable[[], T]) -> T:
        """Do something in the node's namespace."""
        return inside(self.node, work)

    def node_runs(self, *argv: str) -> str:
        """Run a program in the node's namespace."""
        return run(*in_namespace(self.node, argv))

    def put(
        self, address: Address, *, uplinks: tuple[str, ...] = (), interface: str = INTERFACE,
        kind: str = KIND,
    ) -> HostAddress:  # fmt: skip
        """What an agent on the node does."""
        made = self.on_node(lambda: put(address, interface=interface, uplinks=uplinks, kind=kind))
        self._made.append(made)
        return made

    def listens(self, address: Address) -> socket.socket:
        """A listener of the node's."""

        def listen() -> socket.socket:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            return socket.create_server((str(address), PORT), family=family)

        return self.on_node(listen)

    def reach(self, source: str, address: str | Address, port: int = PORT) -> str:
        """What comes of a connection from a namespace."""
        return inside(source, lambda: _reach(str(address), port))

    def everybody(self, address: str | Address, port: int = PORT) -> dict[str, str]:
        """What comes of a connection from each of the three."""
        places = {"host": self.node, "pod": self.pod, "neighbour": self.neighbour}
        return {who: self.reach(where, address, port) for who, where in places.items()}

    def state(self) -> str:
        """All that could be left on the node, comparable."""
        # Hardware addresses are made up, and link-local ones come when they come.
        links = [line.split() for line in self.ip(self.node, "-br", "link").splitlines()]
        lines = self.ip(self.node, "-br", "addr").splitlines()
        addresses = [[word for word in line.split() if "fe80:" not in word] for line in lines]
        return repr(
            [sorted(word[:2] + word[3:] for word in links), sorted(addresses), self.rules()]
        )

    def rules(self) -> list[str]:
        """Every rule of ours that the node has, by both tools."""
        nft = self.node_runs("nft", "list", "tables").splitlines()
        ours = [line for line in nft if "isthmus" in line]
        for tool in ("iptables-save", "ip6tables-save"):
            text = self.node_runs(tool, "-t", "mangle")
            ours += [line for line in text.splitlines() if "isthmus" in line.lower()]
        return ours

    def translate(self, address: Address) -> None:
        """Have the node send a service's connections to the address, as kube-proxy does."""
        family = "ip" if address.version == 4 else "ip6"
        to = f"[{address}]" if address.version == 6 else str(address)
        rule = (
            f"{family} daddr {SERVICES[address.version]} tcp dport {SERVICE_PORT}"
            f" dnat {family} to {to}:{PORT}"
        )
        chains = "".join(
            f"chain {hook} {{ type nat hook {hook} priority -100; {rule}; }}\n"
            for hook in ("prerouting", "output")
        )
        run(
            *in_namespace(self.node, ["nft", "-f", "-"]),
            text=f"table inet services {{\n{chains}}}\n",
        )

    @contextmanager
    def process(self, script: str) -> Iterator[subprocess.Popen[str]]:
        """A Python process in the node's namespace, killed in the end; it says "ready" first."""
        argv = in_namespace(self.node, [sys.executable, "-c", script])
        pipe = subprocess.PIPE
        with subprocess.Popen(
            argv, env=environment(), text=True, stdin=pipe, stdout=pipe, stderr=pipe
        ) as child:
            try:
                assert child.stdout is not None
                line = child.stdout.readline()
                assert line == "ready\n", (line, child.communicate(timeout=10))
                yield child
            finally:
                child.kill()


@contextmanager
def made() -> Iterator[Bed]:
    """A bed, removed in the end."""
    bed = Bed()
    try:
        bed.make()
        yield bed
    finally:
        bed.remove()


def only_firewall(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave whoever puts an address nothing but one firewall in the PATH, or "neither"."""
    for tool in TOOLS[name]:
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"there is no {tool}")
        (directory / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(directory))


def run(*argv: str, text: str = "") -> str:
    """Run a program that has to work."""
    done = subprocess.run(
        argv, input=text, text=True, capture_output=True, check=False, timeout=30,
        env={**environment(), "PATH": _PATH},
    )  # fmt: skip
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def _reach(address: str, port: int) -> str:
    try:
        with socket.create_connection((address, port), timeout=_DROPPED_AFTER_S):
            return REACHED
    except TimeoutError:
        return DROPPED
    except ConnectionRefusedError:
        return REFUSED
