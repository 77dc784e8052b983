"""The server of an installation, made of values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests import around
from isthmus.manifests.arguments import with_examples
from isthmus.manifests.around import Owner
from isthmus.manifests.installation_pods import Given, extras_of, with_arguments, yes
from isthmus.manifests.pods import Manifest
from isthmus.manifests.server import around_server, check_form, server_manifest, workload
from isthmus.manifests.server_plan import ServerPlan, egress_selector
from isthmus.manifests.settings import DAEMON_SET, DEPLOYMENT, STATIC_POD
from isthmus.manifests.settings_server import (
    FLAGS,
    SIDECAR,
    ServerManifestSettings,
    lease_namespace,
)
from isthmus.manifests.settings_values import TOKEN
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.parsing import load

KUBECONFIG = "/etc/isthmus/kube/kubeconfig"
CLIENT_CA = "/etc/isthmus/client-ca/ca.crt"
FORMS = {
    "daemonset": DAEMON_SET,
    "deployment": DEPLOYMENT,
    "staticPod": STATIC_POD,
    "sidecar": SIDECAR,
}
_ADDRESSES = {"ipv4": "$(POD_IP)", "ipv6": "[$(POD_IP)]"}


def check_server(values: dict[str, Any]) -> None:
    """See that the values of the server go together.

    Raises:
        ConfigError: they do not; one sentence.
    """
    server = values["server"]
    needs_api = server["leases"]["enabled"] or values["auth"]["mode"] == TOKEN
    if server["kind"] == "sidecar" and needs_api and not server["kubeconfig"]["secret"]:
        raise ConfigError(
            "server.kind sidecar has no account of its own in kube-apiserver's pod: set"
            " server.kubeconfig.secret, or auth.mode certificate and server.leases.enabled false"
        )
    if server["kind"] == "staticPod" and server["kubeconfig"]["secret"]:
        raise ConfigError(
            "server.kubeconfig.secret is not for server.kind staticPod, which has its kubeconfig"
            f" from its node, {KUBECONFIG}"
        )
    if server["kind"] == "staticPod" and server["extraSecret"]["name"]:
        raise ConfigError(
            "server.extraSecret.name is not for server.kind staticPod, which has its files from its"
            " node, in /etc/isthmus"
        )


def server_plan(values: dict[str, Any], namespace: str, image: str) -> ServerPlan:
    """The plan of the server.

    Raises:
        ConfigError: values do not go together; one sentence.
    """
    server = values["server"]
    texts: Given = {
        "form": (FORMS[server["kind"]],),
        "name": (server["name"],),
        "namespace": (namespace,),
        "image": (image,),
        "run_as": (str(values["runAs"]),),
        "server_secret": (server["frontend"]["secret"],),
        "cluster_secret": (server["secret"],),
        "ca_config_map": (values["certificates"]["caConfigMap"],),
        "client_ca_config_map": (values["certificates"]["clientCaConfigMap"],),
        "secret": (server["kubeconfig"]["secret"],),
        "kubeconfig_user": (server["kubeconfig"]["user"],),
        "replicas": (str(server["replicas"]),),
        "readiness": (server["readiness"],),
        "host_network": yes(server["hostNetwork"]),
        "network_policy": yes(server["networkPolicy"]["enabled"]),
        "allow_cidr": tuple(server["networkPolicy"]["allowCidrs"]),
        "apiserver_cidr": tuple(server["networkPolicy"]["apiserverCidrs"]),
        "apiserver_namespace": (server["networkPolicy"]["apiserverNamespace"],),
        "disruption_budget": yes(server["podDisruptionBudget"]["enabled"]),
        "service_type": (server["service"]["type"],),
        "workload": (server["sidecar"]["workload"],),
        "container": (server["sidecar"]["container"],),
        "selector": (server["sidecar"]["selector"],),
        "egress_config_map": (f"{server['name']}-egress",),
    }
    manifest = load(ServerManifestSettings, texts, {})
    manifest.validate()
    given = _flags(values, namespace)
    everything = with_arguments(
        given, ServerSettings, server["extraArgs"], where="server.extraArgs"
    )
    load(ServerSettings, with_examples(everything), {}).validate()
    settings = load(ServerSettings, with_examples(given), {})
    extras = extras_of(values, "server")
    if manifest.form == STATIC_POD:
        # Nobody chooses a node for it, and it may refer to no object of the API.
        extras = replace(extras, pod={})
    return ServerPlan(manifest=manifest, settings=settings, given=given, extras=extras)


def _flags(values: dict[str, Any], namespace: str) -> Given:
    server = values["server"]
    # A sidecar has its files from the same objects as a daemonset's pods.
    given = dict(FLAGS[FORMS[server["kind"]] if server["kind"] != "sidecar" else DAEMON_SET])
    if server["kind"] == "deployment":
        given["server_port"] = (str(server["frontend"]["port"]),)
        if values["certificates"]["clientCaConfigMap"]:
            given["server_ca_cert"] = (CLIENT_CA,)
    else:
        given["uds_name"] = (server["frontend"]["socket"],)
    given |= {
        "agent_port": (str(server["agentPort"]),),
        "health_port": (str(server["healthPort"]),),
        "admin_port": (str(server["adminPort"]),),
        "proxy_strategies": (",".join(server["strategies"]),),
        "graceful_shutdown_timeout_s": (f"{server['gracefulShutdownSeconds']}s",),
    }
    if server["count"]:
        given["server_count"] = (str(server["count"]),)
    needs_api = server["leases"]["enabled"] or values["auth"]["mode"] == TOKEN
    if needs_api and (server["kubeconfig"]["secret"] or server["kind"] == "staticPod"):
        given["kubeconfig"] = (KUBECONFIG,)
    if values["auth"]["mode"] == TOKEN:
        del given["cluster_ca_cert"]
        given |= _tokens(values, namespace)
    return given | _leases(server, namespace)


def has_rights(values: dict[str, Any]) -> bool:
    """Whether rights are given here: to the pods' account, or to who a node's kubeconfig says."""
    server = values["server"]
    return server["kind"] == "staticPod" or not server["kubeconfig"]["secret"]


def leases_in(leases: dict[str, Any], namespace: str) -> str:
    """Where the Leases are, by the values about them, for a release in this namespace."""
    return str(leases["namespace"] or lease_namespace(namespace))


def _leases(server: dict[str, Any], namespace: str) -> Given:
    leases = server["leases"]
    if not leases["enabled"]:
        return {}
    found: Given = {
        "enable_lease_controller": yes(True),
        "lease_namespace": (leases_in(leases, namespace),),
        "lease_label": (leases["label"],),
    }
    if leases["advertise"]:
        address = f"{_ADDRESSES[leases['advertise']]}:{server['agentPort']}"
        found["advertise_agent_address"] = (address,)
    return found


def _tokens(values: dict[str, Any], namespace: str) -> Given:
    return {
        "agent_namespace": (values["auth"]["agentNamespace"] or namespace,),
        "agent_service_account": (values["agent"]["name"],),
        "authentication_audience": (values["auth"]["audience"],),
    }


def server_objects(plan: ServerPlan) -> list[Manifest]:
    """The objects of the server; what cannot be one is text in a ConfigMap.

    Raises:
        ConfigError: the server cannot run so; one sentence.
    """
    manifest = plan.manifest
    owner = Owner(name=manifest.name, namespace=manifest.namespace)
    if manifest.form == SIDECAR:
        return _sidecar(plan, owner)
    check_form(plan)
    if manifest.form == STATIC_POD:
        text = server_manifest(plan)
        placed = around.config_map(owner, f"{owner.name}-manifest", {f"{owner.name}.yaml": text})
        return [*around_server(plan), placed]
    return [*around_server(plan), workload(plan)]


def _sidecar(plan: ServerPlan, owner: Owner) -> list[Manifest]:
    manifest = plan.manifest
    label, _, value = manifest.selector.partition("=")
    agents = around.service(
        owner,
        {"agents": plan.settings.agent_port},
        kind=manifest.service_type,
        early=True,
        annotations=plan.extras.service_annotations,
        selector={label: value},
    )
    selector = egress_selector(manifest, plan.settings)
    return [
        agents,
        around.config_map(owner, manifest.egress_config_map, {"config.yaml": selector}),
        around.config_map(owner, f"{owner.name}-patch", {"patch.yaml": server_manifest(plan)}),
    ]
