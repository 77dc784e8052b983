"""Reading the words of a HostedCluster: host names, addresses, ranges, proxies' URLs.

Each function takes a text and returns what it says, or raises a ValueError whose message goes
behind the text.
"""

from __future__ import annotations

import re

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.text.cidrs import cidr
from isthmus.values import HostPort, is_address

_HOSTNAME = re.compile(r"(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}", re.ASCII)
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_RANGE = re.compile(r"([1-9][0-9]{0,4})-([1-9][0-9]{0,4})", re.ASCII)
_MAX_NAME_CHARS = 253


def hostname(text: str) -> str:
    """A host name with at least one dot, as HyperShift wants it, and as DNS can have it."""
    if not _HOSTNAME.fullmatch(text) or not _can_be_dialed(text):
        raise ValueError("is not a host name such as api.example.com")
    return text


def domain(text: str) -> str:
    """A domain, of one label too, or nothing."""
    if text and (is_address(text) or not _can_be_dialed(text)):
        raise ValueError("is not a domain such as example.com")
    return text


def address(text: str) -> str:
    """An IPv4 or IPv6 address."""
    if not is_address(text):
        raise ValueError("is not an address such as 172.20.0.1 or fd00::1")
    return text


def node_address(text: str) -> str:
    """An address or a host name."""
    if is_address(text) or text == "localhost":
        return text
    try:
        return hostname(text)
    except ValueError:
        raise ValueError("is not an address, nor a host name such as kas.example.com") from None


def network(text: str) -> str:
    """A range of addresses with its prefix; the CRD lets 999.999.999.999/99 through."""
    if "/" not in text:
        raise ValueError("is not a network such as 10.0.0.0/16: its prefix is missing")
    return str(cidr(text))


def port_range(text: str) -> str:
    """Two ports, the lower one first."""
    parts = _RANGE.fullmatch(text)
    if parts is None or not int(parts[1]) <= int(parts[2]) < 65536:
        raise ValueError("is not a range of ports such as 30000-32767")
    return text


def proxy(text: str) -> str:
    """A URL of a proxy, whose scheme HyperShift wants to see, or nothing."""
    try:
        if text:
            ProxyAddress.parse(text)
    except ConfigError:
        text = "?"
    if text and not text.startswith(("http://", "https://")):
        raise ValueError("is not a proxy such as http://proxy.example.com:3128")
    return text


def object_name(text: str) -> str:
    """The name of a Kubernetes object: labels with dots between them (RFC 1123)."""
    if len(text) > _MAX_NAME_CHARS or not all(map(_NAME.fullmatch, text.split("."))):
        raise ValueError("is not a name of lower case letters, digits, '-' and '.'")
    return text


def namespace(text: str) -> str:
    """The name of a namespace: one label."""
    if not _NAME.fullmatch(text):
        raise ValueError("is not a namespace: at most 63 lower case letters, digits and '-'")
    return text


def _can_be_dialed(host: str) -> bool:
    try:
        HostPort(host, 1)
    except ValueError:
        return False
    return not host.endswith(".")
