"""Rules about host names: where they are required, and which ones conflict."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    Platform,
    Publishing,
    Strategy,
)
from isthmus.hosting.rules import BOTH, CRD, RuleBreak, RuleList, entries, of_section, place
from isthmus.hosting.shapes import api_name

_NAMED_CERTIFICATES = "spec.configuration.apiServer.servingCerts.namedCertificates"
#: Names of kube-apiserver in its own cluster (HyperShift's certificate, without addresses).
_OWN_NAMES = frozenset(
    f"{name}{tail}"
    for name in ("kubernetes", "openshift")
    for tail in ("", ".default", ".default.svc", ".default.svc.cluster.local")
) | {"localhost"}
_RESERVED = ".hypershift.local"
_NAMED = (Strategy.LOAD_BALANCER, Strategy.ROUTE)

RULES: Final = RuleList()


def _api_routes(cluster: HostedCluster) -> list[Publishing]:
    return [
        entry
        for entry in entries(cluster, ControlPlaneService.API_SERVER)
        if entry.strategy is Strategy.ROUTE
    ]


def _without_hostname(cluster: HostedCluster, *, needed: bool) -> list[Publishing]:
    """The apiserver's Routes without a host name, if that fails or merely surprises."""
    fails = cluster.platform is Platform.AWS or cluster.access is not EndpointAccess.PRIVATE
    return [entry for entry in _api_routes(cluster) if not entry.hostname and fails is needed]


@RULES.error(
    "api-route-hostname",
    "a Route to the APIServer has a hostname, unless it is private and not on AWS",
    missed_by=f"{CRD}, where the check is commented out; the controller, but on AWS",
)
def _api_hostname(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _without_hostname(cluster, needed=True):
        yield RuleBreak(
            "APIServer is a Route without a hostname, which is never published",
            "add route.hostname, or use LoadBalancer",
            of_section(cluster, entry, "hostname"),
        )


def _named(cluster: HostedCluster) -> list[Publishing]:
    return [entry for entry in cluster.services if entry.hostname and entry.strategy in _NAMED]


@RULES.error(
    "hostname-once",
    "each hostname belongs to one service, regardless of case",
    missed_by=f"{CRD}, where the check is commented out",
)
def _twice(cluster: HostedCluster) -> Iterator[RuleBreak]:
    first: dict[str, Publishing] = {}
    for entry in _named(cluster):
        other = first.setdefault(entry.hostname.lower(), entry)
        if other is not entry:
            yield RuleBreak(
                f"{entry.hostname} is also the hostname of {other.service.value}"
                f" ({other.place.field})",
                "give each service its own hostname",
                of_section(cluster, entry, "hostname"),
            )


def _named_api(cluster: HostedCluster) -> list[Publishing]:
    return [entry for entry in _named(cluster) if entry.service is ControlPlaneService.API_SERVER]


@RULES.error(
    "named-certificate", "the hostname of the APIServer's LoadBalancer is in no named certificate"
)
def _in_certificate(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _named_api(cluster):
        if (
            entry.strategy is Strategy.LOAD_BALANCER
            and entry.hostname in cluster.named_certificates
        ):
            yield RuleBreak(
                f"{entry.hostname} is also in a named certificate, which would hide the apiserver's"
                " own",
                "remove it from spec.configuration.apiServer.servingCerts.namedCertificates",
                of_section(cluster, entry, "hostname"),
            )


def _covers(name: str, host: str) -> bool:
    """Whether a certificate's name matches a host; ``*`` is one label (RFC 6125 §6.4.3)."""
    same_length = name.count(".") == host.count(".")
    return name == host or (name.startswith("*.") and same_length and fnmatchcase(host, name))


@RULES.warning(
    "named-certificate-wider",
    "no named certificate covers the APIServer's hostname by a wildcard, or as a Route",
    missed_by=f"{CRD}, which compares only exact texts, and only LoadBalancers",
)
def _in_wider_certificate(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _named_api(cluster):
        host = entry.hostname.lower()
        exact = entry.strategy is Strategy.LOAD_BALANCER and entry.hostname
        for name in cluster.named_certificates:
            if name != exact and _covers(name.lower(), host):
                yield RuleBreak(
                    f"{entry.hostname} is covered by the named certificate for {name}, which is"
                    " presented instead of the apiserver's own",
                    "use a name that the certificate does not cover",
                    of_section(cluster, entry, "hostname"),
                )


@RULES.error(
    "named-certificate-internal",
    "no named certificate has one of kube-apiserver's own names, such as kubernetes.default.svc",
    missed_by=CRD,
)
def _internal_names(cluster: HostedCluster) -> Iterator[RuleBreak]:
    own = {*_OWN_NAMES, api_name(cluster)}
    for name in dict.fromkeys(cluster.named_certificates):
        if name in own:
            yield RuleBreak(
                f"{name} is in kube-apiserver's own certificate, and nodes and pods trust no other"
                " for it",
                "remove it from the named certificates",
                place(cluster, _NAMED_CERTIFICATES),
            )


@RULES.warning(
    "api-dns-name-certificate",
    "a named certificate covers kubeAPIServerDNSName",
    missed_by=BOTH,
)
def _uncovered(cluster: HostedCluster) -> Iterator[RuleBreak]:
    name = cluster.api_dns_name.lower()
    if name and not any(_covers(each.lower(), name) for each in cluster.named_certificates):
        yield RuleBreak(
            f"no named certificate covers {cluster.api_dns_name}: users of the kubeconfig that"
            " HyperShift makes for it see a certificate for other names",
            f"add one to {_NAMED_CERTIFICATES}",
            place(cluster, "spec.kubeAPIServerDNSName"),
        )


@RULES.warning("hostname-reserved", "no hostname is in hypershift.local", missed_by=BOTH)
def _reserved(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _named(cluster):
        if entry.hostname.lower().endswith(_RESERVED):
            yield RuleBreak(
                f"{entry.hostname} is in {_RESERVED[1:]}, reserved for names of HyperShift",
                "use one of your own domains",
                of_section(cluster, entry, "hostname"),
            )


@RULES.warning(
    "route-hostnames-mixed",
    "if the APIServer is a public Route with a hostname, other Routes have one too",
    missed_by=BOTH,
)
def _beside_labelled(cluster: HostedCluster) -> Iterator[RuleBreak]:
    own_router = any(entry.hostname for entry in _api_routes(cluster))
    public = cluster.access is not EndpointAccess.PRIVATE
    if not own_router or not public or cluster.platform is Platform.IBMCLOUD:
        return
    for entry in entries(
        cluster,
        ControlPlaneService.OAUTH_SERVER,
        ControlPlaneService.KONNECTIVITY,
        ControlPlaneService.IGNITION,
    ):
        if entry.strategy is Strategy.ROUTE and not entry.hostname:
            yield RuleBreak(
                f"{entry.service.value} is a Route without a hostname, but the apiserver's hostname"
                " gives the control plane its own router: a name in the management cluster's"
                " domain does not lead there",
                "add route.hostname",
                of_section(cluster, entry, "hostname"),
            )


@RULES.note(
    "private-api-hostname",
    "a private Route to the APIServer without a hostname is only for the guest",
)
def _private_api_hostname(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _without_hostname(cluster, needed=False):
        yield RuleBreak(
            "APIServer is a private Route without a hostname: its only name is"
            f" api.{cluster.name}{_RESERVED}, which only the guest's network resolves",
            "add route.hostname if users connect from elsewhere",
            of_section(cluster, entry, "hostname"),
        )
