"""The values of the server in the chart."""

from __future__ import annotations

from isthmus.manifests.chart_parts import (
    health_value,
)
from isthmus.manifests.chart_values import (
    CIDR,
    NAME,
    OBJECT,
    OBJECT_OR_NONE,
    PATH,
    PLAIN,
    names_of,
    pod_values,
    text_value,
    texts_value,
    whole_value,
    words_value,
    yes_value,
)
from isthmus.manifests.settings import DAEMON_SET, DEPLOYMENT, LEASE_NAMESPACE, STATIC_POD
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.settings_manifest import (
    HEALTHY,
    KUBECONFIG_USER,
    READY,
    SERVER_NAME,
    SERVICE_TYPES,
    SIDECAR,
    SOCKET_PATH,
)
from isthmus.settings.options import options_of

#: The kinds of servers, and the forms of ``isthmus manifest server`` that they are.
FORMS = {
    "daemonset": DAEMON_SET,
    "deployment": DEPLOYMENT,
    "staticPod": STATIC_POD,
    "sidecar": SIDECAR,
}
#: What the groups of values are about.
SECTIONS = {
    "server": "The server, beside the control plane",
    "server.frontend": "Where kube-apiserver comes in",
    "server.leases": "How servers know of each other",
    "server.kubeconfig": "Where tokens and Leases are",
    "server.service": "Where agents find the server",
    "server.sidecar": "Of the kind sidecar only",
}

_SERVER_SET = names_of(
    options_of(ServerSettings),
    *("mode", "uds_name", "server_port", "server_cert", "server_key"),
    *("agent_port", "cluster_cert", "cluster_key", "proxy_strategies"),
    *("health_port", "health_bind_address", "health_cert", "health_key"),
    *("admin_port", "graceful_shutdown_timeout_s"),
    *("server_id", "server_count", "advertise_agent_address", "enable_lease_controller"),
    *("lease_namespace", "lease_label", "agent_namespace", "agent_service_account"),
    *("authentication_audience", "kubeconfig", "http_connect_uds_name", "http_connect_port"),
)
#: A pod has a read-only root; what goes to standard output (-) is kept by the kubelet.
_AUDIT_FILE = "audit-log-path=[^-].*"
VALUES = (
    yes_value("server.enabled", True, "Whether there is a server"),
    text_value(
        "server.kind",
        "daemonset",
        "daemonset: on the nodes of the control plane, by a UNIX socket. deployment: anywhere, by "
        "TCP. staticPod and sidecar: a ConfigMap with what to place on nodes, or to patch "
        "kube-apiserver's Deployment with",
        choices=tuple(FORMS),
    ),
    text_value("server.name", SERVER_NAME, "Name of everything that is the server's", pattern=NAME),
    whole_value("server.replicas", 2, "How many pods of a deployment", 1, 100),
    yes_value("server.hostNetwork", True, "Whether a daemonset runs in the network of its nodes"),
    text_value(
        "server.frontend.socket",
        SOCKET_PATH,
        "UNIX socket for kube-apiserver, in a directory of the node; of all but a deployment",
        pattern=PATH,
    ),
    whole_value("server.frontend.port", 8090, "TCP port for kube-apiserver, of a deployment", 1),
    text_value(
        "server.frontend.secret",
        "isthmus-frontend",
        "Secret with tls.crt and tls.key for that port",
        pattern=OBJECT,
    ),
    text_value(
        "server.secret",
        SERVER_NAME,
        "Secret with tls.crt and tls.key that agents are shown",
        pattern=OBJECT,
    ),
    whole_value("server.agentPort", 8091, "Port for agents", 1),
    whole_value("server.healthPort", 8092, "Port of probes and metrics", 1),
    health_value("server"),
    whole_value("server.adminPort", 8095, "Port for operators, on loopback", 1),
    texts_value(
        "server.strategies",
        ["default"],
        "How agents are chosen, in this order",
        choices=("default", "destHost", "defaultRoute"),
    ),
    whole_value(
        "server.count", 0, "How many servers there are, where no Leases count them", 0, 100
    ),
    yes_value("server.leases.enabled", True, "Whether servers are counted by Leases"),
    text_value(
        "server.leases.namespace",
        "",
        "Namespace of the Leases, which has to be there, and in which the server may write every "
        f"Lease; empty: the release's, or {LEASE_NAMESPACE}, which is made, where that is default "
        "or kube-*",
        pattern=OBJECT_OR_NONE,
    ),
    text_value(
        "server.leases.label", "k8s-app=konnectivity-server", "Label of the Leases", pattern=PLAIN
    ),
    text_value(
        "server.leases.advertise",
        "ipv4",
        "Family of the pods' addresses, by which servers hand agents on to each other; empty: they "
        "do not",
        choices=("", "ipv4", "ipv6"),
    ),
    text_value(
        "server.kubeconfig.secret",
        "",
        "Secret with kubeconfig, of the cluster that has tokens and Leases; empty: this one, as "
        "the pods' account",
    ),
    text_value(
        "server.kubeconfig.user",
        KUBECONFIG_USER,
        "User of the kubeconfig that a node has for a staticPod",
    ),
    whole_value(
        "server.gracefulShutdownSeconds", 25, "How long open tunnels may take to end", 0, 3600
    ),
    text_value(
        "server.readiness",
        READY,
        "/readyz: ready when there is an agent. /healthz: always",
        choices=(READY, HEALTHY),
    ),
    text_value(
        "server.service.type",
        "ClusterIP",
        "Type of the Service for agents",
        choices=SERVICE_TYPES,
    ),
    words_value("server.service.annotations", "Annotations of the Service for agents"),
    yes_value("server.podDisruptionBudget.enabled", True, "Whether a deployment has a budget"),
    yes_value(
        "server.networkPolicy.enabled",
        True,
        "Whether pods with a network of their own have a NetworkPolicy",
    ),
    texts_value(
        "server.networkPolicy.allowCidrs",
        [],
        "Networks that agents come from; empty: everywhere",
        pattern=CIDR,
    ),
    text_value(
        "server.networkPolicy.apiserverNamespace",
        "",
        "Namespace of kube-apiserver's pods, which may reach the frontend of a deployment; empty: "
        "the release's, where apiserverCidrs has nothing. Pods in the network of a node have its "
        "addresses and no namespace",
        pattern=OBJECT_OR_NONE,
    ),
    texts_value(
        "server.networkPolicy.apiserverCidrs",
        [],
        "Networks from which kube-apiserver may reach the frontend of a deployment",
        pattern=CIDR,
    ),
    text_value("server.sidecar.workload", "kube-apiserver", "Deployment of kube-apiserver"),
    text_value("server.sidecar.container", "kube-apiserver", "Container of kube-apiserver"),
    text_value(
        "server.sidecar.selector",
        "app=kube-apiserver",
        "Label of kube-apiserver's pods, for the Service for agents",
        pattern="^[A-Za-z0-9./_-]+=[A-Za-z0-9._-]+$",
    ),
    *pod_values(
        "server",
        "Further flags of the server, --flag=value each; an audit log to standard output alone "
        "(--audit-log-path=-), because pods have nowhere to write",
        (*_SERVER_SET, _AUDIT_FILE),
    ),
)
