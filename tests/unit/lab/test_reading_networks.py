"""Networks behind a host: read, and told what is wrong with them."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from isthmus.errors import ConfigError
from isthmus.lab.reading import read
from isthmus.lab.topology import LabNetwork, Topology

HOSTS = """\
hosts:
  node: {at: {lan: 10.1.0.10, pods: 10.2.0.1}}
  pod: {at: {pods: 10.2.0.10}}
"""


def topology(pods: str, more: str = "", hosts: str = HOSTS) -> Topology:
    networks = f"networks:\n  lan: {{cidr: 10.1.0.0/24}}\n  pods: {{{pods}}}\n{more}"
    return read(f"title: t\n{networks}{hosts}", name="t", source="t.yaml")


def errors(pods: str, more: str = "", hosts: str = HOSTS) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        topology(pods, more, hosts)
    return str(caught.value).splitlines()


def test_a_bridge_on_a_host_and_its_ports() -> None:
    found = topology("cidr: 10.2.0.0/24, behind: node, bridge: cni0, ports: veth")
    assert found.network("pods") == LabNetwork(
        name="pods", cidrs=(ip_network("10.2.0.0/24"),), gateway=False, behind="node",
        bridge="cni0", ports="veth",
    )  # fmt: skip


def test_cables_without_a_bridge() -> None:
    found = topology("cidr: 10.2.0.0/24, behind: node").network("pods")
    assert (found.bridge, found.ports) == ("", "port")


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ("behind: nodr", "pods.behind: there is no host 'nodr', did you mean node?"),
        ("behind: pod", "pods.behind:"),
        ("behind: node, gateway: true", "pods.gateway:"),
        ("bridge: cni0", "pods.bridge: is only for a network behind a host"),
        ("ports: veth", "pods.ports: is only for a network behind a host"),
        ("behind: node, bridge: lan", "pods.bridge:"),
        ("behind: node, bridge: Cni", "pods.bridge: 'Cni'"),
        ("behind: node, ports: thirteen-long", "pods.ports: 'thirteen-long'"),
        ("behind: node, ports: la", "pods.ports:"),
        ("behind: node, bridge: veth0, ports: veth", "pods.ports: ports 'veth': another interface"),
        ("behind: node, port: veth", "pods: unknown key 'port', did you mean ports?"),
    ],
)
def test_wrong_places_are_told_once(pods: str, said: str) -> None:
    cidrs = "[10.2.0.0/24, 10.3.0.0/24]" if "behind: pod" in pods else "10.2.0.0/24"
    found = [line for line in errors(f"cidr: {cidrs}, {pods}") if f"networks.{said}" in line]
    assert len(found) == 1, errors(f"cidr: {cidrs}, {pods}")


def test_a_bridge_is_of_one_network() -> None:
    more = "  more: {cidr: 10.3.0.0/24, behind: node, bridge: cni0}\n"
    lines = errors(
        "cidr: 10.2.0.0/24, behind: node, bridge: cni0", more,
        HOSTS.replace("10.2.0.1}", "10.2.0.1, more: 10.3.0.1}"),
    )  # fmt: skip
    assert lines == ["t.yaml:5:51: networks.more.bridge: is already the bridge of network pods"]


def test_no_line_behind_a_host_is_a_bad_one() -> None:
    hosts = HOSTS.replace("pods: 10.2.0.10", "pods: {address: 10.2.0.10, delay_ms: 1}")
    lines = errors("cidr: 10.2.0.0/24, behind: node", hosts=hosts)
    assert lines == [
        "t.yaml:7:20: hosts.pod.at.pods: network pods is behind node, whose lines cannot be shaped"
    ]


def test_cables_behind_a_host_are_not_cut() -> None:
    for step, said in (
        ("{cut: pod}", "cut: pod has no cable to the wall"),
        ("{cut: node, network: pods}", "network: there is no network of node 'pods'"),
    ):
        lines = errors("cidr: 10.2.0.0/24, behind: node", hosts=f"{HOSTS}steps: [{step}]\n")
        assert any(f"steps[0].{said}" in line for line in lines), lines
    (step_,) = topology("cidr: 10.2.0.0/24, behind: node", hosts=f"{HOSTS}steps: [cut: node]").steps
    assert getattr(step_, "networks", ()) == ("lan",)
