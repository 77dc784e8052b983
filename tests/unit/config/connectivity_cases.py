"""Egress files, and what kube-apiserver makes of each: held against us, and against the program.

tests/interop/kube/test_egress_files.py gives every one of them to a real kube-apiserver.
The files client.crt and client.key, which belong together, and ca.crt are in the working directory.
"""

from __future__ import annotations

from enum import Enum

BETA = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n"
ALPHA = BETA.replace("v1beta1", "v1alpha1")
PAIR = "clientCert: client.crt, clientKey: client.key"
JSON = '"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration"'


class Verdict(Enum):
    """What kube-apiserver does with a file, and we."""

    ACCEPTED = "both accept it"
    REFUSED = "both refuse it"
    CRASHES = "it crashes, we refuse it"
    NEVER_DIALED = "it accepts what it can never dial, we refuse it"
    NOT_HERE = "it accepts it, we do not know what it means"
    OURS = "it refuses it, we accept it"


def selected(*items: str, head: str = BETA) -> str:
    return head + "egressSelections:\n" + "".join(f"- {item}\n" for item in items)


def direct(name: str) -> str:
    return f"{{name: {name}, connection: {{proxyProtocol: Direct}}}}"


def connected(connection: str) -> str:
    return selected(f"{{name: cluster, connection: {{{connection}}}}}")


def tcp(url: str, tls: str | None = PAIR, protocol: str = "HTTPConnect") -> str:
    config = "" if tls is None else f", tlsConfig: {{{tls}}}"
    return connected(f"proxyProtocol: {protocol}, transport: {{tcp: {{url: '{url}'{config}}}}}")


def uds(name: str, protocol: str = "GRPC") -> str:
    return connected(f"proxyProtocol: {protocol}, transport: {{uds: {{udsName: {name}}}}}")


_YES, _NO, _NEVER = Verdict.ACCEPTED, Verdict.REFUSED, Verdict.NEVER_DIALED
BOTH = "transport: {tcp: {url: 'https://h:1'}, uds: {udsName: x}}"

CASES: dict[str, tuple[Verdict, str]] = {
    # kube-apiserver's own tests of reading
    "empty": (_NO, ""),
    "only a comment": (_NO, "# nothing\n"),
    "unknown field": (_NO, selected("{name: etcd, connection: {proxyProtocol: Direct}, foo: {}}")),
    "unknown field without a value": (_NO, BETA + "foo:\n"),
    "duplicate field": (
        _NO,
        selected("{name: etcd, connection: {proxyProtocol: Direct}, connection: {}}"),
    ),
    "duplicate field, one null": (_NO, BETA + "egressSelections:\negressSelections: []\n"),
    "v1beta1 master": (_YES, selected(direct("master"))),
    "v1beta1 Master": (_NO, selected(direct("Master"))),
    "v1alpha1 master": (_YES, selected(direct("master"), head=ALPHA)),
    "v1alpha1 Master": (_NO, selected(direct("Master"), head=ALPHA)),
    "wrong kind": (_NO, "apiVersion: apps/v1\nkind: DaemonSet\n"),
    "its neighbour": (_NO, BETA.replace("EgressSelector", "Tracing")),
    "tls server name": (_YES, tcp("https://h:1", f"{PAIR}, tlsServerName: example.com")),
    # and of validating
    "direct": (_YES, selected(direct("controlplane"))),
    "direct with a transport": (_NO, connected("proxyProtocol: Direct, transport: {}")),
    "direct with a null transport": (_YES, connected("proxyProtocol: Direct, transport: null")),
    "http": (Verdict.CRASHES, tcp("http://127.0.0.1:8131", None)),
    "http with tls": (_NO, tcp("http://127.0.0.1:8131")),
    "https without tls": (_NO, tcp("https://127.0.0.1:8131", None)),
    "https without a certificate": (_NO, tcp("https://127.0.0.1:8131", "")),
    "https without a key": (_NO, tcp("https://127.0.0.1:8131", "clientCert: client.crt")),
    "tcp and uds": (_NO, connected(f"proxyProtocol: HTTPConnect, {BOTH}")),
    "http connect by uds": (_YES, uds("/run/x.sock", "HTTPConnect")),
    "grpc by tcp": (_NO, tcp("https://h:1", protocol="GRPC")),
    "grpc by uds": (_YES, uds("/run/x.sock")),
    "bad name": (_NO, selected(direct("invalid"))),
    "duplicates": (_NO, selected(direct("controlplane"), direct("controlplane"))),
    # names
    "upper case": (_YES, selected(direct("Cluster"), direct("ETCD"))),
    "duplicates without case": (_NO, selected(direct("cluster"), direct("CLUSTER"))),
    "master and controlplane": (
        _NO,
        selected(direct("master"), direct("controlplane"), head=ALPHA),
    ),
    "no name": (_NO, selected("{connection: {proxyProtocol: Direct}}")),
    "null name": (_NO, selected("{name: , connection: {proxyProtocol: Direct}}")),
    "name with a space": (_NO, selected(direct("'cluster '"))),
    "three": (_YES, selected(direct("cluster"), direct("etcd"), direct("controlplane"))),
    # what is there and what is not
    "no selections": (_YES, BETA),
    "null selections": (_YES, BETA + "egressSelections:\n"),
    "empty selections": (_YES, BETA + "egressSelections: []\n"),
    "a mapping of selections": (_NO, BETA + "egressSelections: {}\n"),
    "a null selection": (_NO, BETA + "egressSelections:\n-\n"),
    "no connection": (_NO, selected("{name: etcd}")),
    "no protocol": (_NO, connected("transport: {uds: {udsName: x}}")),
    "protocol in another case": (_NO, connected("proxyProtocol: direct")),
    "field in another case": (_NO, BETA + "egressselections: []\n"),
    "no transport": (_NO, connected("proxyProtocol: HTTPConnect")),
    "empty transport": (_NO, connected("proxyProtocol: HTTPConnect, transport: {}")),
    "empty tcp": (_NO, connected("proxyProtocol: HTTPConnect, transport: {tcp: {}}")),
    "null tcp": (
        _YES,
        connected("proxyProtocol: HTTPConnect, transport: {tcp: , uds: {udsName: x}}"),
    ),
    "grpc with both": (_YES, connected(f"proxyProtocol: GRPC, {BOTH}")),
    "grpc with both, one wrong": (
        _NO,
        connected("proxyProtocol: GRPC, transport: {tcp: {url: 5}, uds: {udsName: x}}"),
    ),
    "empty uds": (_NO, connected("proxyProtocol: GRPC, transport: {uds: {}}")),
    "no apiVersion": (_NO, "kind: EgressSelectorConfiguration\n"),
    "no kind": (_NO, "apiVersion: apiserver.k8s.io/v1beta1\n"),
    "v1": (_NO, BETA.replace("v1beta1", "v1")),
    "metadata": (_NO, BETA + "metadata: {name: x}\n"),
    "a name at the top": (_NO, BETA + "name: cluster\n"),
    "a list": (_NO, "- a\n"),
    "a word": (_NO, "a\n"),
    # urls
    "url without a port": (_NEVER, tcp("https://127.0.0.1")),
    "url without a host": (_NEVER, tcp("https://:8131")),
    "url with a port past the last": (_NEVER, tcp("https://h:99999")),
    "url with a port that is none": (_NO, tcp("https://h:abc")),
    "url with a space": (_NO, tcp("https://h h:1")),
    "url with a path": (_YES, tcp("https://h:1/a?b#c")),
    "url with a bad escape": (_NO, tcp("https://h:1/%zz")),
    "url with a bad escape in its query": (_YES, tcp("https://h:1/?%zz")),
    "url with a user": (_YES, tcp("https://u:p@h:1")),
    "url with a strange user": (_NO, tcp("https://u<p@h:1")),
    "url with IPv6": (_YES, tcp("https://[::1]:1")),
    "url with a zone": (Verdict.NOT_HERE, tcp("https://[fe80::1%25eth0]:1")),
    "url with IPv6 and no brackets": (_NO, tcp("https://::1:1")),
    "url in upper case": (_NO, tcp("HTTPS://h:1")),
    "url of another scheme": (_NO, tcp("grpc://h:1")),
    "url with an underscore": (_YES, tcp("https://a_b:1")),
    # files
    "ca": (_YES, tcp("https://h:1", f"{PAIR}, caBundle: ca.crt")),
    "no such ca": (_NO, tcp("https://h:1", f"{PAIR}, caBundle: nope.crt")),
    "a ca that is none": (_NO, tcp("https://h:1", f"{PAIR}, caBundle: client.key")),
    "no such key": (_NO, tcp("https://h:1", "clientCert: client.crt, clientKey: nope.key")),
    "key for certificate": (_NO, tcp("https://h:1", "clientCert: client.key, clientKey: ca.crt")),
    # YAML and JSON
    "JSON": (_YES, f'{{{JSON}, "egressSelections": []}}'),
    "JSON with tabs": (_YES, f'{{\n\t{JSON},\n\t"egressSelections": []}}'),
    "JSON and more": (_NO, f"{{{JSON}}} {{}}"),
    "JSON with a duplicate": (_NO, f'{{{JSON}, "kind": "EgressSelectorConfiguration"}}'),
    "byte order mark": (_YES, "\ufeff" + BETA),
    "a number for a name": (_NO, uds("5")),
    "a quoted number": (_YES, uds("'5'")),
    "a tagged number": (_YES, uds("!!str 5")),
    "yes": (_NO, uds("yes")),
    "y": (_NO, uds("y")),
    "octal": (_NO, uds("0o7")),
    "exponent": (_NO, uds("1e3")),
    "base 60": (_YES, uds("1:20")),
    "date": (_YES, uds("2001-01-01")),
    "equals": (_YES, uds("=")),
    "alias": (
        _YES,
        selected("{name: etcd, connection: &a {proxyProtocol: Direct}}",
                 "{name: cluster, connection: *a}"),
    ),
    "merge": (
        _YES,
        selected("{name: etcd, connection: &a {proxyProtocol: Direct}}",
                 "{name: cluster, connection: {<<: *a}}"),
    ),
    "merge with a duplicate": (
        _NO,
        selected("&a {name: etcd, connection: {proxyProtocol: Direct}}", "{<<: *a, name: cluster}"),
    ),
    "leading ---": (_YES, "---\n" + BETA),
    "two documents": (_YES, selected(direct("etcd")) + "---\n" + selected(direct("cluster"))),
    "an empty document first": (Verdict.OURS, "---\n---\n" + BETA),
}  # fmt: skip
