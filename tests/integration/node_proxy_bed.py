"""``isthmus node-proxy`` on manifests: a node, Services and endpoints on it, and its own pages."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from clients import LIMIT_S
from programs import Program

NODE = """\
apiVersion: v1
kind: Node
metadata: {name: here}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
"""
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.7], nodeName: here}]
"""


def web(
    cluster_ip: str,
    node_port: int,
    endpoints: Sequence[str],
    *,
    name: str = "web",
    port: int = 8080,
    affinity_s: int = 0,
) -> str:
    """A Service of type NodePort, and its EndpointSlice."""
    spec: dict[str, object] = {
        "type": "NodePort",
        "clusterIP": cluster_ip,
        "ports": [{"port": 80, "nodePort": node_port}],
    }
    if affinity_s:
        spec["sessionAffinity"] = "ClientIP"
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": affinity_s}}
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv6" if ":" in cluster_ip else "IPv4",
        "ports": [{"port": port}],
        "endpoints": [{"addresses": [each], "nodeName": "here"} for each in endpoints],
    }
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    return f"{json.dumps(service)}\n---\n{json.dumps(slice_)}\n"


class LocalhostProxy:
    """A node proxy in nftables mode with node ports on localhost, and its manifests."""

    def __init__(self, directory: Path) -> None:
        self._manifests = directory / "manifests"
        self._manifests.mkdir()
        self._log = directory / "log"
        self._program: Program | None = None

    @classmethod
    @contextlib.contextmanager
    def made(cls, directory: Path) -> Iterator[LocalhostProxy]:
        """End it with the test."""
        proxy = cls(directory)
        try:
            yield proxy
        finally:
            if proxy._program is not None:
                proxy._program.end()

    def write(self, **files: str | None) -> None:
        """Write manifests by name; None removes one."""
        for name, text in files.items():
            path = self._manifests / f"{name}.yaml"
            if text is None:
                path.unlink()
            else:
                path.write_text(text)

    def start(self, *flags: str, localhost: bool = True) -> Program:
        self._program = Program(
            [
                "node-proxy", f"--manifests={self._manifests}", "--proxy-mode=nftables",
                "--iptables-sync-period=1s", "--iptables-min-sync-period=10ms",
                "--conntrack-max-per-core=0", "--oom-score-adj=0", "--bind-address=192.0.2.1",
                *(["--nftables-localhost-nodeports"] if localhost else []), *flags,
            ],
            self._log,
        )  # fmt: skip
        self._program.wait_log("synced")
        return self._program

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """What comes meanwhile waits in the kernel."""
        assert self._program is not None
        self._program.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._program.signal(signal.SIGCONT)


@contextlib.contextmanager
def say_who(address: str, port: int = 8080) -> Iterator[None]:
    """Answer every connection to an address with the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock, contextlib.suppress(OSError):
                        sock.recv(4096)
                        sock.sendall(address.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT_S)


def page(path: str, port: int = 10249) -> tuple[int, str]:
    """A page of one of its ports."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as it:
        it.request("GET", path)
        answer = it.getresponse()
        return answer.status, answer.read().decode()


def metric(name: str) -> float:
    """The sum of all samples whose lines begin so."""
    lines = [line for line in page("/metrics")[1].splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
