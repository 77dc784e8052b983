"""Nodes as network namespaces for node service proxies, and an API server that they can reach.

Every node has the same addresses, so that the same objects mean the same rules on each of them;
only the link to the API has an address of its own. Nobody else is in these namespaces.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kube.api import Api, write_kubeconfig
from kube.build import Binaries
from kube.cluster import SERVER_NAMES, scratch
from kube.controlplane import ControlPlane
from kube.ground import CONTROL_PLANE
from kube.programs import is_left_over, run_name
from pyroute2 import IPRoute, netns

from isthmus.lab.namespaces import remove
from isthmus.tools.pki import making as pki

NODE_NAME = "node-a"
NODE_IPS = ("192.168.50.2", "fd00:50::2")
SERVICE_RANGES = "10.96.0.0/12,fd00:10:96::/112"
_NO_DAD = 2  # IFA_F_NODAD: an address that may be used at once
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One namespace that a proxy runs in, and the directory of its files and logs."""

    namespace: str
    directory: Path


class Nodes:
    """A control plane in a namespace, and nodes around it, made on demand."""

    def __init__(self, binaries: Binaries, directory: Path, prefix: str) -> None:
        self.binaries = binaries
        self.directory = directory
        self._prefix = prefix
        self._count = itertools.count(1)
        self.namespace = f"{prefix}-cp"
        files = pki.init(directory / "pki", server_names=SERVER_NAMES, days=1)
        self.control_plane = ControlPlane(binaries, files, directory, self.namespace)

    @contextlib.contextmanager
    def node(self, name: str) -> Iterator[Node]:
        """Make a node for the time of the block."""
        number = next(self._count)
        namespace = f"{self._prefix}-{name}-{number}"
        directory = self.directory / f"{name}-{number}"
        directory.mkdir()
        netns.create(namespace)
        try:
            self._wire(namespace, number)
            yield Node(namespace=namespace, directory=directory)
        finally:
            remove(namespace)

    def _wire(self, namespace: str, number: int) -> None:
        ours, theirs = f"10.201.{number}.1", f"10.201.{number}.2"
        with IPRoute(netns=self.namespace) as here, IPRoute(netns=namespace) as there:
            link = f"node{number}"
            peer = {"ifname": "eth0", "net_ns_fd": namespace}
            here.link("add", kind="veth", ifname=link, peer=peer)
            _address(here, link, ours, 24)
            _address(there, "eth0", theirs, 24)
            _address(there, "eth0", NODE_IPS[0], 32)
            _address(there, "eth0", NODE_IPS[1], 128)
            _up(there, "lo")
            there.route("add", dst="default", gateway=ours)

    @contextlib.contextmanager
    def apiserver(self, *more: str) -> Iterator[Api]:
        """Run an apiserver with data of its own that nodes can reach, for the time of the block."""
        flags = ("--bind-address=0.0.0.0", f"--service-cluster-ip-range={SERVICE_RANGES}", *more)
        with self.control_plane.apiserver(*flags) as api:
            yield api


def node_kubeconfig(api: Api) -> Path:
    """Write the file by which a proxy on a node finds the API."""
    url = f"https://{CONTROL_PLANE}:{api.port}"
    return write_kubeconfig(api.home / "node.kubeconfig", url, api.ca_cert, api.token)


def _address(side: IPRoute, link: str, address: str, length: int) -> None:
    index = side.link_lookup(ifname=link)[0]
    flags = {"flags": _NO_DAD} if ":" in address else {}
    side.addr("add", index=index, address=address, prefixlen=length, **flags)
    side.link("set", index=index, state="up")


def _up(side: IPRoute, link: str) -> None:
    side.link("set", index=side.link_lookup(ifname=link)[0], state="up")


@contextlib.contextmanager
def nodes(binaries: Binaries) -> Iterator[Nodes]:
    """Run etcd in a namespace, ready for apiservers and nodes, for the time of the block."""
    for name in filter(is_left_over, netns.listnetns()):
        remove(name)
    prefix = f"{run_name()}{next(_numbers)}p"
    with scratch() as directory, contextlib.ExitStack() as stack:
        it = Nodes(binaries, directory, prefix)
        stack.callback(remove, it.namespace)
        netns.create(it.namespace)
        with IPRoute(netns=it.namespace) as here:
            _up(here, "lo")
            _address(here, "lo", CONTROL_PLANE, 32)
        stack.enter_context(it.control_plane.etcd())
        yield it
