"""Reads Kubernetes's EgressSelectorConfiguration, as strictly as kube-apiserver itself does.

It accepts and rejects what kube-apiserver (v1.36) does, except for URLs and
sockets that pass its checks and then crash it or can never be dialed: those are errors here.
connectivity_files.py checks whether files exist, as kube-apiserver does. Its strictness was
measured with files given to the program; tests/interop/kube/test_egress_files.py repeats this.

A table lists where kube-apiserver's requests go, according to KEP-1281 and in
kube-apiserver v1.36, which differ in a few places; ``note`` says why.
docs/reference/egress-requests.md is generated from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from isthmus.dial.rules_connectivity import (
    CONTROL_PLANE,
    MASTER,
    ClientTls,
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_connectivity_fields import (
    EGRESS,
    MAX_UDS_BYTES,
    Draft,
    TlsPart,
    choice,
    fields_of,
    file_of,
    missing,
)
from isthmus.text.go_yaml import go_text
from isthmus.text.located_yaml import Fields, Located, near, short
from isthmus.values import HostPort

CLUSTER = "cluster"
ETCD = "etcd"
#: The networks of EgressSelectorConfiguration.
SELECTABLE = (CONTROL_PLANE, CLUSTER, ETCD)


class Today(Enum):
    """Behaviour of kube-apiserver without a network of an egress selector."""

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
        """Whether kube-apiserver differs from the KEP."""
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
    """What happens to a request with a given configuration.

    ``network`` is the requested one, ``way`` its connection in the configuration,
    None if it has none. ``today`` says what kube-apiserver does with the same file.
    ``kind`` is None if a destination was requested.
    """

    kind: RequestKind | None
    network: str
    way: NetworkConfig | None
    today: str
    note: str = ""


def explain(
    kind: RequestKind, config: ConnectivityConfig, kube: ConnectivityConfig | None
) -> Explanation:
    """Explain where a kind of request goes.

    ``kube`` is what kube-apiserver reads from the same file, None if it cannot read it.
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
    """Explain how a destination is reached: in its network, if the configuration has one.

    Otherwise this depends on the kind of request, and there is one answer for each network of
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


def way_text(connection: NetworkConnection) -> str:
    """A short text about how and where a network is reached."""
    if connection.protocol is NetworkProtocol.DIRECT:
        return "directly"
    if connection.protocol is NetworkProtocol.CUSTOM:
        return f"by the dialer {connection.dialer}"
    return f"by {connection.protocol.value} at {place_text(connection)}"


def place_text(connection: NetworkConnection) -> str:
    """Name the socket of a connection: ``unix:PATH``, or host and port; empty if it has none."""
    if connection.uds:
        return f"unix:{connection.uds}"
    return str(connection.tcp) if connection.tcp is not None else ""


NAMES = (CONTROL_PLANE, "cluster", "etcd")
PROTOCOLS = {
    "Direct": NetworkProtocol.DIRECT,
    "HTTPConnect": NetworkProtocol.HTTP_CONNECT,
    "GRPC": NetworkProtocol.PACKET,
}
_ITEM = "egressSelections"
_CONNECTION = f"{_ITEM}.connection"
_TRANSPORT = f"{_CONNECTION}.transport"
_HINTS = {"http-connect": "HTTPConnect", "konnectivity": "GRPC"}
_UNUSED = NetworkConnection(protocol=NetworkProtocol.DIRECT)  # placeholder: an error was recorded

_CONTROLS = re.compile(r"[\x00-\x20\x7f]")
_USER = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def read_document(root: Located) -> list[Draft]:
    """Read the networks of one document; errors are recorded at their positions."""
    found = fields_of(root, EGRESS, "", required=("apiVersion", "kind"))
    items = found[_ITEM].items() if _ITEM in found else []
    return [_selection(item) for item in items]


def _selection(node: Located) -> Draft:
    found = fields_of(node, EGRESS, _ITEM, required=("name", "connection"))
    name = _name(found["name"]) if "name" in found else ""
    connection, tls = _UNUSED, None
    if "connection" in found:
        connection, tls = _connection(found["connection"])
    at = found.get("name", node)
    old = at.is_text and at.node.value == MASTER
    warning = f"{at.where}: {at.path}: master is the old name of controlplane"
    return Draft(
        network=NetworkConfig(name=name, connection=connection, where=node.where),
        at=at,
        tls=tls,
        warnings=(warning,) if old else (),
    )


def _name(node: Located) -> str:
    text = go_text(node)
    name = text.lower()
    if name == MASTER:
        # kube-apiserver renames exactly this word, in both versions (measured with v1.36).
        if text != MASTER:
            node.error(f"{short(text)} is known in lower case only: write controlplane instead")
        return CONTROL_PLANE
    if text and name not in NAMES:
        node.error(f"must be controlplane, cluster or etcd, not {short(text)}{near(name, NAMES)}")
    elif not text and node.is_text:
        node.error("is empty, it must be controlplane, cluster or etcd")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tcp:
    """The fields below tcp, of the right types; checked only if used."""

    at: Located
    found: Fields
    url: str
    tls: Located | None
    tls_found: Fields
    client: ClientTls


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transport:
    """The fields below transport; ``uds`` is None if absent."""

    at: Located
    tcp: _Tcp | None
    uds: str | None
    uds_at: Located


def _connection(node: Located) -> tuple[NetworkConnection, TlsPart | None]:
    found = fields_of(node, EGRESS, _CONNECTION, required=("proxyProtocol",))
    word, transport = "", None
    if "proxyProtocol" in found:
        word = choice(found["proxyProtocol"], go_text(found["proxyProtocol"]), [*PROTOCOLS], _HINTS)
    if "transport" in found:
        transport = _transport(found["transport"])
    protocol = PROTOCOLS.get(word)
    if protocol is NetworkProtocol.DIRECT:
        if transport is not None:
            transport.at.error("must be absent with Direct: delete it, or choose a proxyProtocol")
    elif protocol is not None and transport is None:
        missing(node, "transport", f"{word} needs to know where the server is")
    elif protocol is NetworkProtocol.PACKET and transport is not None:
        return _by_grpc(transport)
    elif protocol is NetworkProtocol.HTTP_CONNECT and transport is not None:
        return _by_http_connect(transport)
    return _UNUSED, None


def _transport(node: Located) -> _Transport:
    found = fields_of(node, EGRESS, _TRANSPORT)
    uds, uds_at = None, node
    if "uds" in found:
        uds_at = found["uds"]
        below = fields_of(uds_at, EGRESS, f"{_TRANSPORT}.uds")
        if "udsName" in below:
            uds_at = below["udsName"]
        uds = go_text(uds_at) if "udsName" in below else ""
    tcp = _tcp(found["tcp"]) if "tcp" in found else None
    return _Transport(at=node, tcp=tcp, uds=uds, uds_at=uds_at)


def _tcp(node: Located) -> _Tcp:
    found = fields_of(node, EGRESS, f"{_TRANSPORT}.tcp")
    tls = found.get("tlsConfig")
    tls_found = fields_of(tls, EGRESS, f"{_TRANSPORT}.tcp.tlsConfig") if tls else Fields()
    texts = {name: go_text(at) for name, at in tls_found.items()}
    return _Tcp(
        at=node,
        found=found,
        url=go_text(found["url"]) if "url" in found else "",
        tls=tls,
        tls_found=tls_found,
        client=ClientTls(
            ca_bundle=texts.get("caBundle", ""),
            client_cert=texts.get("clientCert", ""),
            client_key=texts.get("clientKey", ""),
            server_name=texts.get("tlsServerName", ""),
        ),
    )


def _by_grpc(transport: _Transport) -> tuple[NetworkConnection, TlsPart | None]:
    if transport.uds is None:
        if transport.tcp is None:
            missing(transport.at, "uds", "GRPC needs a UNIX socket")
        else:
            transport.tcp.at.error("GRPC goes over uds only: use uds, or HTTPConnect over tcp")
        return _UNUSED, None
    return _by_uds(transport, NetworkProtocol.PACKET), None


def _by_http_connect(transport: _Transport) -> tuple[NetworkConnection, TlsPart | None]:
    tcp, uds = transport.tcp, transport.uds
    if tcp is not None and uds is not None:
        transport.at.error("has tcp and uds, and can have one only: delete the other")
    elif uds is not None:
        return _by_uds(transport, NetworkProtocol.HTTP_CONNECT), None
    elif tcp is not None:
        return _by_tcp(tcp)
    elif transport.at.is_mapping:
        transport.at.error("is empty, HTTPConnect needs tcp or uds")
    return _UNUSED, None


def _by_uds(transport: _Transport, protocol: NetworkProtocol) -> NetworkConnection:
    at = transport.uds_at
    if at.is_mapping:
        missing(at, "udsName", "the path of a socket is expected")
    elif at.is_text and not at.node.value:
        at.error("is empty, the path of a socket is expected")
    elif len((transport.uds or "").encode()) > MAX_UDS_BYTES:
        at.error(f"is too long for a UNIX socket, which has at most {MAX_UDS_BYTES} bytes")
    return NetworkConnection(protocol=protocol, uds=transport.uds or "")


def _by_tcp(tcp: _Tcp) -> tuple[NetworkConnection, TlsPart | None]:
    if not tcp.url:
        if "url" not in tcp.found or tcp.found["url"].is_text:
            missing(tcp.at, "url", "such as https://127.0.0.1:8131")
        return _UNUSED, None
    at = tcp.found["url"]
    if tcp.url.startswith("http://"):
        if tcp.tls is not None:
            at.error(f"must begin with https:// beside tlsConfig, not be {short(tcp.url)}")
        else:
            at.error(
                f"{short(tcp.url)} passes kube-apiserver's checks and then crashes it:"
                " use https:// with tlsConfig, or uds instead of tcp"
            )
        return _UNUSED, None
    if not tcp.url.startswith("https://"):
        at.error(f"must begin with https://, not be {short(tcp.url)}")
        return _UNUSED, None
    target = at.read(lambda text: url_target(tcp.url))
    if tcp.tls is None:
        missing(tcp.at, "tlsConfig", "https:// needs a client certificate")
        return _UNUSED, None
    for name in ("clientCert", "clientKey"):
        if name not in tcp.tls_found or tcp.tls_found[name].node.value == "":
            missing(tcp.tls, name, "kube-apiserver always shows a client certificate")
    connection = NetworkConnection(
        protocol=NetworkProtocol.HTTP_CONNECT, tcp=target, tls=tcp.client
    )
    found, client = tcp.tls_found, tcp.client
    return connection, TlsPart(
        ca=file_of(found, "caBundle", client.ca_bundle),
        cert=file_of(found, "clientCert", client.client_cert),
        key=file_of(found, "clientKey", client.client_key),
    )


def url_target(text: str) -> HostPort:
    """The host and port of an ``https://`` URL; as in Go a user and a path are ignored.

    Raises:
        ValueError: not a URL, or never dialable.
    """
    rest = text.removeprefix("https://")
    cut = re.search(r"[/?#]", rest)
    authority, tail = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")
    user, at, host = authority.rpartition("@")
    path, _, fragment = tail.partition("#")
    path = path.partition("?")[0]
    if _CONTROLS.search(authority) or re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("is not a URL: it has a space or a control character")
    if at and not _USER.fullmatch(user):
        raise ValueError("is not a URL: it has a user with strange characters")
    if any(_BAD_ESCAPE.search(part) for part in (user, path, fragment)):
        raise ValueError("is not a URL: it has a % without two hexadecimal digits")
    if re.search(r":[0-9]+$", host) is None:
        raise ValueError(f"has no port: kube-apiserver could not dial it, write https://{host}:443")
    try:
        return HostPort.parse(host)
    except ValueError as error:
        raise ValueError(f"cannot be dialed: {error}") from None
