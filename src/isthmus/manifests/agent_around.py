"""What is around the pods of agents: their account and rights, a budget, a policy."""

from __future__ import annotations

from isthmus.manifests import around
from isthmus.manifests.around import AGENT_VERBS, Owner
from isthmus.manifests.pods import Manifest
from isthmus.manifests.settings import DEPLOYMENT, ManifestSettings
from isthmus.programs.agent.settings import AgentSettings


def around_agent(
    manifest: ManifestSettings, settings: AgentSettings, *, account: bool
) -> list[Manifest]:
    """Everything that is to be there besides the pods themselves, in the order to make it."""
    owner = Owner(name=manifest.name, namespace=manifest.namespace)
    found = [around.service_account(owner)] if account else []
    if settings.count_server_leases and not settings.kubeconfig:
        found += around.lease_rights(
            owner, owner.account, namespace=settings.lease_namespace, verbs=AGENT_VERBS
        )
    if manifest.form == DEPLOYMENT and manifest.disruption_budget and manifest.replicas > 1:
        found.append(around.disruption_budget(owner))
    if has_policy(manifest):
        found.append(_policy(owner, manifest, settings))
    return found


def has_policy(manifest: ManifestSettings) -> bool:
    """Whether a NetworkPolicy means anything: for pods with a network of their own."""
    return manifest.network_policy and (manifest.form == DEPLOYMENT or not manifest.host_network)


def _policy(owner: Owner, manifest: ManifestSettings, settings: AgentSettings) -> Manifest:
    """Nobody connects to an agent but for its health and metrics.

    What goes out is what it is there for: pods, Services and nodes, whatever their addresses. Where
    networks were named it is those, DNS, and its servers wherever they are.
    """
    ingress = [around.to_ports(settings.health_server_port)]
    if not manifest.allow_cidr:
        return around.network_policy(owner, ingress)
    egress = [
        around.to_dns(),
        around.to_ports(settings.proxy_server_port),
        {"to": around.blocks(manifest.allow_cidr)},
    ]
    return around.network_policy(owner, ingress, egress)
