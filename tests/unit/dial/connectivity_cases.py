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
    NOT_HERE = "it accepts it, we refuse it on purpose"
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

# The files of kube-apiserver's own tests have two networks like this.
_PROXIED = (
    "connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://127.0.0.1:8131',"
    f" tlsConfig: {{caBundle: ca.crt, {PAIR}}}}}}}}}"
)
_EMPTY_TLS = "caBundle: '', clientKey: '', clientCert: ''"
_SOCKET = "uds: {udsName: /etc/srv/kubernetes/konnectivity/konnectivity-server.socket}"
_HTTP_AND_UDS = f"transport: {{tcp: {{url: 'http://127.0.0.1:8131'}}, {_SOCKET}}}"

CASES: dict[str, tuple[Verdict, str]] = {
    # kube-apiserver's own tests of reading, in their order; that of a file that is absent is in
    # test_connectivity_kube.py
    "empty": (_NO, ""),
    "unknown field": (
        _NO,
        selected("{name: etcd, connection: {proxyProtocol: Direct}, foo: {bar: baz}}"),
    ),
    "duplicate field": (
        _NO,
        selected(
            "{name: etcd, connection: {proxyProtocol: Direct},"
            " connection: {proxyProtocol: Indirect}}"
        ),
    ),
    "v1beta1": (
        _YES,
        selected(f"{{name: cluster, {_PROXIED}}}", f"{{name: controlplane, {_PROXIED}}}",
                 direct("etcd")),
    ),
    "v1beta1 with master": (
        _YES,
        selected(f"{{name: cluster, {_PROXIED}}}", f"{{name: master, {_PROXIED}}}",
                 direct("etcd")),
    ),
    "wrong type": (
        _NO,
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: proxy-agent}\n"
        "spec: {selector: {matchLabels: {k8s-app: konnectivity-agent}}}\n",
    ),
    "tls server name": (_YES, tcp("https://h:1", f"{PAIR}, tlsServerName: example.com")),
    # and of validating
    "direct": (_YES, selected(direct("controlplane"))),
    "direct with a transport": (_NO, connected("proxyProtocol: Direct, transport: {}")),
    "http connect by http": (Verdict.CRASHES, tcp("http://127.0.0.1:8131", None)),
    "https without tls": (_NO, tcp("https://127.0.0.1:8131", None)),
    "tcp and uds": (_NO, connected(f"proxyProtocol: HTTPConnect, {_HTTP_AND_UDS}")),
    "http connect by uds": (
        _YES,
        connected(f"proxyProtocol: HTTPConnect, transport: {{{_SOCKET}}}"),
    ),
    "grpc by tcp": (_NO, tcp("http://127.0.0.1:8131", _EMPTY_TLS, protocol="GRPC")),
    "grpc by uds": (_YES, connected(f"proxyProtocol: GRPC, transport: {{{_SOCKET}}}")),
    "bad name": (_NO, selected(direct("invalid"))),
    "duplicates": (_NO, selected(direct("controlplane"), direct("controlplane"))),
    # what is like those
    "only a comment": (_NO, "# nothing\n"),
    "unknown field without a value": (_NO, BETA + "foo:\n"),
    "duplicate field, one null": (_NO, BETA + "egressSelections:\negressSelections: []\n"),
    "wrong kind": (_NO, "apiVersion: apps/v1\nkind: DaemonSet\n"),
    "its neighbour": (_NO, BETA.replace("EgressSelector", "Tracing")),
    "direct with a null transport": (_YES, connected("proxyProtocol: Direct, transport: null")),
    "http with tls": (_NO, tcp("http://127.0.0.1:8131")),
    "https without a certificate": (_NO, tcp("https://127.0.0.1:8131", "")),
    "https with an empty certificate": (_NO, tcp("https://127.0.0.1:8131", _EMPTY_TLS)),
    "https without a key": (_NO, tcp("https://127.0.0.1:8131", "clientCert: client.crt")),
    "https tcp and uds": (_NO, connected(f"proxyProtocol: HTTPConnect, {BOTH}")),
    "grpc by https": (_NO, tcp("https://h:1", protocol="GRPC")),
    # names
    "v1beta1 master": (_YES, selected(direct("master"))),
    "v1beta1 Master": (_NO, selected(direct("Master"))),
    "v1alpha1 master": (_YES, selected(direct("master"), head=ALPHA)),
    "v1alpha1 Master": (_NO, selected(direct("Master"), head=ALPHA)),
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
    "protocol that YAML takes for a time": (_NO, connected("proxyProtocol: 1:20")),
    "protocol that YAML takes for a date": (_NO, connected("proxyProtocol: 2001-01-01")),
    "protocol with a tag": (_NO, connected("proxyProtocol: !a Indirect")),
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
    # sockets
    "socket with the longest name": (_YES, uds("/" + "x" * 106)),
    "socket with too long a name": (_NEVER, uds("/" + "x" * 107)),
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
    "JSON with a comment": (_NO, f"{{{JSON}}}\n# nothing\n"),
    "JSON with a last comma": (_NO, f"{{{JSON},}}"),
    "JSON without quotes": (_NO, "{" + ", ".join(BETA.splitlines()) + "}"),
    "JSON with NaN": (_NO, f'{{{JSON}, "egressSelections": NaN}}'),
    "no JSON, behind ---": (_YES, "--- {" + ", ".join(BETA.splitlines()) + "}"),
    "JSON and a document": (_NO, f"{{{JSON}}}\n---\n{{{JSON}}}"),
    "byte order mark": (_YES, "\ufeff" + BETA),
    "a number for a name": (_NO, uds("5")),
    "a quoted number": (_YES, uds("'5'")),
    "a tagged number": (_YES, uds("!!str 5")),
    "yes": (_NO, uds("yes")),
    "y": (_NO, uds("y")),
    "octal": (_NO, uds("0o7")),
    "exponent": (_NO, uds("1e3")),
    "a number with a zero in front": (_NO, uds("08")),
    "a number with a sign": (_NO, uds("+.5")),
    "a tagged letter": (_YES, uds("!!str y")),
    "half a character": (_NO, uds('"\\ud800"')),
    "tabs between words": (_YES, BETA.replace(": ", ":\t ").replace("\n", "\t# nothing\n")),
    "a tab that indents": (_NO, BETA + "egressSelections:\n\t[]\n"),
    "no space behind a colon": (_NO, selected("{name: etcd, connection:{proxyProtocol: Direct}}")),
    "no space behind a quoted key": (
        _YES,
        selected("{name: etcd, 'connection':{proxyProtocol: Direct}}"),
    ),
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
    "a bad document behind the first": (
        Verdict.NOT_HERE,
        selected(direct("etcd")) + "---\n" + selected(direct("invalid")),
    ),
    "two documents": (_YES, selected(direct("etcd")) + "---\n" + selected(direct("cluster"))),
    "an empty document first": (Verdict.OURS, "---\n---\n" + BETA),
}  # fmt: skip
