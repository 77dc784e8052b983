"""``isthmus node-proxy`` in the place of a kube-proxy that runs, while a Service is in use."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from kube.api import Api
from kube.node_proxy_ground import NODE_IPS, NODE_NAME, Nodes, node_kubeconfig
from kube.node_proxy_objects import LOCAL, address, marker
from kube.node_proxy_programs import Kind, Proxy, proxy
from kube.node_proxy_traffic import HEALTH_PORT, objects, traffic
from kube.node_proxy_writing import delete, write, write_node
from kube.programs import ISTHMUS, LIMIT_S, Program, command, connect, environment, wait_until

pytestmark = pytest.mark.interop

Wrap = Callable[[list[str]], list[str]]
CIDRS = "--cluster-cidr=10.180.0.0/16,fd00:180::/48"
MODES = ("iptables", "nftables")
ENDPOINT = address(LOCAL.number, "IPv4", local=True)
STOP_IT = "stop kube-proxy now"
GONE = "kube-proxy ended"
OPENED = "own port opened"


@pytest.fixture(scope="module")
def api(ground: Nodes) -> Iterator[Api]:
    """An API with a Node, and the Service that is used."""
    with ground.apiserver() as running:
        made = objects()
        write(running, made.services, made.slices)
        write_node(running)
        yield running


def argv(api: Api, mode: str, *flags: str) -> list[str]:
    return [
        *ISTHMUS, "node-proxy", f"--kubeconfig={node_kubeconfig(api)}",
        f"--hostname-override={NODE_NAME}", f"--proxy-mode={mode}", CIDRS,
        f"--{mode}-min-sync-period=10ms", "--conntrack-max-per-core=0", *flags,
    ]  # fmt: skip


def hidden(of: list[str]) -> list[str]:
    """The same command where it sees no process but itself."""
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *of]


def local_endpoints(one: Proxy) -> int:
    """What the health check node port says; 0 while nobody is there."""
    opened = http.client.HTTPConnection(NODE_IPS[0], HEALTH_PORT)
    try:
        # Node ports of nftables are at the node's own address alone.
        opened.sock = connect(one.node.namespace, (NODE_IPS[0], HEALTH_PORT))
        opened.request("GET", "/")
        return int(json.loads(opened.getresponse().read())["localEndpoints"])
    except OSError:
        return 0
    finally:
        opened.close()


def stop(old: Proxy) -> None:
    os.kill(old.program.pid, signal.SIGTERM)
    wait_until(lambda: not old.program.running, "kube-proxy ends")


def listed(one: Proxy) -> str:
    """Everything of any mode, in both families."""
    commands = (("nft", "list", "ruleset"), ("iptables-save",), ("ip6tables-save",))
    return "".join(one.run(*each) for each in commands)


@pytest.mark.parametrize("before", MODES)
@pytest.mark.parametrize("mode", MODES)
def test_not_one_connection_fails(ground: Nodes, api: Api, before: str, mode: str) -> None:
    with proxy(ground, api, Kind.KUBE_PROXY, before, (CIDRS,)) as old:
        old.wait_shows(before, ENDPOINT)
        made = Program(
            "ours", old.node.namespace, argv(api, mode, "--take-over"), old.node.directory
        )
        with traffic(ground, old.node) as clients, made.up() as program:
            ours = Proxy(kind=Kind.ISTHMUS, node=old.node, program=program)
            program.wait_for(lambda: STOP_IT in program.log, "says that its rules are in force")
            assert ours.page("/proxyMode") == before, "its ports are kube-proxy's still"
            clients.wait_more()
            stop(old)
            program.wait_for(lambda: GONE in program.log, "sees kube-proxy gone")
            program.wait_for(lambda: program.log.count(OPENED) == 2, "has its ports")
            assert ours.page("/proxyMode") == mode
            assert json.loads(ours.page("/healthz", 10256))["healthy"]
            program.wait_for(lambda: local_endpoints(ours) == 1, "has the health check node port")
            if before != mode:
                trace = "KUBE-SVC" if before == "iptables" else "table ip kube-proxy {"
                program.wait_for(lambda: trace not in listed(ours), f"removes rules of {before}")
            clients.wait_more()
            more, shown = marker(7)
            write(api, more.services, more.slices)
            ours.wait_shows(mode, *shown)
            clients.wait_more()
            clients.check()
    delete(api, more.services, more.slices)


def test_a_moment_without_rules_would_be_noticed(ground: Nodes, api: Api) -> None:
    with proxy(ground, api, Kind.KUBE_PROXY, "iptables", (CIDRS,)) as old:
        old.wait_shows("iptables", ENDPOINT)
        with traffic(ground, old.node) as clients:
            old.run("iptables", "-t", "nat", "-F", "KUBE-SERVICES")
            clients.wait_more()
            with pytest.raises(AssertionError, match="on the node"):
                clients.check()


@pytest.mark.parametrize("wrap", [list, hidden], ids=["seen", "hidden"])
def test_it_refuses_to_start_beside_kube_proxy(
    ground: Nodes, api: Api, wrap: type[list[str]]
) -> None:
    with proxy(ground, api, Kind.KUBE_PROXY, "iptables", (CIDRS,)) as old:
        old.wait_shows("iptables", ENDPOINT)
        wait_until(lambda: bool(old.metrics()), "kube-proxy serves its ports")
        done = subprocess.run(
            command(old.node.namespace, wrap(argv(api, "iptables"))), capture_output=True,
            text=True, timeout=LIMIT_S, env=environment(),
        )  # fmt: skip
        assert done.returncode == 2
        sign = {
            list: f"process {old.program.pid} is in this network namespace",
            hidden: "http://127.0.0.1:10249/proxyMode answers like kube-proxy",
        }[wrap]
        message = done.stderr.splitlines()[-1]
        assert f"({sign})" in message and "--take-over" in message
