"""An egress selector that comes near a configuration which says more than one can say.

kube-apiserver knows three networks by name, and two ways to a server: a UNIX socket, and HTTP
CONNECT over mutual TLS. What else a file says is changed into one of these or left out; each change
is told, because somebody has to do something about it. What can be written as it is needs none of
this (settings_connectivity_writing.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from isthmus.dial.rules_connectivity import (
    ClientTls,
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_connectivity_writing import egress_name
from isthmus.dial.settings_egress_selector import NAMES
from isthmus.errors import ConfigError
from isthmus.settings.parsing import check_pair

CLIENT_CERT = "/etc/kubernetes/pki/isthmus/client.crt"
CLIENT_KEY = "/etc/kubernetes/pki/isthmus/client.key"
#: Stands in the path of a socket for the name of a network.
NETWORK = "{network}"
_MAX_UDS_BYTES = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalChoices:
    """What a file may not say: the certificate of kube-apiserver, or a socket instead of TCP."""

    client_cert: str = ""
    client_key: str = ""
    uds: str = ""

    def check(self) -> None:
        """Look at what was said.

        Raises:
            ConfigError: it makes no sense.
        """
        for flag, path in (
            ("client-cert", self.client_cert),
            ("client-key", self.client_key),
            ("uds-name", self.uds),
        ):
            if not path.isprintable():  # also what the shell gave and is no UTF-8
                raise ConfigError(f"--{flag} takes a path in printable UTF-8, not {path!r}")
        check_pair("client-cert", self.client_cert, "client-key", self.client_key)
        longest = self.uds.replace(NETWORK, max(NAMES, key=len))
        if self.uds and not (self.uds.startswith("/") and len(longest.encode()) <= _MAX_UDS_BYTES):
            raise ConfigError(
                f"--uds-name takes an absolute path of at most {_MAX_UDS_BYTES} bytes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressProposal:
    """What can be written as an egress selector, and each change, one sentence with its place."""

    config: ConnectivityConfig
    changes: tuple[str, ...]


def propose_egress(config: ConnectivityConfig, choices: ProposalChoices) -> EgressProposal:
    """Make what an egress selector can say of it; empty where no network is one of its."""
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
    """What becomes of a network; None: it is left out."""
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
        # A server's --mode=grpc takes KEP-1281's own protocol at the same socket.
        is_connect = connection.protocol is NetworkProtocol.HTTP_CONNECT
        protocol = connection.protocol if is_connect else NetworkProtocol.PACKET
        return NetworkConnection(protocol=protocol, uds=uds)
    tls = connection.tls or ClientTls()
    if not tls.client_cert:
        cert, key = choices.client_cert or CLIENT_CERT, choices.client_key or CLIENT_KEY
        tls = replace(tls, client_cert=cert, client_key=key)
    return NetworkConnection(protocol=NetworkProtocol.HTTP_CONNECT, tcp=connection.tcp, tls=tls)


def _changes(network: NetworkConfig, kept: NetworkConfig | None) -> Iterator[str]:
    """What differs, and what to do about it."""
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
