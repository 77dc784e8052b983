"""Names of chains, the rules that exist without any Service, and jumps from built-in chains.

Names are hashed exactly as kube-proxy hashes them.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address

from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.settings import RuleSettings

SERVICES = "KUBE-SERVICES"
EXTERNAL_SERVICES = "KUBE-EXTERNAL-SERVICES"
NODE_PORTS = "KUBE-NODEPORTS"
POSTROUTING = "KUBE-POSTROUTING"
MARK_MASQ = "KUBE-MARK-MASQ"
MASQ_IF_NOT_LOCAL = "KUBE-MASQ-IF-NOT-LOCAL"
FORWARD = "KUBE-FORWARD"
PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"
CANARY = "KUBE-PROXY-CANARY"
#: Shared with the kubelet: never removed.
KUBELET_FIREWALL = "KUBE-FIREWALL"

CLUSTER_PREFIX = "KUBE-SVC-"
LOCAL_PREFIX = "KUBE-SVL-"
EXTERNAL_PREFIX = "KUBE-EXT-"
FIREWALL_PREFIX = "KUBE-FW-"
ENDPOINT_PREFIX = "KUBE-SEP-"
#: The prefixes of the chains that belong to Service ports, all in nat.
PORT_PREFIXES = (
    CLUSTER_PREFIX,
    LOCAL_PREFIX,
    ENDPOINT_PREFIX,
    FIREWALL_PREFIX,
    EXTERNAL_PREFIX,
)

_UNSAFE = re.compile(r"[^A-Za-z0-9_./:-]")


def suffix(text: str) -> str:
    """A 16-character hash of a text: chain names have at most 28 characters."""
    # Ten bytes make sixteen base32 characters: the rest of the digest need not be encoded.
    return b32encode(sha256(text.encode()).digest()[:10]).decode("ascii")


def endpoint_chain(port: str, protocol: str, endpoint: str) -> str:
    """The chain of one endpoint of one port; the endpoint has the form ``ip:port``."""
    return ENDPOINT_PREFIX + suffix(port + protocol + endpoint)


def comment_text(name: str) -> str:
    """A name made safe for a comment: characters that could end the comment become ``?``."""
    return _UNSAFE.sub("?", name)


#: The nfacct counters, with kube-proxy's names.
INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"
COUNTERS = (INVALID_COUNTER, LOCALHOST_COUNTER)

LOCALHOST = "127.0.0.0/8"
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/+!@%=-]+", re.ASCII)
_TAIL = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"


@dataclass(frozen=True, slots=True)
class Jump:
    """A rule in a built-in chain that jumps to a chain of the node proxy."""

    table: str
    source: str
    target: str
    comment: str = ""
    new_only: bool = False

    @property
    def args(self) -> tuple[str, ...]:
        """The rule after ``-A CHAIN``, as iptables-save lists it."""
        state = ("-m", "conntrack", "--ctstate", "NEW") if self.new_only else ()
        comment = ("-m", "comment", "--comment", self.comment) if self.comment else ()
        return (*state, *comment, "-j", self.target)


_VISIBLE = "kubernetes externally-visible service portals"
_PORTALS = "kubernetes service portals"
_FIREWALL = "kubernetes load balancer firewall"

#: In the order in which the jumps are inserted at the front: the last one is evaluated first.
JUMPS = (
    Jump("filter", "INPUT", EXTERNAL_SERVICES, _VISIBLE, new_only=True),
    Jump("filter", "FORWARD", EXTERNAL_SERVICES, _VISIBLE, new_only=True),
    Jump("filter", "INPUT", NODE_PORTS, "kubernetes health check service ports"),
    Jump("filter", "FORWARD", SERVICES, _PORTALS, new_only=True),
    Jump("filter", "OUTPUT", SERVICES, _PORTALS, new_only=True),
    Jump("filter", "FORWARD", FORWARD, "kubernetes forwarding rules"),
    Jump("filter", "INPUT", PROXY_FIREWALL, _FIREWALL, new_only=True),
    Jump("filter", "OUTPUT", PROXY_FIREWALL, _FIREWALL, new_only=True),
    Jump("filter", "FORWARD", PROXY_FIREWALL, _FIREWALL, new_only=True),
    Jump("nat", "OUTPUT", SERVICES, _PORTALS),
    Jump("nat", "PREROUTING", SERVICES, _PORTALS),
    Jump("nat", "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
    Jump("filter", "INPUT", KUBELET_FIREWALL),
    Jump("filter", "OUTPUT", KUBELET_FIREWALL),
)


def quoted_words(arguments: Sequence[str]) -> str:
    """Arguments for iptables-restore, quoted where necessary."""
    return " ".join(a if _PLAIN.fullmatch(a) else _quoted(a) for a in arguments)


def _quoted(argument: str) -> str:
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def localhost_node_ports(settings: RuleSettings) -> bool:
    """Whether node ports are accepted on 127.0.0.1; ::1 never accepts any."""
    return settings.localhost_node_ports and settings.family is IpFamily.IPV4


def forward(settings: RuleSettings) -> str:
    """KUBE-FORWARD in filter: accept forwarded Service traffic whatever the chain's policy."""
    chain, mark = FORWARD, settings.mark
    counter = f" -m nfacct --nfacct-name {INVALID_COUNTER}" if settings.accounting else ""
    invalid = f"-A {chain} -m conntrack --ctstate INVALID{counter} -j DROP\n"
    return (
        (invalid if settings.drop_invalid else "")
        + f'-A {chain} -m comment --comment "kubernetes forwarding rules"'
        f" -m mark --mark {mark}/{mark} -j ACCEPT\n"
        f'-A {chain} -m comment --comment "kubernetes forwarding conntrack rule"'
        " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
    )


def kubelet_firewall() -> str:
    """KUBE-FIREWALL in filter, identical to the kubelet's."""
    # Node ports on localhost need route_localnet, which exposes 127.0.0.1 to neighbours.
    return (
        f'-A {KUBELET_FIREWALL} -m comment --comment "block incoming localnet connections"'
        f" -d {LOCALHOST} ! -s {LOCALHOST}"
        " -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n"
    )


def postrouting(settings: RuleSettings) -> str:
    """KUBE-POSTROUTING in nat: masquerade marked packets."""
    chain, mark = POSTROUTING, settings.mark
    fully = " --random-fully" if settings.random_fully else ""
    return (
        f"-A {chain} -m mark ! --mark {mark}/{mark} -j RETURN\n"
        # With the mark, a packet that passes the stack again would be masqueraded again.
        f"-A {chain} -j MARK --xor-mark {mark}\n"
        f'-A {chain} -m comment --comment "kubernetes service traffic requiring SNAT"'
        f" -j MASQUERADE{fully}\n"
    )


def mark_masq(settings: RuleSettings) -> str:
    return f"-A {MARK_MASQ} -j MARK --or-mark {settings.mark}\n"


def masq_if_not_local(matches: Sequence[str]) -> str:
    """KUBE-MASQ-IF-NOT-LOCAL in nat, for detectors with several matches."""
    chain = MASQ_IF_NOT_LOCAL
    returns = "".join(f"-A {chain} {match} -j RETURN\n" for match in matches)
    return f"{returns}-A {chain} -j {MARK_MASQ}\n"


def services_tail(settings: RuleSettings) -> str:
    """The last rules of KUBE-SERVICES in nat: packets to this node may be for a node port."""
    start = f'-A {SERVICES} -m comment --comment "{_TAIL}"'
    if settings.node_port_addresses is not None:
        taking = [ip for ip in settings.node_port_addresses if _takes_node_ports(ip, settings)]
        return "".join(f"{start} -d {ip} -j {NODE_PORTS}\n" for ip in taking)
    but = "" if localhost_node_ports(settings) else f" ! -d {LOCALHOST}"
    if settings.family is IpFamily.IPV6:
        but = " ! -d ::1/128"
    return f"{start} -m addrtype --dst-type LOCAL{but} -j {NODE_PORTS}\n"


def _takes_node_ports(ip: str, settings: RuleSettings) -> bool:
    return localhost_node_ports(settings) or not ip_address(ip).is_loopback
