"""Rules about host names: where they are needed, and which ones get in each other's way."""

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
#: What kube-apiserver is called in its own cluster (HyperShift's certificate, but for addresses).
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
    """The apiserver's Routes without a host name, where that fails or where it merely surprises."""
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
            "APIServer is a Route without a hostname, and is never published",
            "add route.hostname, or use LoadBalancer",
            of_section(cluster, entry, "hostname"),
        )


def _named(cluster: HostedCluster) -> list[Publishing]:
    return [entry for entry in cluster.services if entry.hostname and entry.strategy in _NAMED]


@RULES.error(
    "hostname-once",
    "each hostname is of one service, capitals or not",
    missed_by=f"{CRD}, where the check is commented out",
)
def _twice(cluster: HostedCluster) -> Iterator[RuleBreak]:
    first: dict[str, Publishing] = {}
    for entry in _named(cluster):
        other = first.setdefault(entry.hostname.lower(), entry)
        if other is not entry:
            yield RuleBreak(
                f"{entry.hostname} is the hostname of {other.service.value} too"
                f" ({other.place.field})",
                "give each service a name of its own",
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
                f"{entry.hostname} is in a named certificate too, which would hide the"
                " apiserver's own",
                "take it out of spec.configuration.apiServer.servingCerts.namedCertificates",
                of_section(cluster, entry, "hostname"),
            )


def _covers(name: str, host: str) -> bool:
    """Whether a certificate's name is good for a host; ``*`` is one label (RFC 6125 §6.4.3)."""
    same_length = name.count(".") == host.count(".")
    return name == host or (name.startswith("*.") and same_length and fnmatchcase(host, name))


@RULES.warning(
    "named-certificate-wider",
    "no named certificate covers the APIServer's hostname by a wildcard, or as a Route",
    missed_by=f"{CRD}, which compares letter by letter, and LoadBalancers only",
)
def _in_wider_certificate(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _named_api(cluster):
        host = entry.hostname.lower()
        exact = entry.strategy is Strategy.LOAD_BALANCER and entry.hostname
        for name in cluster.named_certificates:
            if name != exact and _covers(name.lower(), host):
                yield RuleBreak(
                    f"{entry.hostname} is covered by the named certificate for {name}, which is"
                    " shown instead of the apiserver's own",
                    "use a name that the certificate does not cover",
                    of_section(cluster, entry, "hostname"),
                )


@RULES.error(
    "named-certificate-internal",
    "no named certificate has a name of kube-apiserver's own, such as kubernetes.default.svc",
    missed_by=CRD,
)
def _internal_names(cluster: HostedCluster) -> Iterator[RuleBreak]:
    own = {*_OWN_NAMES, api_name(cluster)}
    for name in dict.fromkeys(cluster.named_certificates):
        if name in own:
            yield RuleBreak(
                f"{name} is in kube-apiserver's own certificate, and nodes and pods trust no other"
                " for it",
                "take it out of the named certificates",
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
            f"no named certificate covers {cluster.api_dns_name}: whoever comes by the kubeconfig"
            " that HyperShift makes for it is shown a certificate for other names",
            f"add one to {_NAMED_CERTIFICATES}",
            place(cluster, "spec.kubeAPIServerDNSName"),
        )


@RULES.warning("hostname-reserved", "no hostname is in hypershift.local", missed_by=BOTH)
def _reserved(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _named(cluster):
        if entry.hostname.lower().endswith(_RESERVED):
            yield RuleBreak(
                f"{entry.hostname} is in {_RESERVED[1:]}, where HyperShift makes names of its own",
                "use a domain of yours",
                of_section(cluster, entry, "hostname"),
            )


@RULES.warning(
    "route-hostnames-mixed",
    "beside a public Route with a hostname to the APIServer, the others have one too",
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
                " gives the control plane a router of its own: a name below the management"
                " cluster's domain does not lead there",
                "add route.hostname",
                of_section(cluster, entry, "hostname"),
            )


@RULES.note(
    "private-api-hostname",
    "a private Route to the APIServer without a hostname is for the guest alone",
)
def _private_api_hostname(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _without_hostname(cluster, needed=False):
        yield RuleBreak(
            "APIServer is a private Route without a hostname: its only name is"
            f" api.{cluster.name}{_RESERVED}, which the guest's network alone resolves",
            "add route.hostname if users come from elsewhere",
            of_section(cluster, entry, "hostname"),
        )
