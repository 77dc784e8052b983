"""Values that the chart is tried with: those that pages show, and every value changed, by kind.

The templates are written from what Python fills in, so that a few cases of each kind show that Helm
reads them the same way.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from kube.helm_chart import Changes

from isthmus.manifests.chart_values import leaves
from isthmus.manifests.installation import VALUES

DOCS = Path(__file__).parents[3] / "docs"
_FILE = re.compile(r"<!-- file: (\S+) -->\n\n```yaml\n(.*?)```", re.DOTALL)
#: Shown to be refused (test_helm_page.py).
_REFUSED = "wrong.yaml"


def documented() -> dict[str, Changes]:
    """Files of values that pages show, by page and name."""
    sections = {path[0] for path, _ in leaves(VALUES)}
    found: dict[str, Changes] = {}
    for page in sorted(DOCS.rglob("*.md")):
        for name, text in _FILE.findall(page.read_text()):
            tree = next(yaml.safe_load_all(text))  # values are one document
            if isinstance(tree, dict) and tree.keys() <= sections and name != _REFUSED:
                found[f"{page.stem}-{name}"] = _by_path(tree)
    return found


def _by_path(tree: dict[str, Any]) -> Changes:
    changes: dict[str, Any] = {}
    for path, value in leaves(VALUES):
        node: Any = tree
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            changes[value.path] = node
    return changes


_POD: dict[str, Any] = {
    "extraSecret.name": "more-files",
    "extraSecret.mountPath": "/srv/files",
    "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
    "nodeSelector": {"role": "edge"},
    "tolerations": [{"key": "edge", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "important",
    "podLabels": {"team": "network", "k8s-app": "not-this"},
    "podAnnotations": {"example.com/why": 'a "quoted" word: yes'},
}
#: Every value as another one than its default.
CHANGED: dict[str, Any] = {
    "image.repository": "registry.example.com:5000/net/isthmus",
    "image.tag": "1.2.3",
    "image.digest": f"sha256:{'0' * 64}",
    "image.pullPolicy": "Always",
    "imagePullSecrets": ["one", "two"],
    "runAs": 1001,
    "auth.mode": "certificate",
    "auth.audience": "urn:example:tunnel",
    "auth.agentNamespace": "guests",
    "certificates.caConfigMap": "other-ca",
    "certificates.clientCaConfigMap": "clients-ca",
    "server.enabled": False,
    "server.kind": "deployment",
    "server.name": "gate",
    "server.replicas": 3,
    "server.hostNetwork": False,
    "server.frontend.socket": "/run/other/gate.sock",
    "server.frontend.port": 18090,
    "server.frontend.secret": "front",
    "server.secret": "pair",
    "server.agentPort": 443,
    "server.healthPort": 2041,
    "server.healthSecret": "health",
    "server.adminPort": 18095,
    "server.strategies": ["destHost", "default"],
    "server.count": 3,
    "server.leases.enabled": False,
    "server.leases.namespace": "leases",
    "server.leases.label": "app=gate",
    "server.leases.advertise": "ipv6",
    "server.kubeconfig.secret": "guest-kubeconfig",
    "server.kubeconfig.user": "system:gate",
    "server.gracefulShutdownSeconds": 60,
    "server.readiness": "/healthz",
    "server.service.type": "LoadBalancer",
    "server.service.annotations": {"example.com/internal": "true"},
    "server.podDisruptionBudget.enabled": False,
    "server.networkPolicy.enabled": False,
    "server.networkPolicy.allowCidrs": ["10.0.0.0/8", "fd00::/8"],
    "server.networkPolicy.apiserverNamespace": "clusters-a",
    "server.networkPolicy.apiserverCidrs": ["192.0.2.7/32", "2001:db8::/64"],
    "server.sidecar.workload": "apiserver",
    "server.sidecar.container": "apiserver",
    "server.sidecar.selector": "k8s-app=apiserver",
    "server.extraArgs": ["--v=4", "--policy-file=/srv/files/$(NODE_NAME).yaml"],
    "agent.enabled": False,
    "agent.kind": "deployment",
    "agent.name": "worker",
    "agent.replicas": 3,
    "agent.hostNetwork": False,
    "agent.dnsPolicy": "Default",
    "agent.servers.hosts": ["a.example.com", "b.example.com"],
    "agent.servers.port": 443,
    "agent.servers.name": "gate.example.com",
    "agent.secret": "pair",
    "agent.identifiers": "ipv4=$(NODE_IP)&host=$(NODE_NAME)",
    "agent.countServerLeases": True,
    "agent.healthPort": 18093,
    "agent.healthSecret": "health",
    "agent.adminPort": 18094,
    "agent.gracefulShutdownSeconds": 0,
    "agent.httpsProxy": "http://proxy.example.com:3128",
    "agent.noProxy": [".svc", "10.0.0.0/8"],
    "agent.podDisruptionBudget.enabled": False,
    "agent.networkPolicy.enabled": False,
    "agent.networkPolicy.allowCidrs": ["10.0.0.0/8"],
    "agent.extraArgs": ["--dial-timeout=3s", "--agent-network=$(NODE_NAME)"],
    "sniRouter.enabled": True,
    "sniRouter.name": "front",
    "sniRouter.replicas": 3,
    "sniRouter.configMap": "all-routes",
    "sniRouter.port": 9443,
    "sniRouter.proxied.enabled": True,
    "sniRouter.proxied.port": 7443,
    "sniRouter.acceptProxy": True,
    "sniRouter.proxyFrom": ["10.0.0.0/24", "fd00::/64"],
    "sniRouter.service.type": "ClusterIP",
    "sniRouter.service.port": 6443,
    "sniRouter.service.annotations": {"example.com/internal": "true"},
    "sniRouter.healthPort": 18096,
    "sniRouter.healthSecret": "router-health",
    "sniRouter.adminPort": 18097,
    "sniRouter.gracefulShutdownSeconds": 60,
    "sniRouter.podDisruptionBudget.enabled": False,
    "sniRouter.networkPolicy.enabled": False,
    "sniRouter.extraArgs": ["--max-connections=5000", "--health-bind-address=$(POD_IP)"],
    "nodeProxy.enabled": True,
    "nodeProxy.name": "services",
    "nodeProxy.apiServer.host": "api.example.com",
    "nodeProxy.apiServer.port": 443,
    "nodeProxy.mode": "iptables",
    "nodeProxy.detectLocal": "cluster-cidr",
    "nodeProxy.clusterCidrs": ["10.1.0.0/16", "fd00:1::/48"],
    "nodeProxy.takeOver": False,
    "nodeProxy.localhostNodePorts": True,
    "nodeProxy.healthPort": 11256,
    "nodeProxy.gracefulShutdownSeconds": 60,
    "nodeProxy.extraArgs": ["--v=4", "--masquerade-all=true"],
    "monitoring.podMonitor.enabled": True,
    "monitoring.podMonitor.interval": "5s",
    "monitoring.podMonitor.labels": {"release": "x"},
    "monitoring.prometheusRule.enabled": True,
    "monitoring.prometheusRule.labels": {"release": "x"},
    **{
        f"{who}.{key}": value
        for who in ("server", "agent", "sniRouter", "nodeProxy")
        for key, value in _POD.items()
    },
}
# Whether something is there at all.
_SWITCHES = frozenset(
    path for path in CHANGED if path.endswith(".enabled") and not path.startswith("monitoring.")
)
# What one kind or another has from its node, or has to have.
_NEEDS: dict[str, Changes] = {
    "staticPod": {
        "server.kubeconfig.secret": "",
        "server.extraSecret.name": "",
        "server.healthSecret": "",
    },
    "sidecar": {"server.kubeconfig.secret": "guest-kubeconfig"},
}


def _kinds() -> dict[str, Changes]:
    """Each kind by tokens with hardly another value, and by certificates with all of them."""
    plain = {path: what for path, what in CHANGED.items() if path not in _SWITCHES}
    found: dict[str, Changes] = {}
    for kind in ("daemonset", "deployment", "staticPod", "sidecar"):
        agent = "daemonset" if kind == "daemonset" else "deployment"
        kinds = {"server.kind": kind, "agent.kind": agent}
        needs = _NEEDS.get(kind, {})
        found[f"{kind}-usual"] = {**kinds, **needs}
        found[f"{kind}-changed"] = {**plain, **kinds, **needs}
    return found


def _sni_router() -> dict[str, Changes]:
    """The router alone, by defaults and with every value of it changed."""
    alone = {"server.enabled": False, "agent.enabled": False, "sniRouter.enabled": True}
    plain = {path: what for path, what in CHANGED.items() if path not in _SWITCHES}
    by_tlv = {"sniRouter.proxied.enabled": True, "sniRouter.service.type": "NodePort"}
    return {
        "sni-router-usual": {"sniRouter.enabled": True},
        "sni-router-alone": {**alone, **by_tlv, "sniRouter.proxyFrom": ["10.0.0.0/24"]},
        "sni-router-changed": {**plain, **alone, "sniRouter.proxied.enabled": True},
    }


_NODE_PROXY: Changes = {
    "nodeProxy.enabled": True, "nodeProxy.apiServer.host": "api.example.com",
}  # fmt: skip


def _node_proxies() -> dict[str, Changes]:
    """Node proxies with hardly another value, and with all of them."""
    own = {path: what for path, what in CHANGED.items() if path.startswith("nodeProxy.")}
    return {
        "node-proxy-usual": {**_NODE_PROXY, "nodeProxy.localhostNodePorts": True},
        "node-proxy-changed": {**own, "nodeProxy.localhostNodePorts": False},
    }


#: What neither takes.
WRONG: dict[str, tuple[Changes, str]] = {
    "no-proxy-alone": ({"agent.noProxy": [".svc"]}, "agent.noProxy needs agent.httpsProxy"),
    "unknown-key": ({"server.kin": "daemonset"}, "kin"),
    "unknown-section": ({"sever.kind": "daemonset"}, "sever"),
    "kind": ({"server.kind": "systemd"}, "kind"),
    "agent-kind": ({"agent.kind": "staticPod"}, "kind"),
    "type": ({"server.replicas": "2"}, "replicas"),
    "range": ({"server.agentPort": 70000}, "agentPort"),
    "root": ({"runAs": 0}, "runAs"),
    "node-proxy-alone": ({"nodeProxy.enabled": True}, "nodeProxy.apiServer.host is empty"),
    "node-proxy-localhost": (
        {**_NODE_PROXY, "nodeProxy.mode": "iptables", "nodeProxy.localhostNodePorts": True},
        "nodeProxy.localhostNodePorts requires mode nftables",
    ),
    "node-proxy-config": (
        {**_NODE_PROXY, "nodeProxy.extraArgs": ["--config=/etc/x/y"]},
        "extraArgs",
    ),
    "name": ({"agent.name": "Not A Name"}, "name"),
    "target": ({"agent.extraArgs": ["--target=6443:localhost:6443"]}, "extraArgs"),
    "bind-address": ({"agent.extraArgs": ["--bind-address=10.0.0.1"]}, "extraArgs"),
    "bare-target": ({"agent.extraArgs": ["--target", "6443:localhost:6443"]}, "extraArgs"),
    "flag-of-the-chart": ({"server.extraArgs": ["--agent-port=1"]}, "extraArgs"),
    "audit-file": ({"server.extraArgs": ["--audit-log-path=/var/log/a"]}, "extraArgs"),
    "one-dash": ({"server.extraArgs": ["-v"]}, "extraArgs"),
    "dollar": ({"agent.identifiers": "host=$HOME"}, "identifiers"),
    "accept-proxy-alone": (
        {"sniRouter.enabled": True, "sniRouter.acceptProxy": True},
        "sniRouter.acceptProxy needs sniRouter.proxyFrom",
    ),
    "proxy-from-alone": (
        {"sniRouter.enabled": True, "sniRouter.proxyFrom": ["10.0.0.0/24"]},
        "sniRouter.proxyFrom needs sniRouter.acceptProxy",
    ),
    "low-port": ({"sniRouter.enabled": True, "sniRouter.port": 443}, "port"),
    "nobody-to-connect-to": ({"server.enabled": False}, "agent.servers.hosts is empty"),
    "sidecar-alone": ({"server.kind": "sidecar"}, "server.kubeconfig.secret"),
    "static-pod-files": (
        {"server.kind": "staticPod", "server.extraSecret.name": "x"},
        "server.extraSecret.name is not for server.kind staticPod",
    ),
    "static-pod-health": (
        {"server.kind": "staticPod", "server.healthSecret": "x"},
        "server.healthSecret is not for server.kind staticPod",
    ),
    "static-pod-secret": (
        {"server.kind": "staticPod", "server.kubeconfig.secret": "x"},
        "server.kubeconfig.secret is not for server.kind staticPod",
    ),
}


def every_case() -> dict[str, Changes]:
    """All of them but the wrong ones."""
    alone = {"agent.servers.hosts": CHANGED["agent.servers.hosts"]}
    return {
        "defaults": {},
        "no-server": {**alone, "server.enabled": False},
        "nothing-around": {
            "server.kind": "deployment",
            **{path: False for path in _SWITCHES - {"server.enabled"}},
        },
        **documented(),
        **_kinds(),
        **_sni_router(),
        **_node_proxies(),
    }
