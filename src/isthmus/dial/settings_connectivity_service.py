"""Reading KEP-1281's ConnectivityServiceConfiguration: one network in each document.

Fields that are not in the KEP are ours; settings_connectivity_fields.py marks them. Connections are
mutual TLS by default: plain TCP has to be enabled. connectivity_files.py checks whether files
exist; a missing client certificate is reported when dialing, because the
KEP's own sample has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from isthmus.dial.rules_connectivity import (
    ClientTls,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_connectivity_fields import (
    MAX_UDS_BYTES,
    SERVICE,
    Draft,
    TlsPart,
    choice,
    fields_of,
    file_of,
    missing,
)
from isthmus.text.addresses import cidr
from isthmus.text.located_yaml import Fields, Located, short
from isthmus.values import HostPort, is_address

T = TypeVar("T")

TYPES = {
    "direct": NetworkProtocol.DIRECT,
    "grpc": NetworkProtocol.PAYLOAD,
    "http-connect": NetworkProtocol.HTTP_CONNECT,
    "konnectivity": NetworkProtocol.PACKET,
    "custom": NetworkProtocol.CUSTOM,
}
MAX_CIDRS = 1024
MAX_HOSTS = 1024
MAX_OPTIONS = 64
UNIX = "unix://"

_CONNECTION = "connectionService.connection"
_HINTS = {
    "httpconnect": "http-connect",
    "packet": "konnectivity",
    "payload": "grpc",
    "GRPC": "konnectivity, which EgressSelectorConfiguration calls GRPC, or KEP-1281's grpc",
}
_TLS_FIELDS = ("caBundle", "clientCert", "clientKey", "tlsServerName")
_CUSTOM_FIELDS = ("dialer", "options")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
_DIALER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_UNUSED = NetworkConnection(protocol=NetworkProtocol.DIRECT)  # placeholder: an error was recorded


def read_document(root: Located) -> list[Draft]:
    """Read the network of one document; errors are recorded at their positions."""
    required = ("apiVersion", "kind", "connectionService")
    found = fields_of(root, SERVICE, "", required=required)
    return [_service(found["connectionService"])] if "connectionService" in found else []


def _service(node: Located) -> Draft:
    found = fields_of(node, SERVICE, "connectionService", required=("name", "connection"))
    name = found.value("name", network_name, "")
    connection, tls = _UNUSED, None
    if "connection" in found:
        connection, tls = _connection(found["connection"])
    cidrs = _read_at(found.nodes("cidrs", most=MAX_CIDRS), cidr)
    hosts = _read_at(found.nodes("hosts", most=MAX_HOSTS), host)
    network = NetworkConfig(
        name=name,
        connection=connection,
        cidrs=tuple(one for one, _ in cidrs),
        hosts=tuple(one for one, _ in hosts),
        where=node.where,
    )
    return Draft(
        network=network,
        at=found.get("name", node),
        cidrs=tuple(cidrs),
        hosts=tuple(hosts),
        tls=tls,
        connection_at=found.get("connection"),
    )


def _read_at(nodes: list[Located], parse: Callable[[str], T]) -> list[tuple[T, Located]]:
    read = [(at.read(parse), at) for at in nodes]
    return [(one, at) for one, at in read if one is not None]


def _connection(node: Located) -> tuple[NetworkConnection, TlsPart | None]:
    found = fields_of(node, SERVICE, _CONNECTION, required=("type",))
    if "type" not in found or (text := found["type"].text()) is None:
        return _UNUSED, None
    word = choice(found["type"], text, [*TYPES], _HINTS)
    if not word:
        return _UNUSED, None
    protocol = TYPES[word]
    if protocol is NetworkProtocol.DIRECT:
        _refuse(found, ("url", *_TLS_FIELDS, "insecure", *_CUSTOM_FIELDS), "type direct has none")
        return _UNUSED, None
    if protocol is NetworkProtocol.CUSTOM:
        return _custom(node, found), None
    _refuse(found, _CUSTOM_FIELDS, "only type custom has it")
    return _proxied(node, found, protocol)


def _refuse(found: Fields, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in found:
            found[name].error(f"{why}: delete it")


def _custom(node: Located, found: Fields) -> NetworkConnection:
    why = "type custom has none: what the dialer needs goes into options"
    for name in ("url", *_TLS_FIELDS, "insecure"):
        if name in found:
            found[name].error(why)
    if "dialer" not in found:
        missing(node, "dialer", "type custom needs the name of one")
    entries = found["options"].entries(most=MAX_OPTIONS) if "options" in found else {}
    return NetworkConnection(
        protocol=NetworkProtocol.CUSTOM,
        dialer=found.value("dialer", _dialer_name, ""),
        options={name: at.value.text() or "" for name, at in entries.items()},
    )


def _proxied(
    node: Located, found: Fields, protocol: NetworkProtocol
) -> tuple[NetworkConnection, TlsPart | None]:
    if "url" not in found:
        missing(node, "url", f"such as {_EXAMPLES[protocol]}, or unix:///run/proxy.sock")
        return _UNUSED, None
    at = found["url"]
    url = at.text() or ""
    scheme, _, rest = url.partition("://")
    insecure = found.boolean("insecure", False)
    if scheme == "unix":
        _refuse(found, (*_TLS_FIELDS, "insecure"), "a UNIX socket has no TLS")
        return NetworkConnection(protocol=protocol, uds=at.read(_socket_path) or ""), None
    target = at.read(lambda _: _target(rest)) if _fits(at, url, scheme, protocol) else None
    if scheme == "http":
        if not insecure:
            at.error(
                f"{short(url)} is plain TCP: use {_EXAMPLES[protocol].partition(':')[0]}://,"
                " or say insecure: true"
            )
        _refuse(found, _TLS_FIELDS, "http:// has no TLS")
        return NetworkConnection(protocol=protocol, tcp=target), None
    if insecure:
        found["insecure"].error(f"{scheme}:// is always TLS: delete it, or use http://")
    tls, part = _tls(node, found)
    return NetworkConnection(protocol=protocol, tcp=target, tls=tls), part


_EXAMPLES = {
    NetworkProtocol.PAYLOAD: "grpc://127.0.0.1:8090",
    NetworkProtocol.PACKET: "grpc://127.0.0.1:8090",
    NetworkProtocol.HTTP_CONNECT: "https://127.0.0.1:8090",
}


def _fits(at: Located, url: str, scheme: str, protocol: NetworkProtocol) -> bool:
    if not at.is_text:
        return False
    if scheme in ("https", "http") or (
        scheme == "grpc" and protocol is not NetworkProtocol.HTTP_CONNECT
    ):
        return True
    if scheme == "grpc":
        at.error(f"{short(url)}: type http-connect has https://, http:// and unix://")
    elif scheme == "grpcs":
        at.error(f"{short(url)}: grpc:// is TLS already, write grpc://")
    else:
        grpc = "" if protocol is NetworkProtocol.HTTP_CONNECT else "grpc://, "
        at.error(f"must begin with {grpc}https://, http:// or unix://, not be {short(url)}")
    return False


def _tls(node: Located, found: Fields) -> tuple[ClientTls, TlsPart]:
    ca, cert, key = (found.text(name) for name in ("caBundle", "clientCert", "clientKey"))
    for name in ("caBundle", "clientCert", "clientKey"):
        if name in found and found[name].is_text and not found.text(name):
            found[name].error("is empty, the path of a file is expected: or delete it")
    for there, other in (("clientCert", "clientKey"), ("clientKey", "clientCert")):
        if there in found and other not in found:
            missing(node, other, f"{there} needs it")
    server_name = found.value("tlsServerName", _server_name, "")
    tls = ClientTls(ca_bundle=ca, client_cert=cert, client_key=key, server_name=server_name)
    return tls, TlsPart(
        ca=file_of(found, "caBundle", ca),
        cert=file_of(found, "clientCert", cert),
        key=file_of(found, "clientKey", key),
    )


def network_name(text: str) -> str:
    """A network's name in lower case.

    Raises:
        ValueError: invalid; the message follows the text.
    """
    name = text.lower()
    if not _NAME.fullmatch(name):
        raise ValueError(
            "is not a name of at most 63 letters, digits, dots, hyphens and underscores,"
            " with a letter or digit at both ends"
        )
    return name


def host(text: str) -> str:
    """A host name, or a suffix that begins with a dot, in lower case and without a last dot.

    Raises:
        ValueError: invalid; the message follows the text.
    """
    if is_address(text):
        raise ValueError("is an address, list it under cidrs")
    if text.startswith("*."):
        raise ValueError(f"is no host name, did you mean {short(text[1:])}?")
    name = text.lower().removesuffix(".")
    try:
        HostPort(name.removeprefix("."), 1)
    except ValueError:
        raise ValueError("is neither a host name nor a dot and the end of one") from None
    return name


def _dialer_name(text: str) -> str:
    if not _DIALER.fullmatch(text):
        raise ValueError("is not the name of an entry point")
    return text


def _server_name(text: str) -> str:
    try:
        return HostPort(text, 1).host
    except ValueError:
        raise ValueError("is not a host name or address") from None


def _socket_path(url: str) -> str:
    path = url.removeprefix(UNIX)
    if not path.startswith("/") or path == "/" or "\0" in path:
        raise ValueError("is not a UNIX socket with an absolute path, such as unix:///run/x.sock")
    if len(path.encode("utf-8", "replace")) > MAX_UDS_BYTES:
        raise ValueError(f"is too long for a UNIX socket, at most {MAX_UDS_BYTES} bytes")
    return path


def _target(rest: str) -> HostPort:
    authority = rest.removesuffix("/")
    if re.search(r"[/?#@]", authority):
        raise ValueError("has more than a host and a port")
    if re.search(r":[0-9]+$", authority) is None:
        raise ValueError("has no port")
    try:
        return HostPort.parse(authority)
    except ValueError as error:
        raise ValueError(f"is no URL: {error}") from None
