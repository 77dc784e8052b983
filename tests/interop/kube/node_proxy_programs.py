"""kube-proxy and ``isthmus node-proxy`` on nodes of their own, started and looked at alike."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from kube.api import Api
from kube.build import Binaries
from kube.node_proxy_ground import NODE_NAME, Node, Nodes, node_kubeconfig
from kube.programs import ISTHMUS, LIMIT_S, Program, command, connect

METRICS_PORT = 10249
MetricsTest = Callable[[Mapping[str, float]], bool]
_TOOL_LIMIT_S = 60.0
_LOOK_AGAIN_S = 0.1
_SOON_S = 15.0


class Kind(Enum):
    """A program that plays the node service proxy."""

    KUBE_PROXY = "kube-proxy"
    ISTHMUS = "isthmus"

    def argv(self, binaries: Binaries) -> list[str]:
        """Its command, without flags."""
        if self is Kind.KUBE_PROXY:
            return [str(binaries.kube_proxy)]
        return [*ISTHMUS, "node-proxy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A running proxy: its node, its process, and what it made of the kernel's rules."""

    kind: Kind
    node: Node
    program: Program

    def run(self, *argv: str) -> str:
        """Run a tool on its node; what it printed."""
        done = subprocess.run(
            command(self.node.namespace, argv),
            capture_output=True, text=True, timeout=_TOOL_LIMIT_S, check=True,
        )  # fmt: skip
        return done.stdout

    def rules(self, mode: str) -> dict[str, str]:
        """What is in its kernel, by family: iptables-save's text, or nft's of its table."""
        if mode == "iptables":
            return {"IPv4": self.run("iptables-save"), "IPv6": self.run("ip6tables-save")}
        return {
            family: self.run("nft", "-s", "list", "table", word, "kube-proxy")
            for family, word in (("IPv4", "ip"), ("IPv6", "ip6"))
        }

    def shows(self, mode: str, *texts: str, without: Sequence[str] = ()) -> bool:
        """Whether each of these stands in the rules, and none of those; no rules yet is no."""
        try:
            found = "".join(self.rules(mode).values())
        except subprocess.CalledProcessError:
            return False
        return all(text in found for text in texts) and not any(text in found for text in without)

    def wait_shows(self, mode: str, *texts: str, without: Sequence[str] = ()) -> None:
        """Wait until it has programmed these, and none of those any more."""
        holds = partial(self.shows, mode, *texts, without=without)
        self._wait(holds, f"rules with {texts}", every_s=_LOOK_AGAIN_S, limit_s=LIMIT_S)

    def soon_shows(self, mode: str, *texts: str, without: Sequence[str] = ()) -> bool:
        """Whether it has programmed these, and none of those, within a moment."""
        deadline = time.monotonic() + _SOON_S
        while not (found := self.shows(mode, *texts, without=without)):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_AGAIN_S)
        return found

    def _wait(
        self, holds: Callable[[], bool], what: str, *, every_s: float, limit_s: float
    ) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            assert self.program.running, f"{self.kind.value} ended: {self.program.log[-2000:]}"
            late = time.monotonic() > deadline
            assert not late, f"{self.kind.value} never had {what}: {self.program.log[-2000:]}"
            time.sleep(every_s)  # looking takes the time of the machine that it works on

    def page(self, path: str, port: int = METRICS_PORT) -> str:
        """What it serves on loopback of its node."""
        plain = connect(self.node.namespace, ("127.0.0.1", port))
        opened = http.client.HTTPConnection("127.0.0.1", port)
        opened.sock = plain
        with contextlib.closing(opened):
            opened.request("GET", path)
            return opened.getresponse().read().decode()

    def metrics(self, prefix: str = "kubeproxy_") -> dict[str, float]:
        """Its metrics by name and labels; none before it serves them."""
        try:
            text = self.page("/metrics")
        except OSError:
            return {}
        found = {}
        for line in text.splitlines():
            if line.startswith(prefix):
                name, _, value = line.rpartition(" ")
                found[name] = float(value)
        return found

    def wait_metrics(
        self, holds: MetricsTest, what: str, *, every_s: float, limit_s: float
    ) -> dict[str, float]:
        """Wait until its metrics are as wanted; these metrics."""
        kept: dict[str, float] = {}

        def look() -> bool:
            kept.clear()
            kept.update(self.metrics())
            return holds(kept)

        self._wait(look, what, every_s=every_s, limit_s=limit_s)
        return kept


@contextlib.contextmanager
def proxy(nodes: Nodes, api: Api, kind: Kind, mode: str, flags: Sequence[str]) -> Iterator[Proxy]:
    """Run a proxy on a new node for the time of the block."""
    with nodes.node(kind.value) as node:
        argv = [
            *kind.argv(nodes.binaries),
            f"--kubeconfig={node_kubeconfig(api)}",
            f"--hostname-override={NODE_NAME}",
            f"--proxy-mode={mode}",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            *flags,
        ]
        with Program(kind.value, node.namespace, argv, node.directory).up() as program:
            yield Proxy(kind=kind, node=node, program=program)
