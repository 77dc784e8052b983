"""The fields of both kinds of connectivity configuration, declared once, and common parsing.

The parsers take field names and suggestions for misspelled ones from here,
``isthmus config explain`` prints them, and the reference page's tables are generated from them.
settings_egress_selector.py and settings_connectivity.py interpret the fields.

A part keeps the positions of what it read, so that later errors (two networks that
overlap, a missing file) have a position too.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from isthmus.dial.rules_connectivity import NetworkConfig
from isthmus.errors import ConfigError
from isthmus.text.addresses import IpNetwork
from isthmus.text.located_yaml import Fields, Located, near, short
from isthmus.text.suggestions import nearest

EGRESS_SELECTOR = "EgressSelectorConfiguration"
CONNECTIVITY_SERVICE = "ConnectivityServiceConfiguration"

_INDEX = re.compile(r"\[[^\]]*\]")
_MAX_PATH_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: its path without indices, and its type.

    ``required`` is empty, "always", or a condition. ``ours`` marks fields that only Isthmus
    reads.
    """

    path: str
    type: str
    about: str
    required: str = ""
    ours: bool = False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """The path without its last part; empty at the top."""
        return self.path.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentKind:
    """A kind of document: its name, versions, and fields in order."""

    name: str
    versions: tuple[str, ...]
    about: str
    fields: tuple[Field, ...]

    def children(self, path: str) -> tuple[Field, ...]:
        """The fields directly below a path."""
        return tuple(field for field in self.fields if field.parent == path)

    def keys(self, path: str) -> tuple[str, ...]:
        """The names of the fields directly below a path."""
        return tuple(field.name for field in self.children(path))

    def homes(self, name: str) -> tuple[str, ...]:
        """The paths below which a field of this name belongs; empty is the top."""
        return tuple(field.parent for field in self.fields if field.name == name)


def _fields(text: str) -> Iterator[Field]:
    """Read the declarations below: ``path | type | required | about``, a + before what is ours."""
    for line in " ".join(text.split()).split(" ; "):
        path, type_, required, about = (part.strip() for part in line.split("|"))
        yield Field(
            path=path.removeprefix("+"),
            type=type_,
            required=required,
            about=about,
            ours=path.startswith("+"),
        )


EGRESS = DocumentKind(
    name=EGRESS_SELECTOR,
    versions=("apiserver.k8s.io/v1beta1", "apiserver.k8s.io/v1alpha1"),
    about="Kubernetes's own, which kube-apiserver reads with --egress-selector-config-file",
    fields=tuple(
        _fields("""
apiVersion | string | always | apiserver.k8s.io/v1beta1 or apiserver.k8s.io/v1alpha1 ;
kind | string | always | EgressSelectorConfiguration ;
egressSelections | list of objects | | The networks; one that is not listed is dialed directly
    by kube-apiserver ;
egressSelections.name | string | always | controlplane, cluster or etcd, compared without case,
    each at most once. master, in lower case, is the old name of controlplane ;
egressSelections.connection | object | always | The way to the network ;
egressSelections.connection.proxyProtocol | string | always | Direct, HTTPConnect or GRPC
    (konnectivity's) ;
egressSelections.connection.transport | object | with HTTPConnect and GRPC | Where the server
    is. Must be absent with Direct ;
egressSelections.connection.transport.tcp | object | with HTTPConnect, unless there is uds |
    A server reached by TCP. GRPC cannot use it ;
egressSelections.connection.transport.tcp.url | string | always | https://HOST:PORT.
    kube-apiserver takes http:// and a URL without a port as well, but neither can work
    there, so both are refused here ;
egressSelections.connection.transport.tcp.tlsConfig | object | always | The files of the TLS
    client ;
egressSelections.connection.transport.tcp.tlsConfig.caBundle | string | | File with the
    authorities that are trusted; without it those of the system ;
egressSelections.connection.transport.tcp.tlsConfig.clientKey | string | always | File with the
    private key of the client ;
egressSelections.connection.transport.tcp.tlsConfig.clientCert | string | always | File with the
    certificate of the client ;
egressSelections.connection.transport.tcp.tlsConfig.tlsServerName | string | | The name that the
    server's certificate must have; without it the host of the url ;
egressSelections.connection.transport.uds | object | with GRPC, and with HTTPConnect unless there
    is tcp | A server reached by a UNIX socket ;
egressSelections.connection.transport.uds.udsName | string | always | Path of the socket, without
    unix://
""")
    ),
)

SERVICE = DocumentKind(
    name=CONNECTIVITY_SERVICE,
    versions=("connectivityservice.k8s.io/v1alpha1",),
    about="KEP-1281's: one network in each document, separated by ---",
    fields=tuple(
        _fields("""
apiVersion | string | always | connectivityservice.k8s.io/v1alpha1 ;
kind | string | always | ConnectivityServiceConfiguration ;
connectionService | object | always | The network that this document is about ;
connectionService.name | string | always | Name of the network, compared without case: at most 63
    letters, digits, dots, hyphens and underscores. master and controlplane are the same network ;
connectionService.connection | object | always | The way to the network ;
connectionService.connection.type | string | always | direct, or grpc (KEP-1281's protocol:
    a stream of Payload for each connection); ours are http-connect, konnectivity (its stream of
    Packet, which EgressSelectorConfiguration calls GRPC) and custom ;
connectionService.connection.url | string | with grpc, http-connect and konnectivity | Where the
    server is: grpc://HOST:PORT (for grpc and konnectivity) and https://HOST:PORT are TLS,
    unix:///PATH is a UNIX socket, http://HOST:PORT is plain TCP and needs insecure ;
connectionService.connection.caBundle | string | | File with the authorities that are trusted;
    without it those of the system ;
+connectionService.connection.clientCert | string | with clientKey | File with the certificate of
    the client. Servers of Isthmus ask for one ;
+connectionService.connection.clientKey | string | with clientCert | File with the private key of
    the client ;
+connectionService.connection.tlsServerName | string | | The name that the server's certificate
    must have; without it the host of the url ;
+connectionService.connection.insecure | boolean | with http:// | true says that plain TCP,
    without encryption and without proof of who is who, is meant ;
+connectionService.connection.dialer | string | with custom | Name of a dialer that another
    package registered as an entry point of the group isthmus.dialers ;
+connectionService.connection.options | map of strings | | What the custom dialer is given ;
+connectionService.cidrs | list of strings | | Networks in CIDR notation, or addresses, that belong
    to this network. No two may overlap ;
+connectionService.hosts | list of strings | | Host names that belong to this network; one that
    begins with a dot stands for all names that end with it
""")
    ),
)

KINDS = (SERVICE, EGRESS)
BY_KIND = {kind.name: kind for kind in KINDS}


def explain(asked: str) -> str:
    """The description of a field; ``asked`` is a dotted path, optionally starting with its kind.

    Raises:
        ConfigError: there is no such field; suggests the nearest.
    """
    path = _INDEX.sub("", asked).strip(".")
    if len(path) > _MAX_PATH_CHARS:
        raise ConfigError(f"there is no field with a path of {len(path)} characters")
    first, _, rest = path.partition(".")
    kinds = [BY_KIND[first]] if first in BY_KIND else list(KINDS)
    path = rest if first in BY_KIND else path
    if not path:
        return "\n".join(_page(kind, None) for kind in kinds)
    found = [(kind, field) for kind in kinds for field in kind.fields if field.path == path]
    if not found:
        raise ConfigError(f"there is no field {path!r}{_nearest_path(path, kinds)}")
    return "\n".join(_page(kind, field) for kind, field in found)


def _nearest_path(path: str, kinds: Sequence[DocumentKind]) -> str:
    known = list(dict.fromkeys(field.path for kind in kinds for field in kind.fields))
    ends = [one for one in known if one.lower().endswith(f".{path.lower()}")]
    if ends:
        return f", did you mean {' or '.join(ends)}?"
    return nearest(path, [*known, *BY_KIND])


def _page(kind: DocumentKind, field: Field | None) -> str:
    lines = [f"KIND:     {kind.name}", f"VERSION:  {', '.join(kind.versions)}", ""]
    if field is not None:
        lines += [f"FIELD:    {field.path} <{field.type}>{_marks(field)}", ""]
    lines += ["DESCRIPTION:", *_wrapped(field.about if field else kind.about, 4)]
    children = kind.children(field.path if field else "")
    if children:
        lines += ["", "FIELDS:"]
    for child in children:
        lines += [f"    {child.name} <{child.type}>{_marks(child)}", *_wrapped(child.about, 8)]
    return "\n".join([*lines, ""])


def _marks(field: Field) -> str:
    required = f", required {field.required}".removesuffix(" always") if field.required else ""
    return required + (", an addition of Isthmus" if field.ours else "")


def _wrapped(text: str, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(f"{text}.", 92, initial_indent=space, subsequent_indent=space)


def table(kind: DocumentKind) -> str:
    """The fields as a table in Markdown, for the reference page."""
    lines = ["| field | type | required | |", "|---|---|---|---|"]
    for field in kind.fields:
        about = field.about + (" *(ours)*" if field.ours else "")
        lines.append(f"| `{field.path}` | {field.type} | {field.required} | {about} |")
    return "\n".join([*lines, ""])


MAX_UDS_BYTES = 107  # sun_path without its final NUL


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file that a field names; not checked here."""

    at: Located
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPart:
    """The files of one TLS client, each None if not given."""

    ca: NamedFile | None = None
    cert: NamedFile | None = None
    key: NamedFile | None = None

    @property
    def files(self) -> tuple[NamedFile, ...]:
        """The given files."""
        return tuple(file for file in (self.ca, self.cert, self.key) if file is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A network from one document, with the positions of values that may conflict with others."""

    network: NetworkConfig
    at: Located
    cidrs: tuple[tuple[IpNetwork, Located], ...] = ()
    hosts: tuple[tuple[str, Located], ...] = ()
    tls: TlsPart | None = None
    connection_at: Located | None = None
    warnings: tuple[str, ...] = ()


def fields_of(node: Located, kind: DocumentKind, path: str, required: Sequence[str] = ()) -> Fields:
    """The fields of a mapping at a path of its kind; a null counts as not given.

    For a field that belongs elsewhere in the kind, the error says where.
    """
    known = kind.keys(path)
    strays = []
    for key, _ in node.node.value if node.is_mapping else ():
        name = key.value if isinstance(key, yaml.ScalarNode) else None
        if isinstance(name, str) and name not in known and name not in strays:
            homes = kind.homes(name)
            if homes and not near(name, known):
                place = " or ".join(home or "the top of the document" for home in homes)
                here = Located(key, node.path, node.errors)
                here.error(f"unknown key {short(name)}, it belongs to {place}")
                strays.append(name)
    found = node.mapping([*known, *strays], required=required)
    given = Fields({name: at for name, at in found.items() if name not in strays})
    for name in [name for name, at in given.items() if at.kind == "nothing"]:
        if name in required:
            given[name].error("is missing")
        del given[name]
    return given


def missing(node: Located, name: str, why: str) -> None:
    """Record that a field is missing."""
    node.inside(node.node, name).error(f"is missing: {why}")


def file_of(found: Fields, name: str, path: str) -> NamedFile | None:
    """The file that a field names; None without one."""
    return NamedFile(at=found[name], path=path) if path else None


def choice(node: Located, text: str, words: Sequence[str], hints: dict[str, str]) -> str:
    """The word if it is one of these; otherwise records an error with a suggestion."""
    if text in words:
        return text
    if not text and not node.is_text:  # already reported
        return ""
    folded = {word.lower(): word for word in words}
    meant = hints.get(text) or hints.get(text.lower()) or folded.get(text.lower())
    hint = f", did you mean {meant}?" if meant else near(text, words)
    listed = ", ".join(words[:-1]) + f" or {words[-1]}"
    node.error(f"must be {listed}, not {short(text)}{hint}")
    return ""
