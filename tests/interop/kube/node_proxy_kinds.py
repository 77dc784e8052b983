"""The set of Services that has one of every kind, for a proxy to make rules of."""

from __future__ import annotations

from typing import Any

from kube.node_proxy_ground import NODE_NAME
from kube.node_proxy_objects import (
    FAMILIES,
    FAR,
    FAR2,
    LOCAL,
    OTHER_NODE,
    THREE,
    At,
    Objects,
    Port,
    address,
    external,
    slice_of,
)
from kube.node_proxy_writing import ZONE

OTHER_NAMESPACE = "other"
OTHER_ZONE = "zone-b"
_LB: dict[str, Any] = {"type": "LoadBalancer"}
_ETP: dict[str, Any] = {"externalTrafficPolicy": "Local"}
_ITP: dict[str, Any] = {"internalTrafficPolicy": "Local"}
_RANGES = ["198.51.100.0/24", " 192.0.2.0/25", "2001:db8:1::/48"]
# The node is in these, so that what it sends to the balancer's address gets past as well.
_OWN_RANGES = ["192.168.50.0/24", "fd00:50::/64"]
_ANY = ["0.0.0.0/0", "::/0", "198.51.100.0/24"]
_CLIENT_IP: dict[str, Any] = {"sessionAffinity": "ClientIP"}

_READY_AND_ENDING = (
    At(number=20, local=True),
    At(number=21, ready=False, serving=True, terminating=True),
)
_ENDING = (
    At(number=22, local=True, ready=False, serving=True, terminating=True),
    At(number=23, ready=False, serving=True, terminating=True),
)
_ENDED = (At(number=24, ready=False, serving=False, terminating=True),)
_UNREADY = (
    At(number=25, ready=False, serving=False, terminating=False),
    At(number=26, local=True, ready=False, serving=False),
)
# Two endpoints that no other Service has: one for nodes of this zone, one for another's.
_NEARBY, _ELSEWHERE = At(number=52, zones=(ZONE,)), At(number=53, zones=(OTHER_ZONE,))
NEARBY, ELSEWHERE = (
    tuple(address(at.number, family) for family in FAMILIES) for at in (_NEARBY, _ELSEWHERE)
)


def _at_port(number: int) -> tuple[Port, ...]:
    return (Port(node_port=number),)


def _cluster_ips(add: Objects) -> None:
    add.add("none", ())
    add.add("no-slice", None)
    add.add("one", (FAR,))
    add.add("three", THREE)
    add.add("many", [At(number=30 + i, local=i % 4 == 0) for i in range(13)])
    add.add("named", THREE, ports=(Port(name="http"),))
    add.add("elsewhere", THREE, namespace=OTHER_NAMESPACE)
    several = (
        Port(name="http", target=8080),
        Port(name="metrics", port=9090, target=9090),
        Port(name="dns", port=53, target=5353, protocol="UDP"),
        Port(name="dns-tcp", port=53, target=5353),
    )
    add.add("several", THREE, ports=several)
    add.add("udp", THREE, ports=(Port(port=53, protocol="UDP"),))
    add.add("sctp", THREE, ports=(Port(port=7777, protocol="SCTP"),))
    same = [Port(name=p.lower(), port=443, protocol=p) for p in ("TCP", "UDP", "SCTP")]
    add.add("same-port", THREE, ports=same)
    add.add("only-v4", THREE, families=("IPv4",))
    add.add("only-v6", THREE, families=("IPv6",))
    add.add("itp", THREE, **_ITP)
    add.add("itp-far", (FAR, FAR2), **_ITP)
    add.add("itp-none", (), **_ITP)
    add.add("sticky", THREE, **_CLIENT_IP)
    hour = {"clientIP": {"timeoutSeconds": 3600}}
    add.add("sticky-hour", (LOCAL,), **_CLIENT_IP, sessionAffinityConfig=hour)
    add.add("sticky-itp", THREE, **_CLIENT_IP, **_ITP)


def _external_ips(add: Objects) -> None:
    add.add("ext", THREE, externalIPs=external(1))
    add.add("ext-none", (), externalIPs=external(2))
    add.add("ext-local", THREE, externalIPs=external(3), **_ETP, type="NodePort",
            ports=_at_port(30001))  # fmt: skip
    add.add("ext-two", (FAR,), externalIPs=[*external(4), *external(5)])
    add.add("ext-itp", (FAR,), externalIPs=external(6), **_ITP)


def _node_ports(add: Objects) -> None:
    node: dict[str, Any] = {"type": "NodePort"}
    add.add("np", THREE, **node, ports=_at_port(30010))
    add.add("np-none", (), **node, ports=_at_port(30011))
    add.add("np-etp", THREE, **node, **_ETP, ports=_at_port(30012))
    add.add("np-etp-far", (FAR, FAR2), **node, **_ETP, ports=_at_port(30013))
    add.add("np-etp-none", (), **node, **_ETP, ports=_at_port(30014))
    add.add("np-both", THREE, **node, **_ETP, **_ITP, ports=_at_port(30015))
    add.add("np-both-far", (FAR,), **node, **_ETP, **_ITP, ports=_at_port(30016))
    add.add("np-itp", THREE, **node, **_ITP, ports=_at_port(30017))
    add.add("np-itp-far", (FAR,), **node, **_ITP, ports=_at_port(30018))
    add.add("np-sticky", THREE, **node, **_ETP, **_CLIENT_IP, ports=_at_port(30019))
    udp = [Port(name="u", protocol="UDP", node_port=30020), Port(name="t", node_port=30020)]
    add.add("np-udp", THREE, **node, ports=udp)


def _balancers(add: Objects) -> None:
    add.add("lb", THREE, **_LB, status=external(10), ports=_at_port(30030))
    add.add("lb-none", (), **_LB, status=external(11), ports=_at_port(30031))
    add.add("lb-ranges", THREE, **_LB, status=external(12), ports=_at_port(30032),
            loadBalancerSourceRanges=_RANGES)  # fmt: skip
    add.add("lb-own-ranges", THREE, **_LB, status=[*external(13), *external(14)],
            ports=_at_port(30033), loadBalancerSourceRanges=_OWN_RANGES)  # fmt: skip
    add.add("lb-any", THREE, **_LB, status=external(15), ports=_at_port(30034),
            loadBalancerSourceRanges=_ANY)  # fmt: skip
    add.add("lb-ranges-none", (), **_LB, status=external(16), ports=_at_port(30035),
            loadBalancerSourceRanges=_RANGES)  # fmt: skip
    add.add("lb-proxy", THREE, **_LB, status=external(17), ip_mode="Proxy",
            ports=_at_port(30036))  # fmt: skip
    add.add("lb-vip", THREE, **_LB, status=external(18), ip_mode="VIP", ports=_at_port(30037))
    add.add("lb-pending", THREE, **_LB, ports=_at_port(30038))
    add.add("lb-no-np", THREE, **_LB, status=external(19), allocateLoadBalancerNodePorts=False)
    add.add("lb-etp", THREE, **_LB, **_ETP, status=external(20), ports=_at_port(30039),
            healthCheckNodePort=30040)  # fmt: skip
    add.add("lb-etp-far", (FAR,), **_LB, **_ETP, status=external(21), ports=_at_port(30041),
            healthCheckNodePort=30042, externalIPs=external(22))  # fmt: skip
    add.add("lb-etp-none", (), **_LB, **_ETP, status=external(23), ports=_at_port(30043),
            healthCheckNodePort=30044)  # fmt: skip
    add.add("lb-etp-ranges", THREE, **_LB, **_ETP, status=external(24), ports=_at_port(30045),
            healthCheckNodePort=30046, loadBalancerSourceRanges=_RANGES)  # fmt: skip
    add.add("lb-etp-far-ranges", (FAR,), **_LB, **_ETP, status=external(25),
            ports=_at_port(30047), healthCheckNodePort=30048,
            loadBalancerSourceRanges=_RANGES)  # fmt: skip
    add.add("lb-several", THREE, **_LB, **_CLIENT_IP, status=external(26), ports=(
        Port(name="a", port=80, node_port=30049), Port(name="b", port=81, node_port=30050),
    ))  # fmt: skip


def _conditions(add: Objects) -> None:
    local: dict[str, Any] = {"type": "NodePort", **_ETP}
    for number, (name, ats) in enumerate({
        "ready-and-ending": _READY_AND_ENDING, "ending": _ENDING, "ended": _ENDED,
        "unready": _UNREADY, "unready-and-ending": (*_UNREADY, *_ENDING),
        "far-and-local-ending": (FAR, _ENDING[0]), "unsaid": (At(number=27, ready=None),),
    }.items()):  # fmt: skip
        add.add(f"c-{name}", ats)
        add.add(f"l-{name}", ats, **local, **_ITP, ports=_at_port(30060 + number))


def _hints(add: Objects) -> None:
    here, there = (ZONE,), (OTHER_ZONE,)
    zoned = (At(number=40, local=True, zones=here), At(number=41, zones=there),
             At(number=42, zones=(*here, *there)))  # fmt: skip
    add.add("zones", zoned)
    add.add("zones-np", zoned, type="NodePort", ports=_at_port(30080), **_ETP)
    add.add("zones-elsewhere", [At(number=43, zones=there), At(number=44, zones=there)])
    add.add("zones-some", [At(number=45, zones=here), At(number=46)])
    noded = (At(number=47, local=True, zones=here, nodes=(NODE_NAME,)),
             At(number=48, zones=here, nodes=(OTHER_NODE,)))  # fmt: skip
    add.add("nodes", noded)
    add.add("nodes-elsewhere", [At(number=49, zones=here, nodes=(OTHER_NODE,)),
                                At(number=50, zones=there, nodes=(OTHER_NODE,))])  # fmt: skip
    ending = At(number=51, ready=False, serving=True, terminating=True)
    add.add("zones-ending", [_NEARBY, _ELSEWHERE, ending])
    add.add("zones-itp", zoned, **_ITP)


def _left_out(add: Objects) -> None:
    label = {"service.kubernetes.io/service-proxy-name": "another"}
    add.add("another-proxy", THREE, labels=label)
    headless = {"service.kubernetes.io/headless": ""}
    add.services.append({
        "metadata": {"name": "headless", "namespace": "default"},
        "spec": {"clusterIP": "None", "ports": [Port().of_service()]},
    })  # fmt: skip
    add.slices += [slice_of("headless", family, THREE, labels=headless) for family in FAMILIES]
    add.services.append({
        "metadata": {"name": "named-elsewhere", "namespace": "default"},
        "spec": {"type": "ExternalName", "externalName": "example.org"},
    })  # fmt: skip
    add.slices += [slice_of("nobodys", family, THREE) for family in FAMILIES]


def _slices(add: Objects) -> None:
    """More slices than one for a Service, with endpoints said twice and ports of their own."""
    add.add("sliced", (LOCAL, FAR))
    more = (FAR, FAR2, At(number=1, local=True, ready=False, serving=True, terminating=True))
    add.slices += [slice_of("sliced", family, more, suffix="-2") for family in FAMILIES]
    add.add("ports-apart", (LOCAL,), ports=(Port(name="a"), Port(name="b", port=81)))
    add.slices[-2:] = []
    for family in FAMILIES:
        one, two = (Port(name="a", target=8001),), (Port(name="a", target=8002),)
        add.slices += [
            slice_of("ports-apart", family, (LOCAL,), one),
            slice_of("ports-apart", family, (FAR,), two, suffix="-2"),
        ]


def kinds() -> Objects:
    """Make all of them."""
    made = Objects()
    for part in (
        _cluster_ips, _external_ips, _node_ports, _balancers, _conditions, _hints, _left_out,
        _slices,
    ):  # fmt: skip
        part(made)
    return made


def large() -> Objects:
    """Make all of them, and endpoints enough for rules of Services to have no comments."""
    made = kinds()
    ats = [At(number=1000 + number, local=number % 10 == 0) for number in range(1001)]
    # One slice may have a thousand.
    made.add("large", ats[:500])
    made.slices += [slice_of("large", family, ats[500:], suffix="-2") for family in FAMILIES]
    return made
