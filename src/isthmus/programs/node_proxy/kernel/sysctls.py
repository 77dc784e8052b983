"""What the kernel has to be set to, and what it has to be looked at for.

The values are kube-proxy's. What cannot be set is told and not fatal, unless rules would be wrong
without: a node without its connection limit still carries traffic.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.settings import NodeProxySettings

_PROC_SYS = Path("/proc/sys")
_HASH_SIZE = Path("/sys/module/nf_conntrack/parameters/hashsize")
_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
_ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"
_BRIDGE = {
    IpFamily.IPV4: "net/bridge/bridge-nf-call-iptables",
    IpFamily.IPV6: "net/bridge/bridge-nf-call-ip6tables",
}
_MOST_TRACKED = 1024 * 1024


class Sysctls:
    """The settings below /proc/sys of the namespace that we are in."""

    def __init__(self, root: Path = _PROC_SYS, hash_size: Path = _HASH_SIZE) -> None:
        self._root = root
        self._hash_size = hash_size

    def read(self, name: str) -> int | None:
        """A number; None where there is none, or none that we may see."""
        return _read(self._root / name)

    def ensure(self, name: str, value: int) -> str:
        """Set a number unless it is that already; what is in the way, or nothing."""
        return _ensure(self._root / name, value, name.replace("/", "."))

    # What the rules depend on.

    def ensure_localhost_node_ports(self) -> None:
        """Let packets of 127.0.0.1 be routed elsewhere, which node ports on localhost need.

        Raises:
            ConfigError: it cannot be set.
        """
        wrong = self.ensure(_ROUTE_LOCALNET, 1)
        if wrong:
            raise ConfigError(
                f"node ports on localhost need it: {wrong}; set it before, or use"
                " --iptables-localhost-nodeports=false"
            )

    def drops_invalid(self) -> bool:
        """Packets outside of the window are invalid, and rules may drop what is invalid."""
        return not self.read(_BE_LIBERAL)

    def bridge_trouble(self, families: Sequence[IpFamily]) -> str:
        """Why iptables would not see packets between bridge ports; empty if it does."""
        for family in families:
            name = _BRIDGE[family]
            found = self.read(name)
            if found == 1:
                continue
            dotted = name.replace("/", ".")
            how = "load the kernel module br_netfilter" if found is None else f"set {dotted}=1"
            return (
                f"--detect-local=bridge cannot tell {family.value} packets of pods: iptables"
                f" learns of bridge ports only if {dotted} is 1, so that all of them are"
                f" masqueraded: {how}"
            )
        return ""

    # What kube-proxy sets besides.

    def set_conntrack(
        self, settings: NodeProxySettings, processors: int | None = None
    ) -> list[str]:
        """Set what --conntrack-* say; what could not be set, a sentence each."""
        most = tracked(settings, processors or os.cpu_count() or 1)
        wrong = [self.ensure(f"net/netfilter/{name}", value) for name, value in _wanted(settings)]
        if most:
            wrong.append(self._ensure_max(most))
        return [f"{each}; what it was holds" for each in wrong if each]

    def _ensure_max(self, most: int) -> str:
        wrong = self.ensure("net/netfilter/nf_conntrack_max", most)
        if wrong:
            return wrong
        size = _read(self._hash_size)
        if size is None or size >= most // 4:
            return ""
        return _ensure(self._hash_size, most // 4, "the hash size of nf_conntrack")


def tracked(settings: NodeProxySettings, processors: int) -> int:
    """How many connections to track; 0 leaves it to the kernel."""
    if not settings.conntrack_max_per_core:
        return 0
    scaled = settings.conntrack_max_per_core * processors
    return _MOST_TRACKED if scaled > _MOST_TRACKED else max(scaled, settings.conntrack_min)


def _wanted(settings: NodeProxySettings) -> Iterator[tuple[str, int]]:
    times = {
        "tcp_timeout_established": settings.conntrack_tcp_timeout_established_s,
        "tcp_timeout_close_wait": settings.conntrack_tcp_timeout_close_wait_s,
        "udp_timeout": settings.conntrack_udp_timeout_s,
        "udp_timeout_stream": settings.conntrack_udp_timeout_stream_s,
    }
    for name, seconds in times.items():
        if seconds > 0:
            yield f"nf_conntrack_{name}", int(seconds)
    if settings.conntrack_tcp_be_liberal:
        yield "nf_conntrack_tcp_be_liberal", 1


def set_oom_score(score: int) -> str:
    """Say how soon the kernel is to end this process; what is in the way, or nothing."""
    return _ensure(_OOM_SCORE_ADJ, score, "oom_score_adj")


def has_ipv6(root: Path = _PROC_SYS) -> bool:
    """The kernel has IPv6 here, and nobody turned it off."""
    # A thread's own: /proc/net is that of the process, which may be in another namespace.
    if not Path("/proc/thread-self/net/if_inet6").exists():
        return False
    return _read(root / "net/ipv6/conf/all/disable_ipv6") != 1


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _ensure(path: Path, value: int, name: str) -> str:
    if _read(path) == value:
        return ""
    try:
        path.write_text(str(value))
    except OSError as error:
        return f"{name} cannot be set to {value}: {error.strerror or error}"
    return ""
