"""Counting servers by their Leases: names, validity, labels, and which ones to delete.

Every server maintains one Lease; agents count the valid ones. Times are seconds since
the epoch and are passed in. Reading and writing Leases is kube/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from isthmus.values import HostPort, ServerId
from isthmus.wire.alpn import is_askable

DURATION_S = 30
RENEW_S = 15.0
COLLECT_S = 15.0
#: The annotation with the address of a server's agent port, for the other servers.
ADDRESS_ANNOTATION = "isthmus.dev/agent-address"

_PREFIX = "konnectivity-proxy-server-"
_MAX_NAME_CHARS = 253
# DNS subdomains, qualified names and label values as the API checks them
# (https://kubernetes.io/docs/concepts/overview/working-with-objects/names and /labels).
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.A)
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_COMMAS = re.compile(r",(?![^(]*\))")
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_BINARY = re.compile(r"([^=!<>]+?)\s*(==|!=|=|<|>)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The relevant fields of one server's Lease.

    ``renewed_at`` is renewTime, or acquireTime without it; None without both.
    ``agent_address`` is the annotation's value, empty without one.
    """

    name: str
    holder: str = ""
    acquired_at: float | None = None
    renewed_at: float | None = None
    duration_s: int | None = None
    resource_version: str = ""
    agent_address: str = ""

    @property
    def expires_at(self) -> float | None:
        """When it expires; None if the Lease does not say, which makes it never valid."""
        if self.renewed_at is None or self.duration_s is None:
            return None
        return self.renewed_at + self.duration_s

    def is_valid(self, *, now: float) -> bool:
        """Whether its server renewed it in time."""
        ends = self.expires_at
        return ends is not None and ends > now


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """A Lease to delete, only while it is still at this version: its server may come back."""

    name: str
    resource_version: str


def lease_name(server_id: ServerId) -> str:
    """The name of a server's Lease.

    Raises:
        ValueError: the id has characters that a Lease name cannot have.
    """
    name = _PREFIX + server_id
    if len(name) > _MAX_NAME_CHARS or not _SUBDOMAIN.fullmatch(name):
        raise ValueError(
            f"server id {server_id!r} cannot be used in a Lease name: use lower-case letters,"
            f" digits, '-' and '.', at most {_MAX_NAME_CHARS - len(_PREFIX)} characters"
        )
    return name


def count_valid(leases: Iterable[Lease], *, now: float) -> int:
    """The number of servers, at least one, because an agent needs a server."""
    return max(1, sum(lease.is_valid(now=now) for lease in leases))


def servers(leases: Iterable[Lease], *, now: float) -> dict[ServerId, HostPort | None]:
    """The servers with a valid Lease, and where other servers reach their agent port.

    The address is None where the Lease has none, or none that can be read.
    """
    found: dict[ServerId, HostPort | None] = {}
    for lease in leases:
        if not lease.is_valid(now=now) or not is_askable(lease.holder):
            continue
        try:
            address = HostPort.parse(lease.agent_address) if lease.agent_address else None
        except ValueError:
            address = None
        found[ServerId(lease.holder)] = address
    return found


def next_expiry(leases: Iterable[Lease], *, now: float) -> float | None:
    """When the count will drop unless a Lease is renewed; None if none is valid."""
    ends = (lease.expires_at for lease in leases)
    return min((end for end in ends if end is not None and end > now), default=None)


def expired(leases: Iterable[Lease], *, now: float, own: str) -> list[Doomed]:
    """Leases without a living holder; never our ``own``, which is renewed or created again.

    A Lease without an expiry is left alone: it may belong to another program.
    """
    return [
        Doomed(name=lease.name, resource_version=lease.resource_version)
        for lease in leases
        if lease.name != own and lease.expires_at is not None and not lease.is_valid(now=now)
    ]


def server_count(announced: int, leases: int | None, source: str) -> int:
    """The number of servers that an agent connects to.

    ``announced`` is the largest number that a server announced (0: none did), ``leases`` the
    number of Leases (None: not counted). By default Leases win if they are counted; with the source
    ``max`` the larger number wins.
    """
    said = max(1, announced)
    if leases is None:
        return said
    return max(said, leases) if source == "max" else max(1, leases)


def parse_labels(text: str) -> dict[str, str]:
    """Read ``key=value,key=value``, the labels of a server's Lease.

    Raises:
        ValueError: not such pairs, an invalid key or value, or a repeated key.
    """
    labels: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or not key:
            raise ValueError(f"{part.strip()!r} is not key=value")
        _check_key(key)
        _check_value(value)
        if key in labels:
            raise ValueError(f"{key!r} is repeated")
        labels[key] = value
    return labels


def to_selector(labels: dict[str, str]) -> str:
    """Write labels as a selector that matches them."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def check_selector(text: str) -> str:
    """Check a label selector (``k8s-app=x,!old,zone in (a,b)``) and strip it.

    Raises:
        ValueError: invalid, or empty, which would count every Lease.
    """
    text = text.strip()
    if not text:
        raise ValueError("empty: this would count every Lease of the namespace")
    for part in _COMMAS.split(text):
        _check_requirement(part.strip())
    return text


def _check_requirement(text: str) -> None:
    if found := _SET.fullmatch(text):
        _check_key(found[1])
        for value in found[3].split(","):
            _check_value(value.strip())
    elif found := _BINARY.fullmatch(text):
        _check_key(found[1])
        value = found[3].strip()
        _check_value(value)
        if found[2] in "<>" and not re.fullmatch(r"[0-9]+", value, re.ASCII):
            raise ValueError(f"{value!r} is not a whole number")
    else:
        _check_key(text.removeprefix("!").strip())


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    good = _WORD.fullmatch(name) and (
        not slash or (len(prefix) <= _MAX_NAME_CHARS and _SUBDOMAIN.fullmatch(prefix))
    )
    if not good:
        raise ValueError(f"{key!r} is not a valid label key")


def _check_value(value: str) -> None:
    if value and not _WORD.fullmatch(value):
        raise ValueError(f"{value!r} is not a valid label value")
