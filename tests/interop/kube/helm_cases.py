"""Values that the chart is tried with: those that pages show, combinations, every value once."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import yaml
from kube.helm_chart import Changes

from isthmus.manifests.settings_values import VALUES, leaves

DOCS = Path(__file__).parents[3] / "docs"
_FILE = re.compile(r"<!-- file: (\S+) -->\n\n```yaml\n(.*?)```", re.DOTALL)
#: Shown to be refused (test_helm_page.py).
_REFUSED = "wrong.yaml"

SIDECAR_API = {"server.kubeconfig.secret": "guest-kubeconfig"}


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


def combinations() -> dict[str, Changes]:
    """Kinds, ways to prove oneself and Leases, each with each; networks in turn."""
    found: dict[str, Changes] = {}
    choices = itertools.product(
        ("daemonset", "deployment", "staticPod", "sidecar"),
        ("token", "certificate"),
        (True, False),
        ("daemonset", "deployment"),
    )
    for number, (kind, auth, leases, agent) in enumerate(choices):
        network = number % 3 != 0
        changes: dict[str, Any] = {
            "server.kind": kind,
            "auth.mode": auth,
            "server.leases.enabled": leases,
            "agent.kind": agent,
            "agent.hostNetwork": network,
            "server.hostNetwork": network,
        }
        if kind == "sidecar" and (leases or auth == "token"):
            changes |= SIDECAR_API
        counted, where = "leases" if leases else "alone", "host" if network else "own"
        found[f"{kind}-{auth}-{counted}-{agent}-{where}"] = changes
    return found


_DEPLOYMENTS = {"server.kind": "deployment", "agent.kind": "deployment"}
_SIDECAR = {"server.kind": "sidecar", **SIDECAR_API}
_CERTIFICATES = {"auth.mode": "certificate"}
_STATIC = {"server.kind": "staticPod"}
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
_ARGS = {
    "server.extraArgs": [
        "--v=4",
        "--audit-log-path=-",
        "--policy-file=/srv/files/$(NODE_NAME).yaml",
    ],
    "agent.extraArgs": ["--dial-timeout=3s", "--agent-network=$(NODE_NAME)"],
}
#: For every value another one than its default, and what has to be there for it to matter.
OTHERS: dict[str, tuple[Any, Changes]] = {
    "image.repository": ("registry.example.com:5000/net/isthmus", {}),
    "image.tag": ("1.2.3", {}),
    "image.digest": (f"sha256:{'0' * 64}", {}),
    "image.pullPolicy": ("Always", {}),
    "imagePullSecrets": (["one", "two"], {}),
    "runAs": (1001, {}),
    "auth.mode": ("certificate", {}),
    "auth.audience": ("urn:example:tunnel", {}),
    "auth.agentNamespace": ("guests", {}),
    "certificates.caConfigMap": ("other-ca", {}),
    "certificates.clientCaConfigMap": ("clients-ca", {**_DEPLOYMENTS, **_CERTIFICATES}),
    "server.enabled": (False, {"agent.servers.hosts": ["tunnel.example.com"]}),
    "server.kind": ("deployment", {}),
    "server.name": ("gate", {}),
    "server.replicas": (1, _DEPLOYMENTS),
    "server.hostNetwork": (False, {}),
    "server.frontend.socket": ("/run/other/gate.sock", {}),
    "server.frontend.port": (18090, _DEPLOYMENTS),
    "server.frontend.secret": ("front", _DEPLOYMENTS),
    "server.secret": ("pair", {}),
    "server.agentPort": (443, {}),
    "server.healthPort": (2041, {}),
    "server.adminPort": (18095, {}),
    "server.strategies": (["destHost", "default"], {}),
    "server.count": (3, {"server.leases.enabled": False}),
    "server.leases.enabled": (False, {}),
    "server.leases.namespace": ("leases", {}),
    "server.leases.label": ("app=gate", {}),
    "server.leases.advertise": ("ipv6", {}),
    "server.kubeconfig.secret": ("guest-kubeconfig", {}),
    "server.kubeconfig.user": ("system:gate", _STATIC),
    "server.gracefulShutdownSeconds": (60, {}),
    "server.readiness": ("/healthz", {}),
    "server.service.type": ("LoadBalancer", {}),
    "server.service.annotations": ({"example.com/internal": "true"}, {}),
    "server.podDisruptionBudget.enabled": (False, _DEPLOYMENTS),
    "server.networkPolicy.enabled": (False, _DEPLOYMENTS),
    "server.networkPolicy.allowCidrs": (["10.0.0.0/8", "fd00::/8"], _DEPLOYMENTS),
    "server.networkPolicy.apiserverNamespace": ("clusters-a", _DEPLOYMENTS),
    "server.networkPolicy.apiserverCidrs": (["192.0.2.7/32", "2001:db8::/64"], _DEPLOYMENTS),
    "server.sidecar.workload": ("apiserver", _SIDECAR),
    "server.sidecar.container": ("apiserver", _SIDECAR),
    "server.sidecar.selector": ("k8s-app=apiserver", _SIDECAR),
    "agent.enabled": (False, {}),
    "agent.kind": ("deployment", {}),
    "agent.name": ("worker", {}),
    "agent.replicas": (1, _DEPLOYMENTS),
    "agent.hostNetwork": (False, {}),
    "agent.dnsPolicy": ("Default", {}),
    "agent.servers.hosts": (["a.example.com", "b.example.com"], {}),
    "agent.servers.port": (443, {"agent.servers.hosts": ["a.example.com"]}),
    "agent.servers.name": ("gate.example.com", {}),
    "agent.secret": ("pair", _CERTIFICATES),
    "agent.identifiers": ("ipv4=$(NODE_IP)&host=$(NODE_NAME)", {}),
    "agent.countServerLeases": (True, {}),
    "agent.healthPort": (18093, {}),
    "agent.adminPort": (18094, {}),
    "agent.gracefulShutdownSeconds": (0, {}),
    "agent.httpsProxy": ("http://proxy.example.com:3128", {}),
    "agent.noProxy": ([".svc", "10.0.0.0/8"], {"agent.httpsProxy": "http://proxy:3128"}),
    "agent.podDisruptionBudget.enabled": (False, _DEPLOYMENTS),
    "agent.networkPolicy.enabled": (False, _DEPLOYMENTS),
    "agent.networkPolicy.allowCidrs": (["10.0.0.0/8"], _DEPLOYMENTS),
    "monitoring.podMonitor.enabled": (True, {}),
    "monitoring.podMonitor.interval": ("5s", {"monitoring.podMonitor.enabled": True}),
    "monitoring.podMonitor.labels": ({"release": "x"}, {"monitoring.podMonitor.enabled": True}),
    "monitoring.prometheusRule.enabled": (True, {}),
    "monitoring.prometheusRule.labels": (
        {"release": "x"}, {"monitoring.prometheusRule.enabled": True},
    ),
    **{f"{who}.{key}": (value, {}) for who in ("server", "agent") for key, value in _POD.items()},
    **{path: (value, {}) for path, value in _ARGS.items()},
}  # fmt: skip
for _who in ("server", "agent"):
    OTHERS[f"{_who}.extraSecret.mountPath"] = ("/srv/files", {f"{_who}.extraSecret.name": "more"})

#: Some values together, in every kind of server: what one alone would not show.
TOGETHER: dict[str, Changes] = {
    f"everything-{kind}": {
        "server.kind": kind,
        "agent.countServerLeases": True,
        "imagePullSecrets": ["registry"],
        "monitoring.podMonitor.enabled": True,
        "monitoring.prometheusRule.enabled": True,
        **{f"{who}.{key}": value for who in ("server", "agent") for key, value in _POD.items()},
        **_ARGS,
        **(SIDECAR_API if kind == "sidecar" else {}),
        **({"server.extraSecret.name": ""} if kind == "staticPod" else {}),
    }
    for kind in ("daemonset", "deployment", "staticPod", "sidecar")
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
    "name": ({"agent.name": "Not A Name"}, "name"),
    "target": ({"agent.extraArgs": ["--target=6443:localhost:6443"]}, "extraArgs"),
    "bind-address": ({"agent.extraArgs": ["--bind-address=10.0.0.1"]}, "extraArgs"),
    "bare-target": ({"agent.extraArgs": ["--target", "6443:localhost:6443"]}, "extraArgs"),
    "flag-of-the-chart": ({"server.extraArgs": ["--agent-port=1"]}, "extraArgs"),
    "audit-file": ({"server.extraArgs": ["--audit-log-path=/var/log/a"]}, "extraArgs"),
    "one-dash": ({"server.extraArgs": ["-v"]}, "extraArgs"),
    "dollar": ({"agent.identifiers": "host=$HOME"}, "identifiers"),
    "nobody-to-connect-to": ({"server.enabled": False}, "agent.servers.hosts is empty"),
    "sidecar-alone": ({"server.kind": "sidecar"}, "server.kubeconfig.secret"),
    "static-pod-files": (
        {"server.kind": "staticPod", "server.extraSecret.name": "x"},
        "server.extraSecret.name is not for server.kind staticPod",
    ),
    "static-pod-secret": (
        {"server.kind": "staticPod", "server.kubeconfig.secret": "x"},
        "server.kubeconfig.secret is not for server.kind staticPod",
    ),
}


def every_case() -> dict[str, Changes]:
    """All of them but the wrong ones."""
    changed = {f"value-{path}": {**needs, path: value} for path, (value, needs) in OTHERS.items()}
    return {"defaults": {}, **documented(), **combinations(), **TOGETHER, **changed}
