"""The values of an installation: what the chart and ``isthmus manifest all`` can be told.

Each is declared here and nowhere else: its path, what it takes, its default and its help. The
chart's values.yaml, its schema and the reference page follow from that, and so does reading a file
of values. What becomes of them is installation*.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from isthmus.manifests.settings import AUDIENCE
from isthmus.manifests.settings_server import (
    HEALTHY,
    KUBECONFIG_USER,
    LEASE_NAMESPACE,
    READY,
    SERVER_NAME,
    SERVICE_TYPES,
    SOCKET_PATH,
    UNPRIVILEGED,
)
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import Option, options_of
from isthmus.text.located_yaml import Loader, Located, compose, short

Tree = dict[str, Any]
_MOST = 256
_GLOBAL = "global"  # Helm hands this to every chart


class ValueShape(Enum):
    """What a value is; the value is the word shown for it."""

    TEXT = "text"
    WHOLE = "number"
    YES_NO = "true or false"
    TEXTS = "list of texts"
    WORDS = "map of texts"
    OBJECT = "as in Kubernetes"
    OBJECTS = "list as in Kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value; ``pattern`` is for a text, or for each of several."""

    path: str
    default: Any
    help: str
    shape: ValueShape
    choices: tuple[str, ...] = ()
    pattern: str = ""
    #: Flags that a list of arguments may not have, as patterns.
    refused: tuple[str, ...] = ()
    low: int = 0
    high: int = 65535

    @property
    def refusal(self) -> str:
        """A pattern for what may not be there; empty for nothing."""
        return f"^--({'|'.join(self.refused)})(=|$)" if self.refused else ""

    def schema(self) -> Tree:
        """As in JSON Schema."""
        text: Tree = {"type": "string", **({"pattern": self.pattern} if self.pattern else {})}
        if self.refused:
            text["not"] = {"pattern": self.refusal}
        if self.choices:
            text = {"enum": list(self.choices)}
        found: Mapping[ValueShape, Tree] = {
            ValueShape.TEXT: text,
            ValueShape.WHOLE: {"type": "integer", "minimum": self.low, "maximum": self.high},
            ValueShape.YES_NO: {"type": "boolean"},
            ValueShape.TEXTS: {"type": "array", "items": text},
            ValueShape.WORDS: {"type": "object", "additionalProperties": {"type": "string"}},
            ValueShape.OBJECT: {"type": "object"},
            ValueShape.OBJECTS: {"type": "array", "items": {"type": "object"}},
        }
        return {"description": self.help, **found[self.shape]}

    def read(self, node: Located) -> Any:
        """What a document says; what is wrong is noted there."""
        match self.shape:
            case ValueShape.TEXT:
                return self._text(node)
            case ValueShape.WHOLE:
                return node.integer(self.low, self.high)
            case ValueShape.YES_NO:
                return node.boolean()
            case ValueShape.TEXTS:
                return [self._text(each) for each in node.items(most=_MOST)]
            case ValueShape.WORDS:
                entries = node.entries(most=_MOST)
                return {key: entry.value.text() or "" for key, entry in entries.items()}
            case ValueShape.OBJECT:
                return {key: _plain(entry.value) for key, entry in node.entries(most=_MOST).items()}
            case ValueShape.OBJECTS:
                return [_mapping(each) for each in node.items(most=_MOST)]

    def _text(self, node: Located) -> str:
        text = node.text()
        if text is None:
            return ""
        if self.choices and text not in self.choices:
            named = " or ".join(short(each) for each in self.choices)
            node.error(f"must be {named}, not {short(text)}")
        elif self.pattern and not re.search(_to_the_end(self.pattern), text, re.ASCII):
            node.error(f"{short(text)} does not match {self.pattern}")
        elif self.refusal and re.search(self.refusal, text):
            node.error(f"{text.partition('=')[0]} is not for here: {self.help}")
        return text


def _to_the_end(pattern: str) -> str:
    """A pattern of JSON Schema, whose ``$`` is the end, and not a line's end before it."""
    return pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern


def _mapping(node: Located) -> Tree:
    return {key: _plain(entry.value) for key, entry in node.entries(most=_MOST).items()}


def _plain(node: Located) -> Any:
    if node.is_mapping:
        return _mapping(node)
    if node.is_list:
        return [_plain(each) for each in node.items(most=_MOST)]
    maker = Loader("")
    try:
        return maker.construct_object(node.node)
    finally:
        maker.dispose()


def names_of(options: Iterable[Option], *attributes: str) -> tuple[str, ...]:
    """The flags of these settings, whatever they are called, and aliases."""
    found = [each for each in options if each.attribute in attributes]
    assert len(found) == len(set(attributes)), attributes
    return tuple(sorted({name for each in found for name in (each.flag, *each.aliases)}))


def leaves(values: Iterable[Value]) -> Iterator[tuple[tuple[str, ...], Value]]:
    """Each value by the parts of its path."""
    for value in values:
        yield tuple(value.path.split(".")), value


def defaults(values: Iterable[Value]) -> Tree:
    """Every value's default, as a tree."""
    found: Tree = {}
    for path, value in leaves(values):
        put(found, path, value.default)
    return found


def put(tree: Tree, path: tuple[str, ...], what: Any) -> None:
    """Set one value of a tree."""
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = what


def read(text: str, name: str, values: Iterable[Value]) -> Tree:
    """What a file of values says, and nothing else; ``name`` is what messages call it.

    Raises:
        ConfigError: one line for each thing that is wrong, ``name:line:column: path: what``.
    """
    root = compose(text, name, expected="values are expected")
    found = _read(root, dict(leaves(values)), top=True)
    root.errors.raise_any()
    return found


def _read(node: Located, known: Mapping[tuple[str, ...], Value], *, top: bool = False) -> Tree:
    heads = dict.fromkeys(path[0] for path in known)
    fields = node.mapping((*heads, *((_GLOBAL,) if top else ())))
    found: Tree = {}
    for head, field in fields.items():
        if head == _GLOBAL and top:
            continue
        below = {path[1:]: value for path, value in known.items() if path[0] == head}
        leaf = below.get(())
        found[head] = leaf.read(field) if leaf else _read(field, below)
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """One tree over another, as Helm does it: maps by their keys, everything else whole."""
    found = dict(base)
    for key, what in over.items():
        there = found.get(key)
        if isinstance(there, dict) and isinstance(what, dict):
            found[key] = merged(there, what)
        else:
            found[key] = what
    return found


TOKEN, CERTIFICATE = "token", "certificate"
KINDS = ("daemonset", "deployment", "staticPod", "sidecar")
AGENT_NAME = "isthmus-agent"

_NAME = "^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$"
_OBJECT = "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
_OBJECT_OR_NONE = "^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$"
_FLAG = "^--[a-z][a-z0-9-]*(=.*)?$"
_PATH = "^(/[A-Za-z0-9._-]+){2,}$"
# What Kubernetes reads as a field of the pod is written so, and a dollar means nothing else here.
_WITH_FIELDS = r"^[^$ ]*(\$\((NODE_NAME|NODE_IP|POD_NAME|POD_IP)\)[^$ ]*)*$"
_PLAIN = "^[^$ ]*$"
_CIDR = "^[0-9a-fA-F.:]+/[0-9]{1,3}$"
_SERVER_SET = names_of(
    options_of(ServerSettings),
    *("mode", "uds_name", "server_port", "server_cert", "server_key"),
    *("agent_port", "cluster_cert", "cluster_key", "proxy_strategies"),
    *("health_port", "health_bind_address", "admin_port", "graceful_shutdown_timeout_s"),
    *("server_id", "server_count", "advertise_agent_address", "enable_lease_controller"),
    *("lease_namespace", "lease_label", "agent_namespace", "agent_service_account"),
    *("authentication_audience", "kubeconfig", "http_connect_uds_name", "http_connect_port"),
)
#: A pod has a read-only root; what goes to standard output (-) is kept by the kubelet.
_AUDIT_FILE = "audit-log-path=[^-].*"
_AGENT_SET = names_of(
    options_of(AgentSettings),
    *("proxy_server_host", "proxy_server_port", "proxy_server_name", "ca_cert", "agent_cert"),
    *("agent_key", "agent_id", "agent_identifiers", "service_account_token_path"),
    *("health_server_host", "health_server_port", "admin_server_port"),
    *("graceful_shutdown_timeout_s", "count_server_leases", "lease_namespace"),
    *("lease_label_selector", "kubeconfig"),
)
#: For nodes that reach kube-apiserver through their agent: a static pod or a unit, never a pod
#: that the kubelet gets from kube-apiserver (KEP-2025, "Deployment Model").
_NODE_TRAFFIC = names_of(
    options_of(AgentSettings), "target", "bind_address", "bind_interface", "uplink_interface"
)


def _text(path: str, default: str, help: str, **more: Any) -> Value:
    return Value(path=path, default=default, help=help, shape=ValueShape.TEXT, **more)


def _whole(path: str, default: int, help: str, low: int = 0, high: int = 65535) -> Value:
    return Value(path=path, default=default, help=help, shape=ValueShape.WHOLE, low=low, high=high)


def _yes(path: str, default: bool, help: str) -> Value:
    return Value(path=path, default=default, help=help, shape=ValueShape.YES_NO)


def _texts(path: str, default: list[str], help: str, **more: Any) -> Value:
    return Value(path=path, default=default, help=help, shape=ValueShape.TEXTS, **more)


def _words(path: str, help: str) -> Value:
    return Value(path=path, default={}, help=help, shape=ValueShape.WORDS)


def _object(path: str, help: str) -> Value:
    return Value(path=path, default={}, help=help, shape=ValueShape.OBJECT)


def _pods(who: str, args: str, refused: tuple[str, ...]) -> tuple[Value, ...]:
    """What pods of both programs can be told."""
    return (
        _texts(f"{who}.extraArgs", [], args, pattern=_FLAG, refused=refused),
        _text(f"{who}.extraSecret.name", "", "Secret with further files that flags name"),
        _text(
            f"{who}.extraSecret.mountPath",
            "/etc/isthmus/files",
            "Directory that it is mounted as",
            pattern=_PATH,
        ),
        _object(f"{who}.resources", "Requests and limits of the container; empty: the usual ones"),
        _words(f"{who}.nodeSelector", "Labels of the nodes to run on; empty: those of the kind"),
        Value(
            path=f"{who}.tolerations",
            default=[],
            help="Taints that do not matter; empty: those of the kind",
            shape=ValueShape.OBJECTS,
        ),
        _object(f"{who}.affinity", "Affinity of the pods"),
        _text(f"{who}.priorityClassName", "", "Priority class; empty: that of the kind"),
        _words(f"{who}.podLabels", "Further labels of the pods"),
        _words(f"{who}.podAnnotations", "Annotations of the pods"),
    )


_SHARED = (
    _text("image.repository", "isthmus", "Image, without tag", pattern="^[A-Za-z0-9][^@ ]*$"),
    _text("image.tag", "", "Tag; empty: the version of the chart's programs"),
    _text("image.digest", "", "Digest, such as sha256:…; with it the tag is for people only"),
    _text(
        "image.pullPolicy",
        "IfNotPresent",
        "When nodes get the image",
        choices=("IfNotPresent", "Always", "Never"),
    ),
    _texts("imagePullSecrets", [], "Names of Secrets for the registry", pattern=_OBJECT),
    _whole("runAs", UNPRIVILEGED, "User and group of the programs, never root", 1, 2**31 - 1),
    _text(
        "auth.mode",
        TOKEN,
        "How agents prove who they are: by tokens of their service account, or by certificates",
        choices=(TOKEN, CERTIFICATE),
    ),
    _text("auth.audience", AUDIENCE, "Audience of the tokens", pattern="^[^$ ]+$"),
    _text("auth.agentNamespace", "", "Namespace of agents; empty: the release's", pattern=_PLAIN),
    _text(
        "certificates.caConfigMap",
        "isthmus-ca",
        "ConfigMap with ca.crt: the authorities that agents and servers know each other by",
        pattern=_OBJECT,
    ),
    _text(
        "certificates.clientCaConfigMap",
        "",
        "ConfigMap with ca.crt: the authorities of kube-apiserver's certificate, of a deployment; "
        "empty: those of caConfigMap, and an agent's certificate opens the frontend, too, which a "
        "later version will refuse",
        pattern=_OBJECT_OR_NONE,
    ),
)
_SERVER = (
    _yes("server.enabled", True, "Whether there is a server"),
    _text(
        "server.kind",
        "daemonset",
        "daemonset: on the nodes of the control plane, by a UNIX socket. deployment: anywhere, by "
        "TCP. staticPod and sidecar: a ConfigMap with what to place on nodes, or to patch "
        "kube-apiserver's Deployment with",
        choices=KINDS,
    ),
    _text("server.name", SERVER_NAME, "Name of everything that is the server's", pattern=_NAME),
    _whole("server.replicas", 2, "How many pods of a deployment", 1, 100),
    _yes("server.hostNetwork", True, "Whether a daemonset runs in the network of its nodes"),
    _text(
        "server.frontend.socket",
        SOCKET_PATH,
        "UNIX socket for kube-apiserver, in a directory of the node; of all but a deployment",
        pattern=_PATH,
    ),
    _whole("server.frontend.port", 8090, "TCP port for kube-apiserver, of a deployment", 1),
    _text(
        "server.frontend.secret",
        "isthmus-frontend",
        "Secret with tls.crt and tls.key for that port",
        pattern=_OBJECT,
    ),
    _text(
        "server.secret",
        SERVER_NAME,
        "Secret with tls.crt and tls.key that agents are shown",
        pattern=_OBJECT,
    ),
    _whole("server.agentPort", 8091, "Port for agents", 1),
    _whole("server.healthPort", 8092, "Port of probes and metrics", 1),
    _whole("server.adminPort", 8095, "Port for operators, on loopback", 1),
    _texts(
        "server.strategies",
        ["default"],
        "How agents are chosen, in this order",
        choices=("default", "destHost", "defaultRoute"),
    ),
    _whole("server.count", 0, "How many servers there are, where no Leases count them", 0, 100),
    _yes("server.leases.enabled", True, "Whether servers are counted by Leases"),
    _text(
        "server.leases.namespace",
        "",
        "Namespace of the Leases, which has to be there, and in which the server may write every "
        f"Lease; empty: the release's, or {LEASE_NAMESPACE}, which is made, where that is default "
        "or kube-*",
        pattern=_OBJECT_OR_NONE,
    ),
    _text(
        "server.leases.label", "k8s-app=konnectivity-server", "Label of the Leases", pattern=_PLAIN
    ),
    _text(
        "server.leases.advertise",
        "ipv4",
        "Family of the pods' addresses, by which servers hand agents on to each other; empty: they "
        "do not",
        choices=("", "ipv4", "ipv6"),
    ),
    _text(
        "server.kubeconfig.secret",
        "",
        "Secret with kubeconfig, of the cluster that has tokens and Leases; empty: this one, as "
        "the pods' account",
    ),
    _text(
        "server.kubeconfig.user",
        KUBECONFIG_USER,
        "User of the kubeconfig that a node has for a staticPod",
    ),
    _whole("server.gracefulShutdownSeconds", 25, "How long open tunnels may take to end", 0, 3600),
    _text(
        "server.readiness",
        READY,
        "/readyz: ready when there is an agent. /healthz: always",
        choices=(READY, HEALTHY),
    ),
    _text(
        "server.service.type",
        "ClusterIP",
        "Type of the Service for agents",
        choices=SERVICE_TYPES,
    ),
    _words("server.service.annotations", "Annotations of the Service for agents"),
    _yes("server.podDisruptionBudget.enabled", True, "Whether a deployment has a budget"),
    _yes(
        "server.networkPolicy.enabled",
        True,
        "Whether pods with a network of their own have a NetworkPolicy",
    ),
    _texts(
        "server.networkPolicy.allowCidrs",
        [],
        "Networks that agents come from; empty: everywhere",
        pattern=_CIDR,
    ),
    _text(
        "server.networkPolicy.apiserverNamespace",
        "",
        "Namespace of kube-apiserver's pods, which may reach the frontend of a deployment; empty: "
        "the release's, where apiserverCidrs has nothing. Pods in the network of a node have its "
        "addresses and no namespace",
        pattern=_OBJECT_OR_NONE,
    ),
    _texts(
        "server.networkPolicy.apiserverCidrs",
        [],
        "Networks from which kube-apiserver may reach the frontend of a deployment",
        pattern=_CIDR,
    ),
    _text("server.sidecar.workload", "kube-apiserver", "Deployment of kube-apiserver"),
    _text("server.sidecar.container", "kube-apiserver", "Container of kube-apiserver"),
    _text(
        "server.sidecar.selector",
        "app=kube-apiserver",
        "Label of kube-apiserver's pods, for the Service for agents",
        pattern="^[A-Za-z0-9./_-]+=[A-Za-z0-9._-]+$",
    ),
    *_pods(
        "server",
        "Further flags of the server, --flag=value each; an audit log to standard output alone "
        "(--audit-log-path=-), because pods have nowhere to write",
        (*_SERVER_SET, _AUDIT_FILE),
    ),
)
_AGENT = (
    _yes("agent.enabled", True, "Whether there are agents"),
    _text(
        "agent.kind",
        "daemonset",
        "daemonset: on every node. deployment: a few, for what every node of the cluster reaches",
        choices=KINDS[:2],
    ),
    _text("agent.name", AGENT_NAME, "Name of everything that is the agents'", pattern=_NAME),
    _whole("agent.replicas", 2, "How many pods of a deployment", 1, 1000),
    _yes("agent.hostNetwork", True, "Whether a daemonset runs in the network of its nodes"),
    _text(
        "agent.dnsPolicy",
        "",
        "How names are resolved; empty: as the cluster does",
        choices=("", "Default", "ClusterFirst", "ClusterFirstWithHostNet"),
    ),
    _texts(
        "agent.servers.hosts",
        [],
        "Hosts of the servers; empty: the Service of this release's server",
        pattern="^[^$ ]+$",
    ),
    _whole("agent.servers.port", 8091, "Their port", 1),
    _text("agent.servers.name", "", "Name in their certificate; empty: the host", pattern=_PLAIN),
    _text(
        "agent.secret",
        AGENT_NAME,
        "Secret with tls.crt and tls.key, with auth.mode certificate",
        pattern=_OBJECT,
    ),
    _text(
        "agent.identifiers",
        "",
        "What each agent stands for, such as ipv4=$(NODE_IP)&host=$(NODE_NAME)",
        pattern=_WITH_FIELDS,
    ),
    _yes(
        "agent.countServerLeases",
        False,
        "Whether agents count the servers' Leases themselves; our servers tell them",
    ),
    _whole("agent.healthPort", 8093, "Port of probes and metrics", 1),
    _whole("agent.adminPort", 8094, "Port for operators, on loopback", 1),
    _whole("agent.gracefulShutdownSeconds", 25, "How long open tunnels may take to end", 0, 3600),
    _text("agent.httpsProxy", "", "URL of a proxy to the servers", pattern=_PLAIN),
    _texts("agent.noProxy", [], "Hosts that are reached without it", pattern=_PLAIN),
    _yes("agent.podDisruptionBudget.enabled", True, "Whether a deployment has a budget"),
    _yes(
        "agent.networkPolicy.enabled",
        True,
        "Whether pods with a network of their own have a NetworkPolicy",
    ),
    _texts(
        "agent.networkPolicy.allowCidrs",
        [],
        "Networks that agents may dial, besides DNS and the servers' port; empty: everywhere",
        pattern=_CIDR,
    ),
    *_pods(
        "agent",
        "Further flags of the agents, --flag=value each; none with --target or --bind-address, "
        "because the kubelet gets these pods from kube-apiserver, which such a node reaches only "
        "through its agent (isthmus manifest agent --as=static-pod or --as=systemd)",
        (*_AGENT_SET, *_NODE_TRAFFIC),
    ),
)
_MONITORING = (
    _yes("monitoring.podMonitor.enabled", False, "Whether a PodMonitor finds server and agents"),
    _text("monitoring.podMonitor.interval", "30s", "How often metrics are read"),
    _words("monitoring.podMonitor.labels", "Labels that Prometheus looks for"),
    _yes("monitoring.prometheusRule.enabled", False, "Whether there are our alerts"),
    _words("monitoring.prometheusRule.labels", "Labels that Prometheus looks for"),
)
VALUES: tuple[Value, ...] = (*_SHARED, *_SERVER, *_AGENT, *_MONITORING)
#: What the groups of values are about.
SECTIONS: Mapping[str, str] = {
    "image": "The image of both programs",
    "auth": "How agents prove who they are",
    "certificates": "What both sides trust",
    "server": "The server, beside the control plane",
    "server.frontend": "Where kube-apiserver comes in",
    "server.leases": "How servers know of each other",
    "server.kubeconfig": "Where tokens and Leases are",
    "server.service": "Where agents find the server",
    "server.sidecar": "Of the kind sidecar only",
    "agent": "The agents, in the network that the server cannot reach",
    "agent.servers": "Whom agents connect to",
    "monitoring": "For the Prometheus operator",
}
