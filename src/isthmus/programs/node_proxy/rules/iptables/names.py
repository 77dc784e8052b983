"""Names of chains, hashed exactly as kube-proxy hashes them."""

from __future__ import annotations

import re
from base64 import b32encode
from hashlib import sha256

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
#: The prefixes of the chains that ports of Services have, all of them in nat.
PORT_PREFIXES = (
    CLUSTER_PREFIX,
    LOCAL_PREFIX,
    ENDPOINT_PREFIX,
    FIREWALL_PREFIX,
    EXTERNAL_PREFIX,
)

_UNSAFE = re.compile(r"[^A-Za-z0-9_./:-]")


def suffix(text: str) -> str:
    """The 16 characters that stand for a text: a chain's name has 28 at most."""
    # Ten bytes are sixteen characters of base 32: the rest of the digest need not be encoded.
    return b32encode(sha256(text.encode()).digest()[:10]).decode("ascii")


def endpoint_chain(port: str, protocol: str, endpoint: str) -> str:
    """The chain of one endpoint of one port; the endpoint is written ``ip:port``."""
    return ENDPOINT_PREFIX + suffix(port + protocol + endpoint)


def comment_text(name: str) -> str:
    """A name as it can stand in a comment: what could end the comment or the line is a ``?``."""
    return _UNSAFE.sub("?", name)
