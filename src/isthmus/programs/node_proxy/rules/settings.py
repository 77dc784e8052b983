"""What holds for all rules of one family on this node; a new value means a full sync."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.programs.node_proxy.rules.detectors import NOTHING_LOCAL, LocalTrafficDetector
from isthmus.programs.node_proxy.rules.model import IpFamily

#: kube-proxy's: with more endpoints than this, rules of Services have no comments.
LARGE_CLUSTER_ENDPOINTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """The node's side of the rules.

    ``node_ip`` is the node's address of this family, or empty. ``node_port_addresses`` are the
    addresses of this node that take node ports, None for every address that it has.
    ``accounting`` says that nfacct objects can be counted with, ``drop_invalid`` that packets
    without a connection are dropped (nf_conntrack_tcp_be_liberal is 0). ``service_cidrs`` are the
    ranges of cluster IPs, of any family: nftables drops what is sent to one that nobody has.
    """

    family: IpFamily
    detector: LocalTrafficDetector = NOTHING_LOCAL
    masquerade_bit: int = 14
    masquerade_all: bool = False
    localhost_node_ports: bool = True
    node_ip: str = ""
    node_port_addresses: tuple[str, ...] | None = None
    random_fully: bool = True
    drop_invalid: bool = True
    accounting: bool = False
    service_cidrs: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """The mark of packets to be masqueraded, written as kube-proxy writes it."""
        return f"{1 << self.masquerade_bit:#010x}"
