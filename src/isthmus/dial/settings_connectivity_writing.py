"""Writing the model as YAML of either kind; refuses what would lose something, and says what.

The inverse of settings_connectivity.py. Comments of a file are not in the model, and so not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    CONNECTIVITY_SERVICE,
    EGRESS,
    EGRESS_SELECTOR,
    SERVICE,
)
from isthmus.dial.settings_connectivity_service import TYPES, UNIX
from isthmus.dial.settings_egress_selector import NAMES, PROTOCOLS
from isthmus.errors import ConfigError
from isthmus.text.go_yaml import to_yaml

VERSIONS = tuple(version.rpartition("/")[2] for version in EGRESS.versions)

_WORDS = {protocol: word for word, protocol in TYPES.items()}
_EGRESS_WORDS = {protocol: word for word, protocol in PROTOCOLS.items()}


def to_connectivity_service(config: ConnectivityConfig) -> str:
    """Write a document of KEP-1281's kind for each network.

    Raises:
        ConfigError: something would be lost; one line for each.
    """
    _refuse_lost(CONNECTIVITY_SERVICE, _lost_by_service(config))
    documents = [
        {
            "apiVersion": SERVICE.versions[0],
            "kind": CONNECTIVITY_SERVICE,
            "connectionService": _service(network),
        }
        for network in config.networks.values()
    ]
    return to_yaml(documents)


def to_egress_selector(config: ConnectivityConfig, *, version: str = VERSIONS[0]) -> str:
    """Write one document of Kubernetes' kind; ``version`` is v1beta1 or v1alpha1.

    Raises:
        ConfigError: something would be lost; one line for each.
    """
    _refuse_lost(EGRESS_SELECTOR, _lost_by_egress(config))
    api_version = next(one for one in EGRESS.versions if one.endswith(f"/{version}"))
    selections = [
        {"name": egress_name(network.name), "connection": _selection(network.connection)}
        for network in config.networks.values()
    ]
    document = {"apiVersion": api_version, "kind": EGRESS_SELECTOR, "egressSelections": selections}
    return to_yaml([document])


def is_lost_by_egress(config: ConnectivityConfig) -> bool:
    """Whether an egress selector cannot say all of it."""
    return next(_lost_by_egress(config), None) is not None


def _refuse_lost(kind: str, lost: Iterator[tuple[NetworkConfig | None, str]]) -> None:
    lines = []
    for network, what in lost:
        where = f"{network.where}: " if network is not None and network.where else ""
        named = f"network {network.name}: " if network is not None else ""
        lines.append(f"{where}{named}{what}")
    if lines:
        first = f"cannot be written as {kind} without losing something:"
        raise ConfigError("\n".join([first, *lines]))


def _lost_by_service(config: ConnectivityConfig) -> Iterator[tuple[NetworkConfig | None, str]]:
    if not config.networks:
        yield None, "there is no network, and each document has one"
    for network in config.networks.values():
        connection = network.connection
        if connection.uds and not connection.uds.startswith("/"):
            yield network, f"the socket {connection.uds!r} has no absolute path, as a url needs"


def _lost_by_egress(config: ConnectivityConfig) -> Iterator[tuple[NetworkConfig | None, str]]:
    for network in config.networks.values():
        connection = network.connection
        if egress_name(network.name) not in NAMES:
            yield network, "there are no networks but controlplane, cluster and etcd"
        if network.cidrs:
            yield network, f"there are no cidrs ({', '.join(map(str, network.cidrs))})"
        if network.hosts:
            yield network, f"there are no hosts ({', '.join(network.hosts)})"
        if connection.protocol not in _EGRESS_WORDS:
            yield network, f"there is no protocol for type {_WORDS[connection.protocol]}"
        elif connection.tcp is not None and connection.protocol is NetworkProtocol.PACKET:
            yield network, "GRPC goes over a UNIX socket only, not TCP"
        elif connection.tcp is not None and connection.tls is None:
            yield network, "plain TCP would crash kube-apiserver"
        elif connection.tls is not None and not connection.tls.client_cert:
            yield network, "a client certificate is required, and there is none"


def egress_name(name: str) -> str:
    """What an egress selector calls a network."""
    return CONTROL_PLANE if name == MASTER else name


def _service(network: NetworkConfig) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": network.name,
        "connection": _service_connection(network.connection),
    }
    if network.cidrs:
        written["cidrs"] = [str(one) for one in network.cidrs]
    if network.hosts:
        written["hosts"] = list(network.hosts)
    return written


def _service_connection(connection: NetworkConnection) -> dict[str, Any]:
    written: dict[str, Any] = {"type": _WORDS[connection.protocol]}
    if connection.protocol is NetworkProtocol.CUSTOM:
        written["dialer"] = connection.dialer
        if connection.options:
            written["options"] = dict(connection.options)
    elif connection.protocol is not NetworkProtocol.DIRECT:
        written["url"] = url_of(connection)
    if connection.tls is not None:
        written |= _tls(connection.tls)
    elif connection.tcp is not None:
        written["insecure"] = True
    return written


def url_of(connection: NetworkConnection) -> str:
    """Where a connection goes, as a url of ConnectivityServiceConfiguration; empty for others."""
    if connection.uds:
        return f"{UNIX if connection.uds.startswith('/') else 'unix:'}{connection.uds}"
    if connection.tcp is None:
        return ""
    if connection.tls is None:
        return f"http://{connection.tcp}"
    scheme = "https" if connection.protocol is NetworkProtocol.HTTP_CONNECT else "grpc"
    return f"{scheme}://{connection.tcp}"


def _selection(connection: NetworkConnection) -> dict[str, Any]:
    written: dict[str, Any] = {"proxyProtocol": _EGRESS_WORDS[connection.protocol]}
    if connection.uds:
        written["transport"] = {"uds": {"udsName": connection.uds}}
    elif connection.tcp is not None and connection.tls is not None:
        tcp = {"url": f"https://{connection.tcp}", "tlsConfig": _tls(connection.tls)}
        written["transport"] = {"tcp": tcp}
    return written


def _tls(tls: ClientTls) -> dict[str, str]:
    fields = {
        "caBundle": tls.ca_bundle,
        "clientCert": tls.client_cert,
        "clientKey": tls.client_key,
        "tlsServerName": tls.server_name,
    }
    return {name: value for name, value in fields.items() if value}
