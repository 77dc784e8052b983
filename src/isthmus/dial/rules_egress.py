"""Where kube-apiserver's outgoing requests go: every kind of them, and its network.

A table with two answers: what KEP-1281 says, and what kube-apiserver v1.36 does. They differ in few
places, and ``note`` says why. docs/reference/egress-requests.md is written from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from isthmus.dial.rules_connectivity import Connection, ConnectivityConfig, NetworkConfig, Protocol
from isthmus.values import HostPort

CLUSTER = "cluster"
CONTROL_PLANE = "controlplane"
ETCD = "etcd"
#: The networks that EgressSelectorConfiguration knows.
SELECTABLE = (CONTROL_PLANE, CLUSTER, ETCD)


class Today(Enum):
    """What kube-apiserver does that is no network of an egress selector."""

    LOOPBACK = "loopback"
    DIRECT = "direct"
    PER_ISSUER = "per issuer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKind:
    """One kind of outgoing request.

    ``network`` is KEP-1281's, ``today`` is what kube-apiserver does: a network, or none of them.
    """

    name: str
    title: str
    network: str
    today: str | Today
    note: str = ""

    @property
    def differs(self) -> bool:
        """Whether kube-apiserver does something else than the KEP says."""
        return self.today != self.network


def _pod(name: str, title: str) -> RequestKind:
    return RequestKind(name=f"pods/{name}", title=title, network=CLUSTER, today=CLUSTER)


_NO_CALL_SITE = "kube-apiserver has no egress selection for it: it is dialed directly"
_BY_KUBECONFIG = "the destination is in a kubeconfig file"

KINDS: tuple[RequestKind, ...] = (
    RequestKind(
        name="etcd", title="Storage", network=ETCD, today=ETCD,
        note="apart from controlplane, since it is the main scaling axis",
    ),
    _pod("exec", "A command in a container (kubectl exec)"),
    _pod("attach", "The terminal of a container (kubectl attach)"),
    _pod("log", "The log of a container (kubectl logs)"),
    _pod("portforward", "A port of a pod (kubectl port-forward)"),
    _pod("proxy", "HTTP to a pod by the API"),
    RequestKind(
        name="nodes/proxy", title="HTTP to a kubelet by the API", network=CLUSTER, today=CLUSTER
    ),
    RequestKind(
        name="services/proxy", title="HTTP to a service by the API", network=CLUSTER, today=CLUSTER
    ),
    RequestKind(
        name="admission-webhook/service", title="An admission webhook given as a service",
        network=CLUSTER, today=CLUSTER,
        note="what is dialed is an endpoint's address with --enable-aggregator-routing, else the"
        " cluster IP",
    ),
    RequestKind(
        name="admission-webhook/url", title="An admission webhook given as a URL",
        network=CONTROL_PLANE, today=CONTROL_PLANE,
    ),
    RequestKind(
        name="conversion-webhook/service", title="A CRD conversion webhook given as a service",
        network=CLUSTER, today=CLUSTER, note="the KEP does not name it; as admission webhooks",
    ),
    RequestKind(
        name="conversion-webhook/url", title="A CRD conversion webhook given as a URL",
        network=CONTROL_PLANE, today=CONTROL_PLANE,
        note="the KEP does not name it; as admission webhooks",
    ),
    RequestKind(
        name="webhook/own-api", title="A webhook that is kube-apiserver itself",
        network=CONTROL_PLANE, today=Today.LOOPBACK,
        note="kubernetes.default.svc:443 is reached by loopback and never by an egress selection",
    ),
    RequestKind(
        name="aggregated-api/service", title="An aggregated API, its OpenAPI and its health",
        network=CLUSTER, today=CLUSTER,
    ),
    RequestKind(
        name="aggregated-api/url", title="An aggregated API given as a URL",
        network=CONTROL_PLANE, today=CLUSTER,
        note="an APIService has no URL today: one without a service is served by kube-apiserver"
        " itself, and a service of type ExternalName goes to the cluster",
    ),
    RequestKind(
        name="authentication-webhook", title="Token review by a webhook",
        network=CONTROL_PLANE, today=CONTROL_PLANE, note=_BY_KUBECONFIG,
    ),
    RequestKind(
        name="authorization-webhook", title="Access review by a webhook",
        network=CONTROL_PLANE, today=CONTROL_PLANE, note=_BY_KUBECONFIG,
    ),
    RequestKind(
        name="audit-webhook", title="Audit events to a webhook",
        network=CONTROL_PLANE, today=CONTROL_PLANE, note=_BY_KUBECONFIG,
    ),
    RequestKind(
        name="image-policy-webhook", title="Admission of images by a webhook",
        network=CONTROL_PLANE, today=Today.DIRECT, note=_NO_CALL_SITE,
    ),
    RequestKind(
        name="kms", title="The plugin that encrypts secrets",
        network=CONTROL_PLANE, today=Today.DIRECT,
        note="the endpoint is a UNIX socket on the same machine",
    ),
    RequestKind(
        name="oidc", title="The keys of a token issuer",
        network=CONTROL_PLANE, today=Today.PER_ISSUER,
        note="issuer.egressSelectorType: controlplane, cluster, or directly if it is empty; the"
        " KEP does not name it",
    ),
    RequestKind(
        name="tracing", title="Spans to an OTLP collector",
        network=CONTROL_PLANE, today=CONTROL_PLANE, note="the KEP does not name it",
    ),
    RequestKind(
        name="peer-proxy", title="Another kube-apiserver, for resources that this one lacks",
        network=CONTROL_PLANE, today=CONTROL_PLANE,
        note="only if controlplane is configured; the KEP does not name it",
    ),
)  # fmt: skip

BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What becomes of a request with a given configuration.

    ``network`` is the one that is asked for, ``way`` the connection that the configuration has for
    it, None if it has none. ``today`` says what kube-apiserver does with the same file.
    ``kind`` is None where a destination was asked for.
    """

    kind: RequestKind | None
    network: str
    way: NetworkConfig | None
    today: str
    note: str = ""


def explain(
    kind: RequestKind, config: ConnectivityConfig, kube: ConnectivityConfig | None
) -> Explanation:
    """Say where a kind of request goes.

    ``kube`` is what kube-apiserver reads of the same file, None where it can read nothing.
    """
    return Explanation(
        kind=kind,
        network=kind.network,
        way=config.network(kind.network),
        today=_today(kind.today, kube),
        note=kind.note,
    )


def explain_destination(
    target: HostPort, config: ConnectivityConfig, kube: ConnectivityConfig | None
) -> list[Explanation]:
    """Say where a destination is reached: in its network, if the configuration says of any.

    Else that depends on the kind of request, and there is one answer for each network of
    kube-apiserver, whose note names the kinds.
    """
    if any(one.cidrs or one.hosts for one in config.networks.values()):
        found = config.network_of(target)
        today = "kube-apiserver chooses by the kind of request, never by destination"
        return [Explanation(kind=None, network=found.name if found else "", way=found, today=today)]
    return [
        Explanation(
            kind=None,
            network=name,
            way=config.network(name),
            today=_today(name, kube),
            note="for " + ", ".join(kind.name for kind in KINDS if kind.today == name),
        )
        for name in SELECTABLE
    ]


def _today(today: str | Today, kube: ConnectivityConfig | None) -> str:
    match today:
        case Today.LOOPBACK:
            return "itself, by loopback"
        case Today.DIRECT:
            return "directly, whatever is configured"
        case Today.PER_ISSUER:
            return "as each issuer's egressSelectorType says, directly if it is empty"
        case str():
            if kube is None:
                return f"{today}, of an egress selector: it cannot read this file"
            found = kube.network(today)
            if found is None:
                return f"directly: {today} is not configured"
            return f"{today}, {way_text(found.connection)}"


def way_text(connection: Connection) -> str:
    """Say how and where a network is reached, in a few words."""
    if connection.protocol is Protocol.DIRECT:
        return "directly"
    if connection.protocol is Protocol.CUSTOM:
        return f"by the dialer {connection.dialer}"
    return f"by {connection.protocol.value} at {place_text(connection)}"


def place_text(connection: Connection) -> str:
    """Name the socket of a connection: ``unix:PATH``, or host and port; empty if it has none."""
    if connection.uds:
        return f"unix:{connection.uds}"
    return str(connection.tcp) if connection.tcp is not None else ""
