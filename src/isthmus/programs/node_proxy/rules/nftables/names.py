"""The names of kube-proxy's nftables table: of its containers, its chains and those of a port.

A name of a port's chain is a prefix, eight characters of a hash, and the text that was hashed;
nft allows 256 characters, of which kube-proxy leaves 16 for the prefix.
"""

from __future__ import annotations

from base64 import b32encode
from enum import StrEnum
from hashlib import sha256

from isthmus.programs.node_proxy.rules.model import Endpoint, IpFamily, PortKey

#: The one table per family. It is kube-proxy's name on purpose: the two never run side by side.
TABLE = "kube-proxy"

NFT_FAMILY = {IpFamily.IPV4: "ip", IpFamily.IPV6: "ip6"}

SERVICE = "service-"
LOCAL = "local-"
EXTERNAL = "external-"
FIREWALL = "firewall-"
ENDPOINT = "endpoint-"
AFFINITY = "affinity-"

REJECT_CHAIN = "reject-chain"
#: Ours alone, where several matches tell local traffic: one match needs no chain.
NOT_LOCAL_CHAIN = "masq-if-not-local"
#: Has one rule, always: if it has none, somebody flushed the table.
MARKER_CHAIN = "nat-prerouting"

_HASH_CHARS = 8
_BASE_CHARS = 240
_CUT = "..."
_COMMENT_CHARS = 128


class Container(StrEnum):
    """The named sets and verdict maps; the value is the name."""

    CLUSTER_IPS = "cluster-ips"
    SERVICE_IPS = "service-ips"
    SERVICE_NODE_PORTS = "service-nodeports"
    NO_ENDPOINT_SERVICES = "no-endpoint-services"
    NO_ENDPOINT_NODE_PORTS = "no-endpoint-nodeports"
    FIREWALL_IPS = "firewall-ips"
    HAIRPIN = "hairpin-connections"
    NODE_PORT_IPS = "nodeport-ips"


def bridge_table(family: IpFamily) -> str:
    """The table of the bridge family in which packets of this one are marked."""
    return f"isthmus-node-proxy-{NFT_FAMILY[family]}"


def port_base(key: PortKey) -> str:
    """What the names of a port's chains end with: ``HASH-namespace/name/protocol/port``."""
    return _hashed(_text(key))


def endpoint_base(key: PortKey, endpoint: Endpoint) -> str:
    """What the names of an endpoint's chain and affinity set end with."""
    # A colon is no character of a name in nft.
    address = endpoint.ip.replace(":", ".")
    return _hashed(f"{_text(key)}__{address}/{endpoint.port}")


def comment(key: PortKey) -> str:
    """What an element says of its port; names may be longer than nft lets comments be."""
    return str(key)[:_COMMENT_CHARS]


def is_port_chain(name: str) -> bool:
    """Whether a chain belongs to a port of a Service; no other name has a slash."""
    return "/" in name


def _text(key: PortKey) -> str:
    return f"{key.service.namespace}/{key.service.name}/{key.protocol.value}/{key.port}"


def _hashed(text: str) -> str:
    digest = b32encode(sha256(text.encode()).digest()[:5]).decode()
    name = f"{digest[:_HASH_CHARS]}-{text}"
    return name if len(name) <= _BASE_CHARS else name[: _BASE_CHARS - len(_CUT)] + _CUT
