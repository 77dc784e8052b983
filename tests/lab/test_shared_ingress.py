"""One ingress for two hosted clusters: what `isthmus publish render` writes, run as it is written.

Pods of both clusters ask for the same name, and reach their own kube-apiserver: the proxies of
their nodes and the routes of the ingress fit together. Each cluster allows only its own nodes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest
import yaml
from machine import environment
from test_publishing import PUBLISH, run

LIMIT_S = 180.0
#: Each cluster by its name: the network of its nodes, which is all that it allows.
CLUSTERS = {"spring": "10.221.0.0/24", "autumn": "10.222.0.0/24"}
SERVICES = {
    "APIServer": "api",
    "OAuthServer": "oauth",
    "Konnectivity": "tunnel",
    "Ignition": "boot",
}
ROUTES = "sni-routes.shared-ingress.yaml"
CA = "/etc/kubernetes/apiserver-proxy-config/ca.crt"


def document(name: str, **api_server: Any) -> dict[str, Any]:
    """A HostedCluster of managed Azure, whose ingress is shared."""
    routes = {
        service: {"type": "Route", "route": {"hostname": f"{label}.{name}.example.com"}}
        for service, label in SERVICES.items()
    }
    return {
        "apiVersion": "hypershift.openshift.io/v1beta1",
        "kind": "HostedCluster",
        "metadata": {"name": name, "namespace": "clusters"},
        "spec": {
            "release": {"image": "registry.example.com/openshift/ocp-release:4.20.4-multi"},
            "pullSecret": {"name": "pull-secret"},
            "clusterID": str(uuid5(NAMESPACE_DNS, f"{name}.example.com")),
            "dns": {"baseDomain": "example.com"},
            "platform": {
                "type": "Azure",
                "azure": {
                    "location": "westeurope",
                    "topology": "Public",
                    "azureAuthenticationConfig": {
                        "azureAuthenticationConfigType": "ManagedIdentities",
                        "managedIdentities": {"dataPlane": {}, "controlPlane": {}},
                    },
                },
            },
            "networking": {
                "machineNetwork": [{"cidr": CLUSTERS[name]}],
                "clusterNetwork": [{"cidr": "10.132.0.0/14"}],
                "serviceNetwork": [{"cidr": "172.31.0.0/16"}],
                "apiServer": {"allowedCIDRBlocks": [CLUSTERS[name]], **api_server},
            },
            "services": [
                {"service": service, "servicePublishingStrategy": route}
                for service, route in routes.items()
            ],
        },
    }


def rendered(tmp_path: Path, name: str) -> dict[str, str]:
    """Every file of a cluster's plan, by its name."""
    path, out = tmp_path / f"{name}.yaml", tmp_path / name
    path.write_text(yaml.safe_dump(document(name)))
    command = [*PUBLISH, "render", str(path), "--directory", str(out)]
    done = subprocess.run(command, env=environment(), text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {each.name: each.read_text() for each in out.iterdir()}


def node_hosts(name: str, octet: int) -> dict[str, Any]:
    """A node that is told by its cluster's own file, and a pod behind it."""
    return {
        f"node-{name}": {
            "at": {name: f"10.{octet}.0.11", f"pods-{name}": f"10.{octet - 80}.0.2"},
            "services": [{"address": "172.31.0.1:443", "to": "172.20.0.1:6443"}],
            "processes": {f"proxy-{name}": _proxy(name)},
        },
        f"pod-{name}": {
            "at": {f"pods-{name}": f"10.{octet - 80}.0.3"},
            "routes": [{"to": "0.0.0.0/0", "via": f"node-{name}"}],
        },
        # On the nodes' network of one cluster, with the file of the other.
        f"thief-of-{name}": {
            "at": {next(other for other in CLUSTERS if other != name): f"10.{443 - octet}.0.66"},
            "processes": {f"stolen-{name}": {"command": _proxy(name), "ready": ""}},
        },
    }


def _proxy(name: str) -> str:
    return f"isthmus apiserver-proxy --config={{dir}}/apiserver-proxy.{name}.yaml"


def topology(files: dict[str, dict[str, str]]) -> dict[str, Any]:
    hosts: dict[str, Any] = {
        "ingress": {
            "at": {"edge": "10.210.0.100"},
            "processes": {
                "router": "isthmus sni-router --config={dir}/routes.yaml --listen=:443"
                " --listen-proxy=:6443 --health-bind-address=127.0.0.1"
            },
        }
    }
    networks = {"edge": {"cidr": "10.210.0.0/24"}, "control": {"cidr": "10.211.0.0/24"}}
    names: dict[str, str] = {"kubernetes.default.svc": "172.31.0.1"}
    steps: list[dict[str, Any]] = []
    for number, name in enumerate(CLUSTERS, 1):
        octet = 220 + number
        networks[name] = {"cidr": CLUSTERS[name]}
        networks[f"pods-{name}"] = {"cidr": f"10.{octet - 80}.0.0/24", "gateway": False}
        address = f"10.211.0.{10 + number}"
        hosts[f"apiserver-{name}"] = {"at": {"control": address}, "serve": {"https": 6443}}
        hosts |= node_hosts(name, octet)
        names[f"api.{name}.example.com"] = "10.210.0.100"
        names[f"kube-apiserver.clusters-{name}.svc.cluster.local"] = address
        mine, thief = [f"node-{name}", f"pod-{name}"], f"thief-of-{name}"
        denied = {"prints": "TLSV1_ALERT_ACCESS_DENIED", "within_s": 20}
        own = {"answers": f"from apiserver-{name}", "within_s": 20}
        steps += [
            {"from": mine, "get": "https://kubernetes.default.svc/", **own},
            {"from": mine[0], "get": [f"https://api.{name}.example.com/"], **own},
            {"from": thief, "run": f"cat {{dir}}/logs/stolen-{name}.log", **denied},
            {"from": thief, "get": "https://172.20.0.1:6443/", "fails": ["other", "reset"]},
            {"from": thief, "get": f"https://api.{name}.example.com/", "fails": "other"},
        ]
    logged = {"from": "ingress", "run": "cat {dir}/logs/router.log", "within_s": 5}
    steps.append({**logged, "prints": "connection refused reason=.*allowedCIDRs"})
    routes = "---\n".join(files[name][ROUTES] for name in CLUSTERS)
    proxies = {
        f"apiserver-proxy.{name}.yaml": files[name]["apiserver-proxy.yaml"].replace(CA, "{ca_cert}")
        for name in CLUSTERS
    }
    return {
        "title": "Two hosted clusters behind one ingress",
        "networks": networks,
        "allow": [
            {"from": [*CLUSTERS], "to": "ingress", "port": [443, 6443]},
            {"from": "ingress", "to": "control", "port": 6443},
        ],
        "hosts": hosts,
        "names": names,
        "files": {"routes.yaml": routes, **proxies},
        "steps": steps,
    }


@pytest.mark.timeout(LIMIT_S + 60)
def test_pods_of_two_clusters_with_one_name(tmp_path: Path) -> None:
    path = tmp_path / "two-tenants.yaml"
    path.write_text(yaml.safe_dump(topology({it: rendered(tmp_path, it) for it in CLUSTERS})))
    report = run(path)
    broken = [step for step in report["steps"] if not step["held"]]
    assert report["held"] and not broken, broken
    assert len(report["steps"]) == report["stepsInAll"]


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_plan_of_a_cluster_behind_a_shared_ingress_holds(tmp_path: Path) -> None:
    files = rendered(tmp_path, "spring")
    path = tmp_path / "spring-lab.yaml"
    path.write_text(files["lab.yaml"])
    report = run(path)
    broken = [step for step in report["steps"] if not step["held"]]
    assert report["held"] and not broken, broken
    refused = {step["from"] for step in report["steps"] if step["expected"] == "other"}
    assert "stranger" in refused and "node" not in refused
