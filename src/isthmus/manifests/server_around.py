"""What is around the pods of a server: its account and rights, Services, a budget, a policy."""

from __future__ import annotations

from isthmus.manifests import around
from isthmus.manifests.around import SERVER_VERBS, Owner
from isthmus.manifests.pods import Manifest
from isthmus.manifests.server_plan import ServerPlan
from isthmus.manifests.settings import DAEMON_SET, DEPLOYMENT, EARLY_FORMS, SYSTEMD


def around_server(plan: ServerPlan) -> list[Manifest]:
    """Everything that is to be there besides the pods themselves, in the order to make it."""
    manifest = plan.manifest
    owner = Owner(name=manifest.name, namespace=manifest.namespace)
    found = [] if manifest.form in EARLY_FORMS else [around.service_account(owner)]
    found += _rights(plan, owner)
    if manifest.form != SYSTEMD:
        found += _services(plan, owner)
    if manifest.form == DEPLOYMENT and manifest.disruption_budget and manifest.replicas > 1:
        found.append(around.disruption_budget(owner))
    if has_policy(plan):
        found.append(_policy(plan, owner))
    return found


def has_policy(plan: ServerPlan) -> bool:
    """Whether a NetworkPolicy means anything: for pods with a network of their own."""
    manifest = plan.manifest
    own = manifest.form == DEPLOYMENT or (manifest.form == DAEMON_SET and not manifest.host_network)
    return own and manifest.network_policy


def _rights(plan: ServerPlan, owner: Owner) -> list[Manifest]:
    """For the pods' own account, or for who a node's kubeconfig says.

    A pod with a kubeconfig asks another cluster, where this manifest has nothing to say.
    """
    manifest, settings = plan.manifest, plan.settings
    if plan.uses_account:
        subject = owner.account
    elif manifest.form in EARLY_FORMS:
        subject = around.user(manifest.kubeconfig_user)
    else:
        return []
    found = []
    if settings.enable_lease_controller:
        if plan.makes_lease_namespace:
            found.append(around.namespace(owner, settings.lease_namespace))
        found += around.lease_rights(
            owner, subject, namespace=settings.lease_namespace, verbs=SERVER_VERBS
        )
    if settings.wants_tokens:
        found += around.token_rights(owner, subject)
    return found


def _services(plan: ServerPlan, owner: Owner) -> list[Manifest]:
    # An agent makes a server ready, so it has to reach one that is not.
    agents = around.service(
        owner,
        {"agents": plan.settings.agent_port},
        kind=plan.manifest.service_type,
        early=True,
        annotations=plan.extras.service_annotations,
    )
    ports = plan.frontend_ports
    front = [around.service(owner, ports, name=f"{owner.name}-frontend")] if ports else []
    return [agents, *front]


def _policy(plan: ServerPlan, owner: Owner) -> Manifest:
    """Agents and kube-apiserver from where they are, probes from anywhere.

    Servers hand agents on to each other, at the same port, so they come from the pods as well.
    What goes out is open: the Kubernetes API, other servers, and what ``via=direct`` and
    --allowed-destination name.
    """
    settings = plan.settings
    agents = around.from_networks(plan.manifest.allow_cidr, settings.agent_port)
    if "from" in agents:
        agents["from"].append({"podSelector": {"matchLabels": owner.selector}})
    ports = plan.frontend_ports.values()
    front = [{"from": _apiserver(plan), **around.to_ports(*ports)}] if ports else []
    return around.network_policy(owner, [agents, *front, around.to_ports(settings.health_port)])


def _apiserver(plan: ServerPlan) -> list[Manifest]:
    """Where kube-apiserver is: at addresses, in a namespace, or both; else beside the server."""
    manifest = plan.manifest
    found: list[Manifest] = [*around.blocks(manifest.apiserver_cidr)]
    name = manifest.apiserver_namespace or ("" if found else manifest.namespace)
    return [*found, *([around.in_namespace(name)] if name else [])]
