"""Settings common to all rules of one family on this node; a change requires a full sync."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.programs.node_proxy.rules.detectors import NOTHING_LOCAL, LocalTrafficDetector
from isthmus.programs.node_proxy.rules.model import IpFamily

#: kube-proxy's threshold: with more endpoints than this, Service rules have no comments.
LARGE_CLUSTER_ENDPOINTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """What rules depend on besides Services.

    ``node_ip`` is the node's address of this family, or empty. ``node_port_addresses`` are the
    addresses of this node that accept node ports; None for all. ``accounting`` is true if nfacct
    counters are available, ``drop_invalid`` if packets in conntrack state INVALID are dropped
    (nf_conntrack_tcp_be_liberal is 0). ``service_cidrs`` are the cluster IP ranges of any family:
    nftables drops packets to unallocated cluster IPs.
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
        """The mark of packets to be masqueraded, in kube-proxy's notation."""
        return f"{1 << self.masquerade_bit:#010x}"
