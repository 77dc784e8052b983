"""A whole installation, server and agents, made of values: what the Helm chart makes of them too.

Values become flags of the programs and of their manifests, and are checked as those are. Where Helm
cannot place something, a static pod on nodes or a patch of somebody else's Deployment, it is text
in a ConfigMap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from isthmus import __version__
from isthmus.manifests import around
from isthmus.manifests.agent import check_agent, cluster_objects
from isthmus.manifests.alerts import rules
from isthmus.manifests.around import Owner
from isthmus.manifests.installation_agent import agent_plan
from isthmus.manifests.installation_server import (
    check_server,
    has_rights,
    leases_in,
    server_objects,
    server_plan,
)
from isthmus.manifests.pods import Manifest
from isthmus.manifests.settings_values import CERTIFICATE, Tree


def installation(values: Tree, namespace: str) -> list[Manifest]:
    """Every object of an installation, in the order to make it.

    Raises:
        ConfigError: values do not go together; one sentence.
    """
    image = image_of(values["image"])
    found = _lease_namespace(values, namespace)
    if values["server"]["enabled"]:
        check_server(values)
        found += server_objects(server_plan(values, namespace, image))
    if values["agent"]["enabled"]:
        plan = agent_plan(values, namespace, image)
        check_agent(plan)
        found += cluster_objects(plan)
    return [*found, *_monitors(values, namespace), *_rules(values, namespace)]


def _lease_namespace(values: Tree, namespace: str) -> list[Manifest]:
    """The namespace of the Leases, where one is made and anybody here gets rights in it."""
    server, agent = values["server"], values["agent"]
    kept = server["enabled"] and server["leases"]["enabled"] and has_rights(values)
    counted = agent["enabled"] and agent["countServerLeases"]
    where = leases_in(server["leases"], namespace)
    if server["leases"]["namespace"] or where == namespace or not (kept or counted):
        return []
    return [around.namespace(Owner(name=server["name"], namespace=namespace), where)]


def image_of(image: Mapping[str, str]) -> str:
    """The image, with what says which."""
    tag, digest = image["tag"] or __version__, image["digest"]
    return f"{image['repository']}:{tag}" + (f"@{digest}" if digest else "")


def _monitors(values: Tree, namespace: str) -> list[Manifest]:
    monitor = values["monitoring"]["podMonitor"]
    if not monitor["enabled"]:
        return []
    return [
        around.pod_monitor(
            Owner(name=values[who]["name"], namespace=namespace),
            interval=monitor["interval"],
            labels=monitor["labels"],
        )
        for who in _watched(values)
    ]


def _rules(values: Tree, namespace: str) -> list[Manifest]:
    rule = values["monitoring"]["prometheusRule"]
    if not rule["enabled"]:
        return []
    metadata = Owner(name="isthmus", namespace=namespace).metadata()
    metadata["labels"] = {**rule["labels"], **metadata["labels"]}
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": rules(),
        }
    ]


def _watched(values: Tree) -> Iterable[str]:
    """Whose pods are found by labels of ours: not those of kube-apiserver."""
    if values["server"]["enabled"] and values["server"]["kind"] != "sidecar":
        yield "server"
    if values["agent"]["enabled"]:
        yield "agent"


def needed_objects(values: Tree) -> Sequence[tuple[str, str, Sequence[str]]]:
    """The Secrets and ConfigMaps that somebody has to make first: kind, name and keys."""
    server, agent, pair = values["server"], values["agent"], ("tls.crt", "tls.key")
    found: list[tuple[str, str, Sequence[str]]] = []
    by_certificate = values["auth"]["mode"] == CERTIFICATE
    inside = server["enabled"] and server["kind"] != "staticPod"
    if inside:
        found.append(("Secret", server["secret"], pair))
    if inside and server["kind"] == "deployment":
        found.append(("Secret", server["frontend"]["secret"], pair))
    if inside and server["kubeconfig"]["secret"]:
        found.append(("Secret", server["kubeconfig"]["secret"], ("kubeconfig",)))
    if agent["enabled"] and by_certificate:
        found.append(("Secret", agent["secret"], pair))
    clients = values["certificates"]["clientCaConfigMap"]
    one_ca = server["kind"] == "deployment" and not clients
    trusts = agent["enabled"] or (inside and (by_certificate or one_ca))
    if trusts:
        found.append(("ConfigMap", values["certificates"]["caConfigMap"], ("ca.crt",)))
    if inside and server["kind"] == "deployment" and clients:
        found.append(("ConfigMap", clients, ("ca.crt",)))
    return found
