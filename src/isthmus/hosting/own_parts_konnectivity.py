"""The tunnel of a plan: the server beside kube-apiserver, its egress selector, the nodes' agents.

Flags are those of ``isthmus server`` and ``isthmus agent`` by their attributes, manifests those of
``isthmus manifest``. Only what a plan decides is filled in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus import __version__
from isthmus.hosting.model import Endpoint, Plan
from isthmus.hosting.own_parts_names import no_proxy
from isthmus.manifests.agent import AgentPlan, agent_manifest
from isthmus.manifests.arguments import arguments
from isthmus.manifests.server import server_manifest
from isthmus.manifests.server_plan import ServerPlan
from isthmus.manifests.settings import DAEMON_SET, ManifestSettings
from isthmus.manifests.settings_server import (
    CONFIG_MAP,
    EGRESS,
    SERVICES,
    ServerManifestSettings,
    with_defaults,
)
from isthmus.manifests.settings_sidecar import PATCH
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import options_of
from isthmus.settings.parsing import load

Typed = Mapping[str, tuple[str, ...]]

#: Where an agent on a node finds its files, and what they are in the guest cluster.
AGENT_SECRET, CA_CONFIG_MAP = "konnectivity-agent", "konnectivity-ca-bundle"
_AGENT_FILES: Typed = {
    "ca_cert": ("/etc/konnectivity/ca/ca.crt",),
    "agent_cert": ("/etc/konnectivity/agent/tls.crt",),
    "agent_key": ("/etc/konnectivity/agent/tls.key",),
}
# HyperShift's, where they are not our defaults.
_AGENT: Typed = {
    "agent_identifiers": ("default-route=true",),
    "health_server_host": ("127.0.0.1",),
    "health_server_port": ("2041",),
    "keepalive_time_s": ("30s",),
    "probe_interval_s": ("5s",),
    "sync_interval_s": ("5s",),
    "sync_interval_cap_s": ("30s",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a document does not say: the image of Isthmus, and how many kube-apiservers there are.

    HyperShift runs three where the control plane is highly available, which is its default.
    """

    image: str = f"isthmus:{__version__}"
    replicas: int = 3


def server_flags(choices: Choices) -> Typed:
    """The flags of each server, by attribute; how it is published changes nothing at it."""
    return with_defaults({"server_count": (str(choices.replicas),)})


def agent_flags(endpoint: Endpoint) -> Typed:
    """The flags of an agent that comes to this endpoint, which must have an address."""
    found = {
        "proxy_server_host": (endpoint.address,),
        "proxy_server_port": (str(endpoint.port),),
        **_AGENT,
        **_AGENT_FILES,
    }
    if endpoint.sni and endpoint.sni != endpoint.address:
        found["proxy_server_name"] = (endpoint.sni,)
    return found


def command_line(program: str, settings: type[object], flags: Typed) -> tuple[str, ...]:
    """The words that start a program with these flags."""
    return ("isthmus", program, *arguments(options_of(settings), flags))


def server_command(choices: Choices) -> tuple[str, ...]:
    """The words that start a server."""
    return command_line("server", ServerSettings, server_flags(choices))


def agent_command(endpoint: Endpoint) -> tuple[str, ...]:
    """The words that start an agent of a node."""
    return command_line("agent", AgentSettings, agent_flags(endpoint))


def server_files(plan: Plan, choices: Choices) -> dict[str, str]:
    """The patch of kube-apiserver's Deployment, and what the control plane's namespace gets.

    Raises:
        ConfigError: a choice is wrong; one sentence.
    """
    return {
        "konnectivity-server.patch.yaml": _server(plan, choices, PATCH),
        "konnectivity-egress.yaml": _server(plan, choices, CONFIG_MAP),
        "konnectivity-local.yaml": _local(_server(plan, choices, SERVICES)),
    }


def egress_selector(plan: Plan, choices: Choices) -> str:
    """kube-apiserver's EgressSelectorConfiguration."""
    return _server(plan, choices, EGRESS)


def _local(text: str) -> str:
    """The Service for kube-apiserver and the sidecars; that for agents is one of the plan's."""
    return text.split("---\n", 1)[0]


def _server(plan: Plan, choices: Choices, output: str) -> str:
    manifest = ServerManifestSettings(
        output=output, namespace=plan.cluster.control_plane, image=choices.image
    )
    manifest.validate()
    flags = server_flags(choices)
    settings = load(ServerSettings, flags, {})
    settings.validate()
    return server_manifest(ServerPlan(manifest=manifest, settings=settings, given=flags))


def agent_daemon_set(plan: Plan, choices: Choices, endpoint: Endpoint) -> str:
    """The agents of the guest cluster, one on each node.

    Raises:
        ConfigError: a choice is wrong; one sentence.
    """
    cluster = plan.cluster
    manifest = ManifestSettings(
        form=DAEMON_SET,
        name="konnectivity-agent",
        image=choices.image,
        secret=AGENT_SECRET,
        ca_config_map=CA_CONFIG_MAP,
        dns_policy="Default",  # the cluster's own DNS may need the tunnel first
        https_proxy=cluster.https_proxy,
        no_proxy=no_proxy(cluster) if cluster.https_proxy else (),
    )
    flags = agent_flags(endpoint)
    settings = load(AgentSettings, flags, {})
    settings.validate()
    return agent_manifest(AgentPlan(manifest=manifest, settings=settings, given=flags))
