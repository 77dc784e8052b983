"""Counting servers by their Leases: names, validity, labels, and which ones are rubbish.

Every server keeps one Lease and renews it; agents count the valid ones. Times are seconds since
the epoch and come in as arguments. Reading and writing Leases is kube/.
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
#: Where a server's agent port is for the other servers.
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
    """One server's Lease, as much of it as counts.

    ``renewed_at`` is renewTime, or acquireTime where that is missing; None when both are.
    ``agent_address`` is what the annotation says, empty without one.
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
        """When it ends; None for a Lease that never says, which is not valid at any time."""
        if self.renewed_at is None or self.duration_s is None:
            return None
        return self.renewed_at + self.duration_s

    def is_valid(self, *, now: float) -> bool:
        """Tell whether its server renewed it in time."""
        ends = self.expires_at
        return ends is not None and ends > now


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """A Lease to delete, only while it is still at this version: its server may come back."""

    name: str
    resource_version: str


def lease_name(server_id: ServerId) -> str:
    """Name the Lease of a server.

    Raises:
        ValueError: the id has characters that no Lease can have in its name.
    """
    name = _PREFIX + server_id
    if len(name) > _MAX_NAME_CHARS or not _SUBDOMAIN.fullmatch(name):
        raise ValueError(
            f"server id {server_id!r} cannot name a Lease: use lower-case letters,"
            f" digits, '-' and '.', at most {_MAX_NAME_CHARS - len(_PREFIX)} characters"
        )
    return name


def count_valid(leases: Iterable[Lease], *, now: float) -> int:
    """How many servers there are; at least one, since somebody has to be connected."""
    return max(1, sum(lease.is_valid(now=now) for lease in leases))


def addresses(leases: Iterable[Lease], *, now: float) -> dict[ServerId, HostPort]:
    """The servers that say where other servers reach their agent port; nonsense is passed over."""
    found: dict[ServerId, HostPort] = {}
    for lease in leases:
        if lease.agent_address and lease.is_valid(now=now) and is_askable(lease.holder):
            try:
                found[ServerId(lease.holder)] = HostPort.parse(lease.agent_address)
            except ValueError:
                continue  # somebody else's spelling is no reason to lose the others
    return found


def next_expiry(leases: Iterable[Lease], *, now: float) -> float | None:
    """When the count will fall if nobody renews; None when nothing is valid."""
    ends = (lease.expires_at for lease in leases)
    return min((end for end in ends if end is not None and end > now), default=None)


def expired(leases: Iterable[Lease], *, now: float, own: str) -> list[Doomed]:
    """Which Leases nobody holds any more; never our ``own``, which is renewed or made again.

    A Lease that does not say when it ends is left alone: it may be somebody else's.
    """
    return [
        Doomed(name=lease.name, resource_version=lease.resource_version)
        for lease in leases
        if lease.name != own and lease.expires_at is not None and not lease.is_valid(now=now)
    ]


def server_count(announced: int, leases: int | None, source: str) -> int:
    """How many servers an agent looks for.

    ``announced`` is the most that any server said (0: none said anything), ``leases`` the count
    by Leases (None: not counted). By default Leases win where they are counted; with the source
    ``max`` the larger of both.
    """
    said = max(1, announced)
    if leases is None:
        return said
    return max(said, leases) if source == "max" else max(1, leases)


def parse_labels(text: str) -> dict[str, str]:
    """Read ``key=value,key=value``, the labels that a server gives its Lease.

    Raises:
        ValueError: not such pairs, a key or value that no label can have, or a key twice.
    """
    labels: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or not key:
            raise ValueError(f"{part.strip()!r} is not key=value")
        _check_key(key)
        _check_value(value)
        if key in labels:
            raise ValueError(f"{key!r} is there twice")
        labels[key] = value
    return labels


def to_selector(labels: dict[str, str]) -> str:
    """Write labels as the selector that finds them."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def check_selector(text: str) -> str:
    """Check a label selector (``k8s-app=x,!old,zone in (a,b)``) and give it without blanks around.

    Raises:
        ValueError: it is not one; or it is empty and would count every Lease there is.
    """
    text = text.strip()
    if not text:
        raise ValueError("empty, and would count every Lease of the namespace")
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
        raise ValueError(f"{key!r} is not the key of a label")


def _check_value(value: str) -> None:
    if value and not _WORD.fullmatch(value):
        raise ValueError(f"{value!r} is not the value of a label")
