"""Writing the model as YAML of either kind.

The inverse of settings_connectivity.py. Comments of a file are not in the model and are lost.
Writing refuses to lose anything else, and says what.

If an egress selector cannot express a configuration, ``propose_egress`` makes the nearest
one: kube-apiserver has three networks by name, and two kinds of connections (a UNIX socket, and
HTTP CONNECT over mutual TLS). The rest is changed into one of these or left out, and each change is
reported, because the user has to act on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from isthmus.settings.parsing import check_pair
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
    """Write one document of Kubernetes's kind; ``version`` is v1beta1 or v1alpha1.

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
    """Whether an egress selector cannot express all of it."""
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
    """The name of a network in an egress selector."""
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
    """The url of a connection in ConnectivityServiceConfiguration; empty for others."""
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


CLIENT_CERT = "/etc/kubernetes/pki/isthmus/client.crt"
CLIENT_KEY = "/etc/kubernetes/pki/isthmus/client.key"
#: The placeholder for a network's name in the path of a socket.
NETWORK = "{network}"
_MAX_UDS_BYTES = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalChoices:
    """Choices not in the file: kube-apiserver's certificate, or a socket instead of TCP."""

    client_cert: str = ""
    client_key: str = ""
    uds: str = ""

    def check(self) -> None:
        """Check the choices.

        Raises:
            ConfigError: an invalid value.
        """
        for flag, path in (
            ("client-cert", self.client_cert),
            ("client-key", self.client_key),
            ("uds-name", self.uds),
        ):
            if not path.isprintable():  # includes bytes from the shell that are not UTF-8
                raise ConfigError(f"--{flag} takes a path in printable UTF-8, not {path!r}")
        check_pair("client-cert", self.client_cert, "client-key", self.client_key)
        longest = self.uds.replace(NETWORK, max(NAMES, key=len))
        if self.uds and not (self.uds.startswith("/") and len(longest.encode()) <= _MAX_UDS_BYTES):
            raise ConfigError(
                f"--uds-name takes an absolute path of at most {_MAX_UDS_BYTES} bytes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressProposal:
    """An egress selector, and a message with its position for each change."""

    config: ConnectivityConfig
    changes: tuple[str, ...]


def propose_egress(config: ConnectivityConfig, choices: ProposalChoices) -> EgressProposal:
    """The part that an egress selector can express; empty if that is none."""
    networks: dict[str, NetworkConfig] = {}
    changes: list[str] = []
    for network in config.networks.values():
        kept = _network(network, choices)
        where = f"{network.where}: " if network.where else ""
        changes += [f"{where}network {network.name} {what}" for what in _changes(network, kept)]
        if kept is not None:
            networks[kept.name] = kept
    return EgressProposal(config=ConnectivityConfig(networks=networks), changes=tuple(changes))


def _network(network: NetworkConfig, choices: ProposalChoices) -> NetworkConfig | None:
    """The converted network; None: it is left out."""
    if egress_name(network.name) not in NAMES:
        return None
    connection = network.connection
    if connection.protocol is NetworkProtocol.CUSTOM:
        return None
    if connection.protocol is not NetworkProtocol.DIRECT:
        connection = _connection(connection, egress_name(network.name), choices)
    return replace(network, connection=connection, cidrs=(), hosts=())


def _connection(
    connection: NetworkConnection, name: str, choices: ProposalChoices
) -> NetworkConnection:
    uds = connection.uds or choices.uds.replace(NETWORK, name)
    if uds:
        # A server's --mode=grpc also serves KEP-1281's own protocol at the same socket.
        is_connect = connection.protocol is NetworkProtocol.HTTP_CONNECT
        protocol = connection.protocol if is_connect else NetworkProtocol.PACKET
        return NetworkConnection(protocol=protocol, uds=uds)
    tls = connection.tls or ClientTls()
    if not tls.client_cert:
        cert, key = choices.client_cert or CLIENT_CERT, choices.client_key or CLIENT_KEY
        tls = replace(tls, client_cert=cert, client_key=key)
    return NetworkConnection(protocol=NetworkProtocol.HTTP_CONNECT, tcp=connection.tcp, tls=tls)


def _changes(network: NetworkConfig, kept: NetworkConfig | None) -> Iterator[str]:
    """The changes, and what to do about them."""
    before = network.connection
    if kept is None:
        if before.protocol is NetworkProtocol.DIRECT:
            yield "is left out: kube-apiserver dials directly where nothing is selected"
        elif before.protocol is NetworkProtocol.CUSTOM:
            yield "is left out: kube-apiserver has no dialers of others"
        else:
            yield f"is left out: kube-apiserver has no networks but {', '.join(NAMES)}"
        return
    after = kept.connection
    if after.uds and not before.uds:
        yield f"goes by the UNIX socket {after.uds}: start the server with --uds-name={after.uds}"
    if after.protocol is not before.protocol:
        mode = "http-connect" if after.protocol is NetworkProtocol.HTTP_CONNECT else "grpc"
        yield f"is spoken to by {after.protocol.value}: start the server with --mode={mode}"
    if after.tls is not None and before.tls is None:
        yield f"is dialed by TLS, as https://{after.tcp}, and trusts the system's authorities"
    if after.tls is not None and (before.tls is None or not before.tls.client_cert):
        yield (
            f"shows the certificate {after.tls.client_cert}, which kube-apiserver needs there: make"
            " one of the authorities that the server has as --server-ca-cert, or name it with"
            " --client-cert and --client-key"
        )
    for what, entries in (("cidrs", network.cidrs), ("hosts", network.hosts)):
        if entries:
            yield (
                f"loses its {what} ({', '.join(map(str, entries))}): kube-apiserver chooses by what"
                " a request is for, and sends all of it there"
            )
