"""Which names are names of Services, as the DNS of a Kubernetes cluster has them; and Services.

``name.namespace``, ``name.namespace.svc`` and ``name.namespace.svc.DOMAIN`` are, and nothing that
merely begins so: HyperShift's sidecars take ``foo.bar.example.com`` for the Service bar/foo. With a
last dot a name is complete (RFC 1034 §3.1): only the third form is one then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from isthmus.dial.rules_cloud_apis import normal

# RFC 1123 §2.1 as Kubernetes has it; names of Services may begin with a digit since 1.34.
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
        """The complete name that the cluster's DNS has for it, without a last dot."""
        return f"{self.name}.{self.namespace}.{_SVC}.{normal(cluster_domain)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What has to be known of a Service to reach it.

    ``addresses`` are its cluster IPs, none for a headless one, whose pods only DNS knows, and for
    an ExternalName, which stands for another name. ``ports`` are its TCP ports by name.
    """

    at: ServiceName
    addresses: tuple[str, ...] = ()
    external_name: str = ""
    ports: tuple[tuple[str, int], ...] = ()

    @property
    def headless(self) -> bool:
        """There is neither an address nor another name."""
        return not self.addresses and not self.external_name

    def tcp_port(self, name: str, default: int) -> int:
        """The TCP port of a name; else the default, if it is one of the ports; else the first."""
        for each, port in self.ports:
            if each == name:
                return port
        numbers = [port for _, port in self.ports]
        return default if default in numbers or not numbers else numbers[0]


def service_name(host: str, cluster_domain: str) -> ServiceName | None:
    """Read a host name as that of a Service; None when it cannot be one."""
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
    """The complete names to ask the cluster's DNS for, in order, without last dots.

    There is no search list here: that of this pod is another cluster's. ``name.namespace`` may be
    a Service or a name of the world: ``exists`` says whether there is such a Service, None when
    nobody knows.
    """
    named = service_name(host, cluster_domain)
    plain = normal(host)
    if named is None:
        return (plain,)
    full = named.dns_name(cluster_domain)
    if exists or plain.count(".") > 1:  # with "svc" it can be nothing else
        return (full,)
    return (full, plain) if exists is None else (plain,)
