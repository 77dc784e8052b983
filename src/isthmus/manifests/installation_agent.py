"""The agents of an installation, made of values."""

from __future__ import annotations

from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests.agent import AgentPlan
from isthmus.manifests.arguments import with_examples
from isthmus.manifests.installation_pods import Given, extras_of, with_arguments, yes
from isthmus.manifests.installation_server import leases_in
from isthmus.manifests.settings import ManifestSettings
from isthmus.manifests.settings_values import CERTIFICATE
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.parsing import load

CA = "/etc/isthmus/ca/ca.crt"
TOKEN = "/var/run/secrets/isthmus/token"


def agent_plan(values: dict[str, Any], namespace: str, image: str) -> AgentPlan:
    """The plan of the agents.

    Raises:
        ConfigError: values do not go together; one sentence.
    """
    agent = values["agent"]
    texts: Given = {
        "form": (agent["kind"],),
        "name": (agent["name"],),
        "namespace": (namespace,),
        "image": (image,),
        "run_as": (str(values["runAs"]),),
        "secret": (agent["secret"],),
        "ca_config_map": (values["certificates"]["caConfigMap"],),
        "token_audience": (values["auth"]["audience"],),
        "replicas": (str(agent["replicas"]),),
        "host_network": yes(agent["hostNetwork"]),
        "network_policy": yes(agent["networkPolicy"]["enabled"]),
        "allow_cidr": tuple(agent["networkPolicy"]["allowCidrs"]),
        "disruption_budget": yes(agent["podDisruptionBudget"]["enabled"]),
        "dns_policy": (agent["dnsPolicy"],),
        "https_proxy": (agent["httpsProxy"],),
        "no_proxy": tuple(agent["noProxy"]),
    }
    if agent["noProxy"] and not agent["httpsProxy"]:
        raise ConfigError("agent.noProxy needs agent.httpsProxy as well")
    manifest = load(ManifestSettings, texts, {})
    given = _flags(values, namespace)
    everything = with_arguments(given, AgentSettings, agent["extraArgs"], where="agent.extraArgs")
    load(AgentSettings, with_examples(everything), {}).validate()
    settings = load(AgentSettings, with_examples(given), {})
    return AgentPlan(
        manifest=manifest, settings=settings, given=given, extras=extras_of(values, "agent")
    )


def _flags(values: dict[str, Any], namespace: str) -> Given:
    agent, leases = values["agent"], values["server"]["leases"]
    hosts, port = _servers(values, namespace)
    given: Given = {
        "proxy_server_host": hosts,
        "proxy_server_port": (str(port),),
        "ca_cert": (CA,),
        "health_server_port": (str(agent["healthPort"]),),
        "admin_server_port": (str(agent["adminPort"]),),
        "graceful_shutdown_timeout_s": (f"{agent['gracefulShutdownSeconds']}s",),
    }
    if agent["servers"]["name"]:
        given["proxy_server_name"] = (agent["servers"]["name"],)
    if agent["identifiers"]:
        given["agent_identifiers"] = (agent["identifiers"],)
    if values["auth"]["mode"] == CERTIFICATE:
        given["agent_cert"] = ("/etc/isthmus/agent/tls.crt",)
        given["agent_key"] = ("/etc/isthmus/agent/tls.key",)
    else:
        given["service_account_token_path"] = (TOKEN,)
    if agent["countServerLeases"]:
        given["count_server_leases"] = yes(True)
        given["lease_namespace"] = (leases_in(leases, namespace),)
        given["lease_label_selector"] = (leases["label"],)
    return given


def _servers(values: dict[str, Any], namespace: str) -> tuple[tuple[str, ...], int]:
    server, servers = values["server"], values["agent"]["servers"]
    if servers["hosts"]:
        return tuple(servers["hosts"]), servers["port"]
    if not server["enabled"]:
        raise ConfigError(
            "agent.servers.hosts is empty, and there is no server here that agents could connect to"
        )
    return (f"{server['name']}.{namespace}.svc",), server["agentPort"]
