"""The topology services, up: its hosts, Services given to its kube-apiserver, and node proxies.

Pods answer with the address that they see, so that an attempt says where it came to and as whom.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from machine import HOME, environment, lab, nothing_left, wait_until
from pyroute2 import netns

from isthmus.lab.namespaces import in_namespace
from isthmus.lab.plan import Names

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from kube.build import NotBuiltError, build

T = TypeVar("T")
MODES = ("iptables", "nftables")
NODES = ("node-1", "node-2")
LIMIT_S = 30.0
#: After which nobody answers. Everything is on one machine, whatever else it does.
ANSWER_S = 10.0
#: How long nothing has to come for a packet to be taken for dropped.
DROPPED_S = 1.0
WHO_PORT = 8080
PODS = {
    "pod-1a": "10.180.1.21", "pod-1b": "10.180.1.22",
    "pod-2a": "10.180.2.21", "pod-2b": "10.180.2.22",
}  # fmt: skip
CLIENTS = {"client-1": "10.220.0.51", "client-2": "10.220.0.52"}
#: What a node sends as when it is not what masquerading would give it, and its other addresses.
NODE_SOURCES = {"node-1": "10.250.0.11", "node-2": "10.250.0.12"}
NODE_IPS = {"node-1": "10.220.0.11", "node-2": "10.220.0.12"}
POD_GATEWAYS = {"node-1": "10.180.1.1", "node-2": "10.180.2.1"}
_API = ("10.210.0.10", 6443)
_TOKEN = "lab-admin"
_PER_HOST = 16
_SERVICES = "/api/v1/namespaces/default/services"
_SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_ISTHMUS = (sys.executable, "-m", "isthmus.cli.main")


class Seen(NamedTuple):
    """Who answered, and which address it saw."""

    server: str
    source: str


def node_of(host: str) -> str:
    """The node that a pod is on, or that a client sends its packets to."""
    return host if host in NODES else f"node-{host.split('-')[1][0]}"


def address_of(host: str) -> str:
    """What a host sends as."""
    return {**PODS, **CLIENTS, **NODE_SOURCES}[host]


class Proxy:
    """An ``isthmus node-proxy`` on a node."""

    def __init__(self, node: str, namespace: str, log: Path, argv: Sequence[str]) -> None:
        self.node = node
        self._log = log
        with log.open("ab") as file:
            self._child = subprocess.Popen(
                in_namespace(namespace, argv), env=environment(), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_synced(self) -> None:
        """Wait until its rules are in force."""

        def synced() -> bool:
            assert self._child.poll() is None, f"{self.node}: {self.log}"
            return re.search(r'synced .*family="?IPv4', self.log) is not None

        wait_until(synced, f"{self.node} is synced: {self._log}", LIMIT_S)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(LIMIT_S)

    def end(self) -> None:
        """Tell it to end; its rules stay."""
        if self._child.poll() is None:
            self._child.terminate()
        assert self._child.wait(LIMIT_S) == 0, self.log


class Bed:
    """A lab that is up, with kube-apiserver and without node proxies."""

    def __init__(self, token: str) -> None:
        self._names = Names(token)
        self.directory = HOME / token
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._proxies: dict[str, Proxy] = {}
        self._flags: dict[str, tuple[str, ...]] = {}
        self._logs = 0
        self._api: http.client.HTTPSConnection | None = None
        self.mode = ""

    def close(self) -> None:
        """End what was started here."""
        for proxy in self._proxies.values():
            proxy.kill()
        for pool in self._pools.values():
            pool.shutdown()
        if self._api is not None:
            self._api.close()

    # Inside hosts.

    def begin(self, host: str, work: Callable[[], T]) -> Future[T]:
        """Begin something on a host."""
        if host not in self._pools:
            self._pools[host] = ThreadPoolExecutor(
                _PER_HOST, initializer=netns.setns, initargs=(self._names.host(host),)
            )
        return self._pools[host].submit(work)

    def run(self, host: str, *argv: str, check: bool = True) -> str:
        """Run a program on a host; what it prints."""
        done = subprocess.run(
            in_namespace(self._names.host(host), argv), env=environment(), text=True,
            capture_output=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def ask(
        self, host: str, target: str, port: int = 80, *, udp: bool = False,
        limit_s: float = ANSWER_S,
    ) -> Seen:  # fmt: skip
        """Ask who answers from a host, and whom it sees.

        Raises:
            OSError: nobody does; TimeoutError, within a time.
        """
        work = partial(_ask, host, target, port, udp=udp, limit_s=limit_s)
        return self.begin(host, work).result()

    def ask_all(
        self, host: str, target: str, port: int = 80, *, times: int, udp: bool = False
    ) -> list[Seen]:
        """Ask some times, several at a time."""
        work = partial(_ask, host, target, port, udp=udp)
        begun = [self.begin(host, work) for _ in range(times)]
        return [each.result() for each in begun]

    def dropped(self, host: str, target: str, port: int = 80, *, udp: bool = False) -> bool:
        """Whether nothing at all comes back."""
        try:
            self.ask(host, target, port, udp=udp, limit_s=DROPPED_S)
        except TimeoutError:
            return True
        except ConnectionRefusedError:
            pass
        return False

    def refused(self, host: str, target: str, port: int = 80, *, udp: bool = False) -> bool:
        """Whether it is said at once that nobody is there."""
        try:
            self.ask(host, target, port, udp=udp)
        except (ConnectionRefusedError, PermissionError):  # which a node's own datagrams get
            return True
        return False

    # The API.

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Ask kube-apiserver; what it answers, None for what is not there."""
        if self._api is None:
            trust = ssl.create_default_context(cafile=str(self.directory / "pki" / "ca.crt"))
            self._api = http.client.HTTPSConnection(*_API, context=trust, timeout=LIMIT_S)
            self.begin("api", self._api.connect).result()
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": f"application/{kind}"}
        self._api.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._api.getresponse()
        text = answer.read().decode()
        if answer.status == 404:
            return None
        assert answer.status < 300, f"{method} {path}: {text}"
        return json.loads(text)

    def _put(self, path: str, name: str, body: Mapping[str, Any]) -> None:
        if self.call("PATCH", f"{path}/{name}", body) is None:
            self.call("POST", path, body)

    def service(
        self, name: str, ends: Iterable[str], *, ip: str, lb_ip: str = "", protocols: str = "TCP",
        node_port: int = 0, port: int = 80, **spec: Any,
    ) -> None:  # fmt: skip
        """Have a Service, and its endpoints, which are there before it: pods by their names."""
        self.endpoints(name, ends, protocols=protocols)
        kind = "LoadBalancer" if lb_ip else "NodePort" if node_port else "ClusterIP"
        ports = [
            {"name": each.lower(), "protocol": each, "port": port, "targetPort": WHO_PORT}
            | ({"nodePort": node_port} if node_port else {})
            for each in protocols.split()
        ]
        spec = {"type": kind, "clusterIP": ip, "ports": ports, **spec}
        self._put(_SERVICES, name, {"metadata": {"name": name}, "spec": spec})
        if lb_ip:
            status = {"status": {"loadBalancer": {"ingress": [{"ip": lb_ip}]}}}
            self.call("PATCH", f"{_SERVICES}/{name}/status", status)

    def endpoints(self, name: str, ends: Iterable[str], *, protocols: str = "TCP") -> None:
        """Have a Service lead to these pods from now on."""
        body = {
            "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [
                {"name": each.lower(), "protocol": each, "port": WHO_PORT}
                for each in protocols.split()
            ],
            "endpoints": [{"addresses": [PODS[pod]], "nodeName": node_of(pod)} for pod in ends],
        }
        self._put(_SLICES, f"{name}-1", body)

    def remove_service(self, name: str) -> None:
        """Have it no more."""
        self.call("DELETE", f"{_SERVICES}/{name}")
        self.call("DELETE", f"{_SLICES}/{name}-1")

    # Node proxies.

    def use_mode(self, mode: str) -> None:
        """Have no proxies and no rules; those of this mode are to come."""
        self._end_proxies(NODES)
        for node in NODES:
            self.run(node, *_ISTHMUS, "node-proxy", "cleanup")
        self.mode = mode

    def use(self, *flags: str, nodes: Sequence[str] = NODES) -> list[Proxy]:
        """Have proxies with these flags on some nodes, synced; the same as before stay."""
        others = [node for node in nodes if self._flags.get(node) != flags]
        self._end_proxies(others)
        for node in others:
            self._proxies[node] = self.start(node, *flags)
            self._flags[node] = flags
        for node in others:
            self._proxies[node].wait_synced()
        return [self._proxies[node] for node in nodes]

    def start(self, node: str, *flags: str) -> Proxy:
        """Start a proxy on a node; whoever does ends it, too."""
        argv = [
            *_ISTHMUS, "node-proxy", f"--kubeconfig={self.directory}/kubeconfig",
            f"--hostname-override={node}", f"--proxy-mode={self.mode}",
            "--iptables-min-sync-period=10ms", "--iptables-sync-period=1s", *flags,
        ]  # fmt: skip
        self._logs += 1
        log = self.directory / "logs" / f"{node}-{self._logs}.log"
        return Proxy(node, self._names.host(node), log, argv)

    def crash(self, node: str) -> None:
        """End the proxy of a node without a word."""
        del self._flags[node]
        self._proxies.pop(node).kill()

    def _end_proxies(self, nodes: Iterable[str]) -> None:
        ended = [self._proxies.pop(node) for node in nodes if node in self._proxies]
        for proxy in ended:
            del self._flags[proxy.node]
            proxy.end()

    def wait_known(self, *addresses: str, nodes: Sequence[str] = NODES) -> None:
        """Wait until the rules of nodes have these addresses of Services in them."""
        for node, address in itertools.product(nodes, addresses):
            wait_until(partial(self._knows, node, address), f"{address} on {node}", LIMIT_S)

    def wait_forgotten(self, address: str) -> None:
        """Wait until no node has an address of a Service any more."""
        for node in NODES:
            gone = partial(self._knows, node, address, there=False)
            wait_until(gone, f"no {address} on {node}", LIMIT_S)

    def _knows(self, node: str, address: str, *, there: bool = True) -> bool:
        found = re.search(rf"\b{re.escape(address)}\b(?!\.)", self.rules(node))
        return (found is not None) == there

    def rules(self, node: str) -> str:
        """The rules of a node, without what counts packets and in one order; none is empty."""
        if self.mode == "iptables":
            text = self.run(node, "iptables-save")
            lines = (re.sub(r"\[\d+:\d+\]", "", line) for line in text.splitlines())
            return "\n".join(sorted(line for line in lines if not line.startswith("#")))
        text = self.run(node, "nft", "-s", "list", "table", "ip", "kube-proxy", check=False)
        # What Services that are gone had is empty, and goes later.
        there = re.sub(r"\tchain \S+ \{\n\t\}\n", "", text)
        words = re.sub(r"[,{}=]|elements", "\n", there).splitlines()
        return "\n".join(sorted(filter(None, map(str.strip, words))))


def _ask(
    host: str, target: str, port: int, *, udp: bool = False, limit_s: float = ANSWER_S
) -> Seen:
    """Ask in the namespace that the thread is in; a node says which of its addresses it is."""
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(limit_s)
        if host in NODE_SOURCES and not target.startswith("127."):
            sock.bind((NODE_SOURCES[host], 0))
        sock.connect((target, port))
        return ask_by(sock) if udp else _said(b"".join(iter(partial(sock.recv, 1000), b"")))


def ask_by(sock: socket.socket) -> Seen:
    """Ask with a datagram of a socket that one has."""
    sock.send(b"who")
    return _said(sock.recv(1000))


def _said(answer: bytes) -> Seen:
    server, saw, source = answer.decode().split()
    assert saw == "saw"
    return Seen(server, source)


@contextmanager
def up() -> Iterator[Bed]:
    """Have the topology up; skip where kube-apiserver is not."""
    try:
        programs = build(print)
    except NotBuiltError as exc:
        pytest.skip(str(exc))
    paths = {path.parent for path in (programs.etcd, programs.kube_apiserver, programs.kubectl)}
    with nothing_left():
        printed = lab("up", "services", *(f"--path={path}" for path in paths), limit_s=120.0)
        found = re.search(r"lab ([0-9a-f]{6}) is up", printed)
        assert found, printed
        bed = Bed(found[1])
        try:
            kubectl = (str(programs.kubectl), f"--kubeconfig={bed.directory}/kubeconfig")
            bed.run("api", *kubectl, "create", "-f", f"{bed.directory}/objects.yaml")
            yield bed
        finally:
            bed.close()
            lab("down", "--lab", found[1])
