"""What the kernel is set to, with a directory instead of /proc/sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.kernel.host import Sysctls, has_ipv6, tracked
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.settings import NodeProxySettings

QUIET = NodeProxySettings(
    conntrack_max_per_core=0,
    conntrack_tcp_timeout_established_s=0.0,
    conntrack_tcp_timeout_close_wait_s=0.0,
)


class Kernel:
    """A directory that looks like /proc/sys."""

    def __init__(self, root: Path) -> None:
        self.root = root / "sys"
        self.hash_size = root / "hashsize"
        self.sysctls = Sysctls(self.root, self.hash_size)

    def has(self, name: str, value: int) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def value(self, name: str) -> int:
        return int((self.root / name).read_text())


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.mark.parametrize(
    ("per_core", "least", "processors", "most"),
    [
        (32768, 131072, 2, 131072),
        (32768, 131072, 8, 262144),
        (32768, 131072, 128, 1048576),
        (0, 131072, 8, 0),
        (1, 2_000_000, 2, 2_000_000),
    ],
)
def test_how_many_connections(per_core: int, least: int, processors: int, most: int) -> None:
    settings = NodeProxySettings(conntrack_max_per_core=per_core, conntrack_min=least)
    assert tracked(settings, processors) == most


def test_connection_tracking_is_set(kernel: Kernel) -> None:
    netfilter = "net/netfilter/nf_conntrack_"
    names = ("max", "tcp_timeout_established", "tcp_timeout_close_wait", "udp_timeout",
             "udp_timeout_stream", "tcp_be_liberal")  # fmt: skip
    for name in names:
        kernel.has(f"{netfilter}{name}", 7)
    kernel.hash_size.write_text("100")
    settings = NodeProxySettings(conntrack_udp_timeout_s=42.9, conntrack_tcp_be_liberal=True)
    assert kernel.sysctls.set_conntrack(settings, 2) == []
    assert [kernel.value(f"{netfilter}{name}") for name in names] == [
        131072, 86400, 3600, 42, 7, 1,
    ]  # fmt: skip
    assert kernel.hash_size.read_text() == "32768"


def test_a_hash_table_that_is_large_enough_stays(kernel: Kernel) -> None:
    kernel.has("net/netfilter/nf_conntrack_max", 7)
    kernel.hash_size.write_text("65536")
    settings = NodeProxySettings(
        conntrack_tcp_timeout_established_s=0.0, conntrack_tcp_timeout_close_wait_s=0.0
    )
    assert kernel.sysctls.set_conntrack(settings, 2) == []
    assert kernel.hash_size.read_text() == "65536"


def test_what_cannot_be_set_is_said(kernel: Kernel) -> None:
    settings = NodeProxySettings(conntrack_max_per_core=0, conntrack_tcp_timeout_close_wait_s=0.0)
    assert kernel.sysctls.set_conntrack(settings, 2) == [
        "cannot set net.netfilter.nf_conntrack_tcp_timeout_established to 86400:"
        " No such file or directory; the current value stays"
    ]


def test_nothing_is_touched_where_nothing_is_asked(kernel: Kernel) -> None:
    assert kernel.sysctls.set_conntrack(QUIET, 2) == []
    assert not kernel.root.exists()


def test_localhost_node_ports(kernel: Kernel) -> None:
    kernel.has("net/ipv4/conf/all/route_localnet", 0)
    kernel.sysctls.ensure_localhost_node_ports()
    assert kernel.value("net/ipv4/conf/all/route_localnet") == 1


def test_localhost_node_ports_that_cannot_be(kernel: Kernel) -> None:
    with pytest.raises(ConfigError, match="--iptables-localhost-nodeports=false"):
        kernel.sysctls.ensure_localhost_node_ports()


def test_a_value_that_is_right_is_not_written(kernel: Kernel) -> None:
    kernel.has("net/ipv4/conf/all/route_localnet", 1)
    path = kernel.root / "net/ipv4/conf/all/route_localnet"
    before = path.stat().st_mtime_ns
    assert kernel.sysctls.ensure("net/ipv4/conf/all/route_localnet", 1) == ""
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(("value", "drops"), [(0, True), (1, False)])
def test_a_liberal_kernel_drops_nothing(kernel: Kernel, value: int, drops: bool) -> None:
    kernel.has("net/netfilter/nf_conntrack_tcp_be_liberal", value)
    assert kernel.sysctls.drops_invalid() is drops


def test_a_kernel_that_does_not_say_is_strict(kernel: Kernel) -> None:
    assert kernel.sysctls.drops_invalid()


def test_bridges_that_iptables_hears_of(kernel: Kernel) -> None:
    kernel.has("net/bridge/bridge-nf-call-iptables", 1)
    assert kernel.sysctls.bridge_trouble([IpFamily.IPV4]) == ""
    trouble = kernel.sysctls.bridge_trouble([IpFamily.IPV4, IpFamily.IPV6])
    assert "load the kernel module br_netfilter" in trouble
    assert "IPv6" in trouble


def test_bridges_that_iptables_does_not_hear_of(kernel: Kernel) -> None:
    kernel.has("net/bridge/bridge-nf-call-iptables", 0)
    trouble = kernel.sysctls.bridge_trouble([IpFamily.IPV4])
    assert trouble.endswith("set net.bridge.bridge-nf-call-iptables=1")


def test_ipv6_may_be_turned_off(kernel: Kernel) -> None:
    kernel.has("net/ipv6/conf/all/disable_ipv6", 1)
    assert not has_ipv6(kernel.root)
