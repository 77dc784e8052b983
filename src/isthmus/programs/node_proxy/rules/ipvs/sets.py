"""The ipsets of ipvs mode: kube-proxy's names, types and comments, and the syntax of entries."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from ipaddress import ip_network

from isthmus.programs.node_proxy.rules.model import IpFamily, PortProtocol

IP = "hash:ip"
IP_PORT = "hash:ip,port"
IP_PORT_IP = "hash:ip,port,ip"
IP_PORT_NET = "hash:ip,port,net"
PORT = "bitmap:port"
#: The kernel's limit on set names.
MAX_NAME_CHARS = 31
_FAMILY_WORDS = {IpFamily.IPV4: "inet", IpFamily.IPV6: "inet6"}


class IpSet(Enum):
    """A set: its IPv4 name, its type, and the comment of rules that match it."""

    LOOP_BACK = (
        "KUBE-LOOP-BACK",
        IP_PORT_IP,
        "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
    )
    CLUSTER_IP = (
        "KUBE-CLUSTER-IP",
        IP_PORT,
        "Kubernetes service cluster ip + port for masquerade purpose",
    )
    EXTERNAL_IP = (
        "KUBE-EXTERNAL-IP",
        IP_PORT,
        "Kubernetes service external ip + port for masquerade and filter purpose",
    )
    EXTERNAL_IP_LOCAL = (
        "KUBE-EXTERNAL-IP-LOCAL",
        IP_PORT,
        "Kubernetes service external ip + port with externalTrafficPolicy=local",
    )
    LOAD_BALANCER = ("KUBE-LOAD-BALANCER", IP_PORT, "Kubernetes service lb portal")
    LOAD_BALANCER_FW = (
        "KUBE-LOAD-BALANCER-FW",
        IP_PORT,
        "Kubernetes service load balancer ip + port for load balancer with sourceRange",
    )
    LOAD_BALANCER_LOCAL = (
        "KUBE-LOAD-BALANCER-LOCAL",
        IP_PORT,
        "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
    )
    LOAD_BALANCER_SOURCE_IP = (
        "KUBE-LOAD-BALANCER-SOURCE-IP",
        IP_PORT_IP,
        "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
    )
    LOAD_BALANCER_SOURCE_CIDR = (
        "KUBE-LOAD-BALANCER-SOURCE-CIDR",
        IP_PORT_NET,
        "Kubernetes service load balancer ip + port + source cidr for packet filter purpose",
    )
    NODE_PORT_TCP = (
        "KUBE-NODE-PORT-TCP",
        PORT,
        "Kubernetes nodeport TCP port for masquerade purpose",
    )
    NODE_PORT_LOCAL_TCP = (
        "KUBE-NODE-PORT-LOCAL-TCP",
        PORT,
        "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
    )
    NODE_PORT_UDP = (
        "KUBE-NODE-PORT-UDP",
        PORT,
        "Kubernetes nodeport UDP port for masquerade purpose",
    )
    NODE_PORT_LOCAL_UDP = (
        "KUBE-NODE-PORT-LOCAL-UDP",
        PORT,
        "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
    )
    NODE_PORT_SCTP = (
        "KUBE-NODE-PORT-SCTP-HASH",
        IP_PORT,
        "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
    )
    NODE_PORT_LOCAL_SCTP = (
        "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
        IP_PORT,
        "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
    )
    HEALTH_CHECK_NODE_PORT = (
        "KUBE-HEALTH-CHECK-NODE-PORT",
        PORT,
        "Kubernetes health check node port",
    )
    IPVS_IPS = ("KUBE-IPVS-IPS", IP, "Addresses on the ipvs interface")

    @property
    def kind(self) -> str:
        return self.value[1]

    @property
    def comment(self) -> str:
        return self.value[2]

    def of(self, family: IpFamily) -> str:
        """The name in a family; IPv6 names differ and are cut to the kernel's limit."""
        name = self.value[0]
        if family is IpFamily.IPV6:
            name = name.replace("KUBE-", "KUBE-6-", 1)[:MAX_NAME_CHARS]
        return name

    def create(self, family: IpFamily) -> str:
        """The ``create`` line, with kube-proxy's sizes."""
        if self.kind == PORT:
            return f"create {self.of(family)} {PORT} range 0-65535"
        word = _FAMILY_WORDS[family]
        return f"create {self.of(family)} {self.kind} family {word} hashsize 1024 maxelem 65536"


NODE_PORTS: Mapping[PortProtocol, tuple[IpSet, IpSet]] = {
    PortProtocol.TCP: (IpSet.NODE_PORT_TCP, IpSet.NODE_PORT_LOCAL_TCP),
    PortProtocol.UDP: (IpSet.NODE_PORT_UDP, IpSet.NODE_PORT_LOCAL_UDP),
    PortProtocol.SCTP: (IpSet.NODE_PORT_SCTP, IpSet.NODE_PORT_LOCAL_SCTP),
}


def ip_port(ip: str, protocol: PortProtocol, port: int, third: str = "") -> str:
    """An entry of a set that begins with an address and a port."""
    entry = f"{ip},{protocol.value}:{port}"
    return f"{entry},{third}" if third else entry


def net(cidr: str) -> str:
    """A network in ipset's notation: without host bits, and a single address without a prefix."""
    found = ip_network(cidr, strict=False)
    return str(found.network_address) if found.num_addresses == 1 else str(found)


def batch(
    family: IpFamily,
    wanted: Mapping[IpSet, frozenset[str]],
    present: Mapping[IpSet, frozenset[str]],
    *,
    create: bool,
) -> list[str]:
    """Lines for ``ipset restore`` that lead from the present entries to the wanted ones.

    Additions come before removals: an entry that moves between sets is never in neither.
    """
    lines = [each.create(family) for each in IpSet] if create else []
    for verb, more, less in (("add", wanted, present), ("del", present, wanted)):
        for each in IpSet:
            extra = more.get(each, frozenset()) - less.get(each, frozenset())
            lines += [f"{verb} {each.of(family)} {entry}" for entry in sorted(extra)]
    return lines


def undone(lines: list[str]) -> list[str]:
    """The lines that undo a batch; sets that it created remain, empty."""
    opposite = {"add": "del", "del": "add"}
    return [
        f"{opposite[verb]} {rest}"
        for verb, _, rest in (line.partition(" ") for line in reversed(lines))
        if verb in opposite
    ]
