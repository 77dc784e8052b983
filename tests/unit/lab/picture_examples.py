"""Labs to be drawn: topologies and what was seen of them, as values."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

from isthmus.lab.picture_live import LiveState
from isthmus.lab.topology import (
    Allow,
    Attachment,
    LabHost,
    LabNetwork,
    LabService,
    LineShape,
    Process,
    Serve,
    Serving,
    Topology,
)


def network(name: str, *cidrs: str, gateway: bool = True) -> LabNetwork:
    return LabNetwork(name=name, cidrs=tuple(map(ip_network, cidrs)), gateway=gateway)


def at(network: str, *addresses: str, shape: LineShape | None = None) -> Attachment:
    return Attachment(network=network, addresses=tuple(map(ip_address, addresses)), shape=shape)


def server(name: str, host: str) -> Process:
    command = ("isthmus", "server", f"--server-id={name}", "--mode=grpc,http-connect")
    return Process(name=name, host=host, command=command)


def agent(name: str, host: str, **more: Any) -> Process:
    command = ("isthmus", "agent", "--agent-id", name, "--proxy-server-host=master")
    return Process(name=name, host=host, command=command, **more)


def link(number: int, peer: str, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "peerId": peer,
        "peerAddress": "10.220.0.10:40000",
        "carrier": "mux",
        "state": "open",
        "ageSeconds": 12.5,
        "streams": 0,
        "rttSeconds": 0.000412,
        "heldBytes": 0,
        "sentBytes": 1_234_567,
        "receivedBytes": 8_812,
        **more,
    }


def tunnel(number: int, target: str, link: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "frontend": "http-connect",
        "requester": "uid:0",
        "target": target,
        "agentId": "agent",
        "linkId": link,
        "state": "open",
        "ageSeconds": 3.0,
        "bytesToTarget": 412,
        "bytesToClient": 1_048_576,
        "stalled": "",
        **more,
    }


def server_snapshot(name: str, links: list[Any], tunnels: list[Any]) -> dict[str, Any]:
    return {
        "kind": "ServerSnapshot",
        "serverId": name,
        "agents": [],
        "links": links,
        "tunnels": tunnels,
        "truncated": 0,
    }


ISOLATED = Topology(
    name="isolated-cluster",
    title="A control plane, a cluster, and a wall that only an agent gets through",
    networks=(
        network("control", "10.210.0.0/24"),
        network("nodes", "10.220.0.0/24"),
        network("pods", "10.221.0.0/24"),
    ),
    hosts=(
        LabHost(
            name="master",
            attachments=(at("control", "10.210.0.10"),),
            processes=(server("server", "master"),),
        ),
        LabHost(
            name="node",
            attachments=(
                at(
                    "nodes",
                    "10.220.0.10",
                    shape=LineShape(delay_ms=50, loss=0.01, rate_mbit=20),
                ),
            ),
            serves=(Serve(kind=Serving.HTTP, port=10250),),
            services=(
                LabService(address=ip_address("10.96.0.10"), port=80, to_host="pod", to_port=8080),
            ),
            processes=(agent("agent", "node"),),
        ),
        LabHost(
            name="pod",
            attachments=(at("pods", "10.221.0.10"),),
            serves=(
                Serve(kind=Serving.HTTP, port=8080),
                Serve(kind=Serving.ECHO, port=7),
                Serve(kind=Serving.HTTPS, port=8443),
            ),
        ),
    ),
    allows=(
        Allow(source="nodes", target="master", ports=(8091,)),
        Allow(source="nodes", target="pods"),
        Allow(source="pods", target="nodes"),
    ),
    names=(("web.default.svc", ip_address("10.96.0.10")),),
)

ISOLATED_LIVE = LiveState(
    running={"server": True, "agent": True},
    snapshots={
        "server": server_snapshot(
            "server",
            [link(1, "agent", streams=3, rttSeconds=0.1012, receivedBytes=345_678_901)],
            [
                tunnel(1, "pod:8080"),
                tunnel(
                    2,
                    "web.default.svc:80",
                    frontend="grpc",
                    state="stalled",
                    stalled="client stopped reading; 256KiB held for 12s",
                ),
                tunnel(3, "node:10250", state="half-closed", bytesToTarget=98_765_432),
            ],
        ),
        "agent": {"kind": "AgentSnapshot", "agentId": "agent", "links": [], "tunnels": []},
    },
)


def _master(number: int) -> LabHost:
    name = f"master{number}"
    return LabHost(
        name=name,
        attachments=(at("control", f"10.210.0.1{number}"),),
        processes=(server(f"server{number}", name),),
    )


def _node(number: int, **more: Any) -> LabHost:
    name = f"node{number}"
    return LabHost(
        name=name,
        attachments=(at("nodes", f"10.220.0.1{number}"),),
        serves=(Serve(kind=Serving.HTTP, port=10250), Serve(kind=Serving.ECHO, port=7)),
        processes=(agent(f"agent{number}", name, **more),),
    )


HA = Topology(
    name="ha",
    title="Three servers behind one address, two agents",
    networks=(
        network("nodes", "10.220.0.0/24"),
        network("control", "10.210.0.0/24"),
    ),
    hosts=(
        LabHost(
            name="front",
            attachments=(at("control", "10.210.0.5"),),
            processes=(
                Process(
                    name="balancer",
                    host="front",
                    command=("python3", "-m", "isthmus.lab.balancer", "--listen=8091"),
                ),
            ),
        ),
        *map(_master, (1, 2, 3)),
        *map(_node, (1, 2)),
        LabHost(name="client", attachments=(at("control", "10.210.0.30"),)),
    ),
    allows=(Allow(source="nodes", target="front", ports=(8091,)),),
)

HA_LIVE = LiveState(
    running={
        "balancer": True,
        "server1": True,
        "server2": True,
        "server3": False,
        "agent1": True,
        "agent2": True,
    },
    snapshots={
        "server1": server_snapshot(
            "server1",
            [link(1, "agent1", streams=2), link(2, "agent2", rttSeconds=None)],
            [tunnel(1, "node1:7"), tunnel(2, "10.220.0.12:10250")],
        ),
        "server2": server_snapshot(
            "server2",
            [link(4, "agent1"), link(7, "agent2", state="stuck", streams=1)],
            [tunnel(9, "node2:7", 7, stalled="link makes no progress; 8.8KiB held for 8s")],
        ),
    },
)

DUAL_STACK = Topology(
    name="dual-stack",
    title="Everything over IPv6 as well",
    networks=(
        network("control", "10.210.0.0/24", "fd00:210::/64"),
        network("nodes", "10.220.0.0/24", "fd00:220::/64"),
        network("pods", "10.221.0.0/24", "fd00:221::/64", gateway=False),
    ),
    hosts=(
        LabHost(
            name="master",
            attachments=(at("control", "10.210.0.10", "fd00:210::10"),),
            processes=(server("server", "master"),),
        ),
        LabHost(
            name="node",
            attachments=(
                at("nodes", "10.220.0.10", "fd00:220::10"),
                at("pods", "10.221.0.1", "fd00:221::1", shape=LineShape(delay_ms=5)),
            ),
            serves=(Serve(kind=Serving.HTTP, port=10250),),
            processes=(agent("agent", "node", start=False),),
        ),
        LabHost(
            name="pod",
            attachments=(at("pods", "10.221.0.10", "fd00:221::10"),),
            also=(ip_address("192.0.2.1"),),
            serves=(Serve(kind=Serving.HTTPS, port=8443),),
        ),
    ),
    allows=(Allow(source="nodes", target="master", ports=(8091, 8132)),),
)

DUAL_STACK_LIVE = LiveState(
    running={"server": True, "agent": True},
    snapshots={
        "server": server_snapshot(
            "server",
            [link(1, "agent", streams=1)],
            [tunnel(1, "[fd00:221::10]:8443")],
        )
    },
)

EXAMPLES = {
    "isolated-cluster": (ISOLATED, ISOLATED_LIVE),
    "ha": (HA, HA_LIVE),
    "dual-stack": (DUAL_STACK, DUAL_STACK_LIVE),
}


def wide(networks: int, hosts: int) -> tuple[Topology, LiveState]:
    """Many networks and hosts; every agent has a link to the one server, and a tunnel on it."""
    nets = tuple(network(f"net{one}", f"10.{one}.0.0/24") for one in range(networks))
    made = []
    for number in range(hosts):
        name = f"host{number}"
        process = server("server", name) if not number else agent(f"agent{number}", name)
        made.append(
            LabHost(
                name=name,
                attachments=(at(f"net{number % networks}", f"10.{number % networks}.0.1{number}"),),
                processes=(process,),
                serves=(Serve(kind=Serving.HTTP, port=80),) * (number % 3),
            )
        )
    topology = Topology(
        name="wide",
        title="Many networks",
        networks=nets,
        hosts=tuple(made),
        allows=tuple(Allow(source=one.name, target="host0", ports=(8091,)) for one in nets[1:]),
    )
    agents = range(1, hosts)
    live = LiveState(
        running={process.name: True for process in topology.processes},
        snapshots={
            "server": server_snapshot(
                "server",
                [link(one, f"agent{one}", streams=1) for one in agents],
                [tunnel(one, f"host{hosts - one}:80", one) for one in agents],
            )
        },
    )
    return topology, live
