"""``isthmus node-proxy`` as a program, against a real kube-apiserver.

What it waits for, follows, heals, leaves behind and cleans up. Its rules are compared with
kube-proxy's in test_node_proxy_rules.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube.api import Api
from kube.node_proxy_ground import NODE_IPS, NODE_NAME, Node, Nodes, node_kubeconfig
from kube.node_proxy_objects import marker
from kube.node_proxy_programs import Kind, Proxy, proxy
from kube.node_proxy_writing import write
from kube.programs import ISTHMUS, LIMIT_S, Program, command, environment, wait_until

pytestmark = pytest.mark.interop

HEALTHZ_PORT = 10256
FOREIGN = ("-A", "FORWARD", "-s", "203.0.113.7/32", "-j", "ACCEPT")
SOON = ("--iptables-sync-period=1s", "--iptables-min-sync-period=10ms")


@pytest.fixture(scope="module")
def the_api(ground: Nodes) -> Iterator[Api]:
    """An API with one Service."""
    with ground.apiserver() as running:
        objects, _ = marker(1)
        write(running, objects.services, objects.slices)
        yield running


@pytest.fixture
def api(the_api: Api) -> Iterator[Api]:
    """The same, with no Node but what the test makes."""
    yield the_api
    the_api.call("DELETE", f"/api/v1/nodes/{NODE_NAME}")


def make_node(api: Api, *pod_cidrs: str) -> None:
    """Create the Node, with an address, and ranges if there are any."""
    spec = {"podCIDR": pod_cidrs[0], "podCIDRs": list(pod_cidrs)} if pod_cidrs else {}
    api.create("/api/v1/nodes", {"metadata": {"name": NODE_NAME}, "spec": spec})
    addresses = [{"type": "InternalIP", "address": address} for address in NODE_IPS]
    api.call("PATCH", f"/api/v1/nodes/{NODE_NAME}/status", {"status": {"addresses": addresses}})


def run(node: Node, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(node.namespace, argv), capture_output=True, text=True, timeout=LIMIT_S,
        check=check, env=environment(),
    )  # fmt: skip


def saved(node: Node) -> str:
    return run(node, "iptables-save").stdout + run(node, "ip6tables-save").stdout


def ours(node: Node) -> list[str]:
    """The lines of iptables-save that have to do with Services."""
    return [line for line in saved(node).splitlines() if "KUBE-" in line]


def terminate(one: Proxy) -> None:
    os.kill(one.program.pid, signal.SIGTERM)
    wait_until(lambda: not one.program.running, "it ends")


def test_it_waits_for_pod_ranges_and_follows_them(ground: Nodes, api: Api) -> None:
    make_node(api)
    flags = (*SOON, "--detect-local=node-cidr", "--node-cidr", "--cluster-cidr=192.0.2.0/24")
    with proxy(ground, api, Kind.ISTHMUS, "iptables", flags) as one:
        one.program.wait_for(
            lambda: "waiting for podCIDRs of the Node" in one.program.log, "says that it waits"
        )
        assert ours(one.node) == []
        assert "--cluster-cidr is ignored" in one.program.log
        patch = {"spec": {"podCIDR": "10.7.0.0/24", "podCIDRs": ["10.7.0.0/24"]}}
        api.call("PATCH", f"/api/v1/nodes/{NODE_NAME}", patch)
        one.wait_shows("iptables", "! -s 10.7.0.0/24")
        # IPv6 has none: that is said, and its rules are there without.
        assert "no local traffic detector for this IP family" in one.program.log
        wait_until(  # they are programmed after those of IPv4
            lambda: "KUBE-SERVICES" in run(one.node, "ip6tables-save").stdout, "IPv6 has rules"
        )
        # Ranges of a Node never change; another Node of the name may come.
        api.call("DELETE", f"/api/v1/nodes/{NODE_NAME}")
        make_node(api, "10.8.0.0/24", "fd00:8::/64")
        one.wait_shows("iptables", "! -s 10.8.0.0/24", "! -s fd00:8::/64")
        assert "10.7.0.0/24" not in saved(one.node)


def test_it_heals_what_somebody_flushed(ground: Nodes, api: Api) -> None:
    make_node(api)
    with proxy(ground, api, Kind.ISTHMUS, "iptables", SOON) as one:
        _, shown = marker(1)
        one.wait_shows("iptables", *shown)
        before = sorted(ours(one.node))
        for tool in ("iptables", "ip6tables"):
            for table in ("nat", "filter", "mangle"):
                run(one.node, tool, "-t", table, "-F")
                run(one.node, tool, "-t", table, "-X")
        assert ours(one.node) == []
        wait_until(lambda: sorted(ours(one.node)) == before, "all rules are there again")
        assert "rules changed by another program" in one.program.log


def test_its_rules_outlive_it_and_cleanup_removes_them(ground: Nodes, api: Api) -> None:
    make_node(api)
    with proxy(ground, api, Kind.ISTHMUS, "iptables", SOON) as one:
        run(one.node, "iptables", *FOREIGN)
        _, shown = marker(1)
        one.wait_shows("iptables", *shown)
        before = ours(one.node)
        terminate(one)
        assert ours(one.node) == before
        done = run(one.node, *ISTHMUS, "node-proxy", "cleanup", check=False)
        assert (done.returncode, done.stderr) == (0, "")
        left = [line for line in ours(one.node) if "KUBE-FIREWALL" not in line]
        assert left == []
        assert " ".join(FOREIGN) in saved(one.node)


def test_another_mode_takes_the_place_of_the_first(ground: Nodes, api: Api) -> None:
    make_node(api)
    _, shown = marker(1)
    with proxy(ground, api, Kind.ISTHMUS, "nftables", SOON) as one:
        one.wait_shows("nftables", *shown)
        terminate(one)
        argv = [
            *ISTHMUS, "node-proxy", f"--kubeconfig={node_kubeconfig(api)}",
            f"--hostname-override={NODE_NAME}", "--proxy-mode=iptables", *SOON,
        ]  # fmt: skip
        with Program("second", one.node.namespace, argv, one.node.directory).up() as second:
            other = Proxy(kind=Kind.ISTHMUS, node=one.node, program=second)
            other.wait_shows("iptables", *shown)
            second.wait_for(
                lambda: "table ip kube-proxy" not in run(one.node, "nft", "list", "tables").stdout,
                "removes nftables' rules",
            )


def test_node_ports_follow_the_addresses_of_the_host(ground: Nodes, api: Api) -> None:
    make_node(api)
    flags = (*SOON, "--nodeport-addresses=198.51.100.0/24")
    with proxy(ground, api, Kind.ISTHMUS, "iptables", flags) as one:
        _, shown = marker(1)
        one.wait_shows("iptables", *shown)
        rule = "-A KUBE-SERVICES -d 198.51.100.9/32"
        assert rule not in saved(one.node)
        run(one.node, "ip", "address", "add", "198.51.100.9/32", "dev", "eth0")
        one.wait_shows("iptables", rule)
        run(one.node, "ip", "address", "del", "198.51.100.9/32", "dev", "eth0")
        wait_until(lambda: rule not in saved(one.node), "the rule goes with the address")


def test_the_file_of_kube_proxy_and_its_pages(ground: Nodes, api: Api, tmp_path: Path) -> None:
    make_node(api)
    config = tmp_path / "config.conf"
    config.write_text(
        f"""\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: {node_kubeconfig(api)}}}
clusterCIDR: 10.99.0.0/16
mode: iptables
iptables: {{syncPeriod: 1s, minSyncPeriod: 10ms, masqueradeBit: 20}}
conntrack: {{maxPerCore: 0}}
"""
    )
    with ground.node("config") as node:
        argv = [*ISTHMUS, "node-proxy", f"--config={config}", f"--hostname-override={NODE_NAME}",
                "--cluster-cidr=10.0.0.0/8"]  # fmt: skip
        with Program("config", node.namespace, argv, node.directory).up() as program:
            one = Proxy(kind=Kind.ISTHMUS, node=node, program=program)
            _, shown = marker(1)
            one.wait_shows("iptables", *shown, "! -s 10.99.0.0/16", "0x100000")
            assert "because of --config: --cluster-cidr" in program.log
            assert one.page("/proxyMode") == "iptables"
            told = json.loads(one.page("/configz"))["kubeproxy.config.k8s.io"]
            assert told["clusterCIDR"] == "10.99.0.0/16"
            assert told["iptables"]["masqueradeBit"] == 20
            health = json.loads(one.page("/healthz", HEALTHZ_PORT))
            assert health["healthy"] and health["nodeEligible"]
            synced = one.metrics()["kubeproxy_sync_proxy_rules_duration_seconds_count"
                                   '{ip_family="IPv4"}']  # fmt: skip
            assert synced >= 1
