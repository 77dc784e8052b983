"""The whole little cluster: a control plane here, a node behind a firewall there, tunnels between.

What is in it is made of the other modules; this one puts it together and takes it apart again.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kube.build import Binaries
from kube.controlplane import ControlPlane
from kube.ground import AGENT_PORTS, CONTROL_PLANE, NODE, POD, Ground, ground
from kube.objects import HOOKS_PORT, KUBELET_PORT, WEB_PORT
from kube.programs import Program, is_left_over, run_name
from kube.tunnels import Mode, Tunnel

from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles

SERVER_NAMES = ("localhost", "127.0.0.1", CONTROL_PLANE, NODE, POD, "hooks.default.svc")


class Cluster:
    """Namespaces, certificates, etcd and the node; apiservers and tunnels are made on demand."""

    def __init__(self, binaries: Binaries, directory: Path, names: Ground) -> None:
        self.directory = directory
        self.names = names
        self.files = pki.init(directory / "pki", server_names=SERVER_NAMES, days=1)
        self.control_plane = ControlPlane(binaries, self.files, directory, names.control_plane)
        self._fakenode = binaries.fakenode
        self._ports = iter(AGENT_PORTS)
        self._count = itertools.count(1)
        self.node = self._fake("node", names.node, [
            f"-kubelet={NODE}:{KUBELET_PORT}", f"-web={POD}:{WEB_PORT}",
            f"-hooks={NODE}:{HOOKS_PORT}", f"-client-ca={self.files.client_ca_cert}",
        ])  # fmt: skip

    def _fake(self, name: str, namespace: str, flags: Sequence[str]) -> Program:
        pair = [f"-cert={self.files.server_cert}", f"-key={self.files.server_key}"]
        return Program(name, namespace, [str(self._fakenode), *pair, *flags], self.directory)

    @contextlib.contextmanager
    def up(self) -> Iterator[Cluster]:
        """Run etcd and the node for the time of the block."""
        with self.control_plane.etcd(), self.node.up():
            self.node.wait_for(lambda: bool(self.node.said), "it serves")
            yield self

    @contextlib.contextmanager
    def hooks_here(self) -> Iterator[Program]:
        """Run webhook servers in the control plane too."""
        flags = [f"-hooks={CONTROL_PLANE}:{HOOKS_PORT}"]
        with self._fake("hooks", self.names.control_plane, flags).up() as hooks:
            hooks.wait_for(lambda: bool(hooks.said), "it serves")
            yield hooks

    def tunnel(self, mode: Mode, *, agent_here: bool = False) -> Tunnel:
        """Make a server and its agent, on the node or in the control plane; none runs yet."""
        names = self.names
        return Tunnel(
            f"{mode}-{next(self._count)}",
            mode,
            files=self.files,
            directory=self.directory,
            server_namespace=names.control_plane,
            agent_namespace=names.control_plane if agent_here else names.node,
            agent_port=next(self._ports),
        )

    def seen(self, **wanted: Any) -> int:
        """Count what the node served that has these fields."""
        return count(self.node, **wanted)


def count(program: Program, **wanted: Any) -> int:
    """Count what a fake node served that has these fields."""
    return sum(wanted.items() <= entry.items() for entry in program.said)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a directory with a short name: a UNIX socket's may have 107 characters."""
    for path in Path(tempfile.gettempdir()).iterdir():
        if is_left_over(path.name):
            shutil.rmtree(path)
    directory = Path(tempfile.mkdtemp(prefix=run_name()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def cluster(binaries: Binaries) -> Iterator[Cluster]:
    """Run a cluster for the time of the block; nothing of it is left afterwards."""
    with scratch() as directory, ground() as names, Cluster(binaries, directory, names).up() as it:
        yield it


@contextlib.contextmanager
def plain_control_plane(binaries: Binaries) -> Iterator[tuple[ControlPlane, PkiFiles]]:
    """Run an etcd for apiservers on loopback, without any namespace, for the time of the block."""
    with scratch() as directory:
        files = pki.init(directory / "pki", server_names=SERVER_NAMES, days=1)
        control_plane = ControlPlane(binaries, files, directory, None)
        with control_plane.etcd():
            yield control_plane, files
