"""Which names are names of Services or of cloud providers' APIs.

In the DNS of a Kubernetes cluster ``name.namespace``, ``name.namespace.svc`` and
``name.namespace.svc.DOMAIN`` are names of Services, but no other names with such a prefix:
HyperShift's sidecars mistake ``foo.bar.example.com`` for the Service bar/foo. A name with a
final dot is complete (RFC 1034 §3.1): only the third form matches then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from isthmus.values import is_address

# RFC 1123 §2.1 as in Kubernetes; names of Services may start with a digit since 1.34.
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_SVC = "svc"


@dataclass(frozen=True, slots=True, order=True)
class ServiceName:
    """The name of a Service in its namespace; ``str()`` is ``namespace/name``."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> ServiceName:
        """Read ``namespace/name``.

        Raises:
            ValueError: it is not of that form.
        """
        namespace, _, name = text.partition("/")
        if not (_LABEL.fullmatch(namespace) and _LABEL.fullmatch(name)):
            raise ValueError(f"not a namespace and the name of a Service: {text!r}")
        return cls(namespace, name)

    def dns_name(self, cluster_domain: str) -> str:
        """Its complete name in the cluster's DNS, without a final dot."""
        return f"{self.name}.{self.namespace}.{_SVC}.{normal(cluster_domain)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The part of a Service that is needed to reach it.

    ``addresses`` are its cluster IPs, none for a headless one, whose pods only DNS knows, and for
    an ExternalName, which stands for another name. ``ports`` are its TCP ports by name.
    """

    at: ServiceName
    addresses: tuple[str, ...] = ()
    external_name: str = ""
    ports: tuple[tuple[str, int], ...] = ()

    @property
    def headless(self) -> bool:
        """Whether it has neither an address nor an external name."""
        return not self.addresses and not self.external_name

    def tcp_port(self, name: str, default: int) -> int:
        """The TCP port of a name; else the default, if it is one of the ports; else the first."""
        for each, port in self.ports:
            if each == name:
                return port
        numbers = [port for _, port in self.ports]
        return default if default in numbers or not numbers else numbers[0]


def service_name(host: str, cluster_domain: str) -> ServiceName | None:
    """Parse a host name as that of a Service; None if it cannot be one."""
    complete = host.endswith(".")
    name, *rest = normal(host).split(".")
    if not rest:
        return None
    namespace, *rest = rest
    whole = [_SVC, *normal(cluster_domain).split(".")]
    if rest != whole and (complete or rest not in ([], [_SVC])):
        return None
    if not (_LABEL.fullmatch(name) and _LABEL.fullmatch(namespace)):
        return None
    return ServiceName(namespace, name)


def guest_questions(host: str, cluster_domain: str, *, exists: bool | None) -> tuple[str, ...]:
    """The complete names to query in the cluster's DNS, in order, without final dots.

    There is no search list here: this pod's belongs to another cluster. ``name.namespace`` may be
    a Service or an external name: ``exists`` says whether there is such a Service, None if
    unknown.
    """
    named = service_name(host, cluster_domain)
    plain = normal(host)
    if named is None:
        return (plain,)
    full = named.dns_name(cluster_domain)
    if exists or plain.count(".") > 1:  # with "svc" it can be nothing else
        return (full,)
    return (full, plain) if exists is None else (plain,)


HYPERSHIFT_SUFFIXES = (
    ".amazonaws.com",
    ".c2s.ic.gov",
    ".hci.ic.gov",
    ".sc2s.sgov.gov",
    ".microsoftonline.com",
    ".azure.com",
    ".cloud.ibm.com",
)
GOOGLE_SUFFIXES = (".googleapis.com",)
CHINA_SUFFIXES = (
    ".amazonaws.com.cn",
    ".azure.cn",
    ".chinacloudapi.cn",
    ".microsoftonline.cn",
)
SUFFIXES = (*HYPERSHIFT_SUFFIXES, *GOOGLE_SUFFIXES, *CHINA_SUFFIXES)


class CloudApis:
    """The suffixes of cloud APIs, and hosts that are excluded."""

    def __init__(self, more: Iterable[str] = (), never: Iterable[str] = ()) -> None:
        """``more`` extends the list; each starts with a dot."""
        self._suffixes = (*SUFFIXES, *map(normal, more))
        self._never = frozenset(map(normal, never))

    def __repr__(self) -> str:
        return f"CloudApis({len(self._suffixes)} suffixes, {len(self._never)} hosts excluded)"

    def suffix_of(self, host: str) -> str:
        """The suffix that makes a host a cloud API; empty if none."""
        if is_address(host):
            return ""
        name = normal(host)
        if name in self._never:
            return ""
        return next((end for end in self._suffixes if name.endswith(end) and name != end), "")


def normal(name: str) -> str:
    """A name normalised for comparison: lower case, without a final dot."""
    return name.lower().removesuffix(".")
