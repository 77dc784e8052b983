"""An agent as a static pod, a systemd unit, a DaemonSet or a Deployment.

KEP-2025, "Deployment Model": an agent that carries its node's traffic runs as a static
pod or a unit, because the kubelet gets any other pod from kube-apiserver, which it reaches only
through that agent. Files needed before the node has joined come from the node itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import quote

from isthmus.errors import ConfigError
from isthmus.manifests import around, containers, pods, volumes
from isthmus.manifests.arguments import Given, arguments, for_pod, references
from isthmus.manifests.around import AGENT_VERBS, WorkloadOwner
from isthmus.manifests.containers import PodContainer, fields, variables
from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.settings import (
    DAEMON_SET,
    DEPLOYMENT,
    EARLY_FORMS,
    STATIC_POD,
    SYSTEMD,
)
from isthmus.manifests.systemd import Lines, ServiceUnit, command_line, file_names
from isthmus.manifests.volumes import SERVICE_ACCOUNT, FlagFile, Volume
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.agent.settings_manifest import AgentManifestSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.settings.identifiers import Identifiers
from isthmus.settings.options import options_of
from isthmus.text.go_yaml import to_yaml
from isthmus.values import is_address

TOKEN_FLAG = "--service-account-token-path"
_CA_FLAG = "--ca-cert"
_SPARE_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """How an agent is to be run, and the flags as typed.

    ``given`` has the agent's flags as typed, ``settings`` their values.
    """

    manifest: AgentManifestSettings
    settings: AgentSettings
    given: Given

    @property
    def args(self) -> list[str]:
        """The agent's own command line, without the program."""
        given = {**self.given, "target": tuple(map(str, self.settings.node_traffic.targets))}
        return ["agent", *arguments(options_of(AgentSettings), given)]

    @property
    def setup(self) -> list[str]:
        """The command line of the privileged setup; empty if there is none.

        With the gate off it removes what was set up while it was on.
        """
        settings = self.settings
        if not settings.bind.address:
            return []
        named = ("bind_address", "bind_interface", "uplink_interface")
        given = {each: self.given.get(each, ()) for each in named}
        if not settings.takes_node_traffic:
            given.pop("uplink_interface")
        flags = arguments(options_of(AgentSettings), given)
        remove = [] if settings.takes_node_traffic else ["--remove"]
        return ["agent", "setup-interface", *flags, *remove]

    @property
    def files(self) -> tuple[FlagFile, ...]:
        """The files that the flags name, including the token.

        Raises:
            ConfigError: a path cannot be used in a manifest.
        """
        return tuple(volumes.flag_files(self.settings))

    @property
    def grace_s(self) -> int:
        """How long the agent may take to end."""
        return math.ceil(self.settings.graceful_shutdown_timeout_s) + _SPARE_S


def agent_manifest(plan: AgentPlan) -> str:
    """Render the manifest of an agent.

    Raises:
        ConfigError: this agent cannot run in that form; the message says why.
    """
    check_agent(plan)
    return _WRITERS[plan.manifest.form](plan)


def check_agent(plan: AgentPlan) -> None:
    """Check that the agent can run in its form.

    Raises:
        ConfigError: it cannot; the message says why.
    """
    plan.manifest.validate()
    form, settings = plan.manifest.form, plan.settings
    if settings.admin.health_port == 0:
        raise ConfigError(
            "--health-server-port must not be 0 in a manifest: probes need a fixed port"
        )
    if form in EARLY_FORMS:
        _check_early(plan)
    elif settings.node_traffic.target:
        raise ConfigError(
            f"an agent with --target cannot be a {form}: the kubelet gets such pods from"
            " kube-apiserver, which it reaches only through this agent (KEP-2025); use"
            f" --as={STATIC_POD} or --as={SYSTEMD}"
        )
    if form == SYSTEMD and references(plan.given):
        raise ConfigError(f"$({references(plan.given)[0]}) is only available in a pod")


def _check_early(plan: AgentPlan) -> None:
    what = "a static pod" if plan.manifest.form == STATIC_POD else "a unit"
    for file in plan.files:
        if SERVICE_ACCOUNT in file.path.parents:
            raise ConfigError(
                f"{file.flag} {file.path}: {what} has no service account; name a file of the node"
            )
    if plan.settings.count_server_leases and not plan.settings.kubeconfig:
        raise ConfigError(
            f"--count-server-leases needs --kubeconfig here: {what} has no service account"
        )


def _static_pod(plan: AgentPlan) -> str:
    found = volumes.host_directories(plan.files)
    return to_yaml([pods.static_pod(_pod(plan, found))])


def _in_cluster(plan: AgentPlan) -> str:
    return to_yaml(cluster_objects(plan))


def cluster_objects(plan: AgentPlan) -> list[Manifest]:
    """A daemonset or deployment and its related objects, in the order of creation.

    They have their own account if the agent uses a token or counts Leases.

    Raises:
        ConfigError: the files cannot be mounted at their paths.
    """
    manifest, settings = plan.manifest, plan.settings
    mounted = any(SERVICE_ACCOUNT in file.path.parents for file in plan.files)
    mounted |= settings.count_server_leases and not settings.kubeconfig
    account = mounted or bool(settings.service_account_token_path)
    extra: Manifest = {
        **({"serviceAccountName": manifest.name} if account else {}),
        **({"dnsPolicy": manifest.dns_policy} if manifest.dns_policy else {}),
        "automountServiceAccountToken": mounted,
        "securityContext": {"fsGroup": manifest.run_as},
    }
    pod = _pod(plan, _cluster_volumes(plan), extra)
    if manifest.form == DEPLOYMENT:
        workload = pods.deployment(pod, replicas=manifest.replicas)
    else:
        workload = pods.daemon_set(pod, host_network=manifest.host_network)
    return [*around_agent(manifest, settings, account=account), workload]


def _cluster_volumes(plan: AgentPlan) -> list[Volume]:
    """The token and the CA, each in its own directory, and one Secret with all other files."""
    manifest = plan.manifest
    apart: dict[str, tuple[FlagFile, Volume]] = {}
    files = []
    for file in plan.files:
        if SERVICE_ACCOUNT in file.path.parents:
            continue
        if file.flag == TOKEN_FLAG:
            volume = volumes.projected_token(file, audience=manifest.token_audience)
            apart["the token"] = file, volume
        elif file.flag == _CA_FLAG and manifest.ca_config_map:
            volume = volumes.config_map("ca", manifest.ca_config_map, {"ca.crt": file})
            apart["the ConfigMap"] = file, volume
        else:
            files.append(file)
    for what, (owner, _) in apart.items():
        for file in (*files, *(each for each, _ in apart.values() if each is not owner)):
            if file.directory == owner.directory:
                raise ConfigError(
                    f"{file.flag} {file.path}: the directory of {what} must contain no other files:"
                    f" give {owner.flag} a directory of its own"
                )
    found = volumes.secret_directory(files, secret=manifest.secret or manifest.name)
    return [*(volume for _, volume in apart.values()), *found]


def _pod(plan: AgentPlan, found: list[Volume], extra: Manifest | None = None) -> Pod:
    manifest, settings = plan.manifest, plan.settings
    if settings.kubeconfig:
        found = [*found, volumes.scratch()]  # for keys embedded in a kubeconfig
    # Every agent needs a unique id: the name of its pod.
    own_id = {} if settings.agent_id else {"PROXY_AGENT_ID": "POD_NAME"}
    agent = PodContainer(
        name="agent",
        image=manifest.image,
        args=for_pod(plan.args),
        security=containers.unprivileged(manifest.run_as),
        env=[*fields(references(plan.given), **own_id), *variables(_proxies(manifest))],
        volumes=found,
        ports={"health": settings.admin.health_port},
        probes=containers.probes_of(settings.admin),
        resources=containers.resources(),
    )
    setup = PodContainer(
        name="setup-interface",
        image=manifest.image,
        args=for_pod(plan.setup),
        security=containers.with_capability(containers.NET_ADMIN),
        resources=containers.resources(),
    )
    return Pod(
        name=manifest.name,
        namespace=manifest.namespace,
        containers=[agent.to_spec()],
        init_containers=[setup.to_spec()] if plan.setup else [],
        volumes=found,
        grace_s=plan.grace_s,
        extra=extra or {},
    )


def _proxies(manifest: AgentManifestSettings) -> dict[str, str]:
    if not manifest.https_proxy:
        return {}
    without = {"NO_PROXY": ",".join(manifest.no_proxy)} if manifest.no_proxy else {}
    return {"HTTPS_PROXY": manifest.https_proxy, **without}


_UNIT_COMMENTS = (
    "An Isthmus agent, which has to run before the kubelet can reach kube-apiserver.",
    "",
    "    groupadd --system {group}",
    "    chgrp {group} FILES && chmod 0640 FILES      # {names}",
    "    systemctl enable --now UNIT",
    "",
    "The agent reads its files again when they change, so it needs no restart. systemd credentials",
    "would be copies from the start of the unit. The agent has no capability; privileged steps run",
    "before it starts and after it ends.",
)


def _unit(plan: AgentPlan) -> str:
    group, names = plan.manifest.unit_group, file_names(plan.files)
    unit = ServiceUnit(
        description="Isthmus agent",
        comments=[line.format(group=group, names=names) for line in _UNIT_COMMENTS],
        commands=_unit_commands(plan),
        files=plan.files,
        # A dynamic user owns no files and cannot change their modes.
        user=[("DynamicUser", "yes"), ("SupplementaryGroups", group)],
        before_kubelet=plan.settings.takes_node_traffic,
        grace_s=plan.grace_s,
    )
    return unit.to_text()


def _unit_commands(plan: AgentPlan) -> Lines:
    executable, setup = plan.manifest.executable, plan.setup
    start = ("ExecStart", command_line([executable, *plan.args]))
    prepare = command_line([executable, *setup])
    if not plan.settings.takes_node_traffic:
        return [("ExecStartPre", f"+-{prepare}"), start] if setup else [start]
    # Another agent of the node may share the address: then it stays, which is not a failure.
    remove = [each for each in setup if not each.startswith("--uplink-interface")]
    clean_up = command_line([executable, *remove, "--remove"])
    return [
        *([("ExecStartPre", f"+{prepare}")] if setup else []),
        start,
        ("ExecStopPost", f"+-{clean_up}"),
    ]


_WRITERS: Mapping[str, Callable[[AgentPlan], str]] = {
    STATIC_POD: _static_pod,
    SYSTEMD: _unit,
    DAEMON_SET: _in_cluster,
    DEPLOYMENT: _in_cluster,
}


def plan_warnings(plan: AgentPlan) -> list[str]:
    """Warnings about valid but probably unintended settings."""
    found = plan.settings.warnings()
    if plan.settings.bind.address and not plan.settings.gates.enabled(CLUSTER_TO_MASTER):
        found.append(
            "the gate is off: the manifest removes the address"
            f" {' and '.join(plan.settings.bind.address)} from the node when it starts"
        )
    return found


def around_agent(
    manifest: AgentManifestSettings, settings: AgentSettings, *, account: bool
) -> list[Manifest]:
    """The objects besides the pods, in the order of creation."""
    owner = WorkloadOwner(name=manifest.name, namespace=manifest.namespace)
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


def has_policy(manifest: AgentManifestSettings) -> bool:
    """Whether a NetworkPolicy applies: only for pods with their own network."""
    return manifest.network_policy and (manifest.form == DEPLOYMENT or not manifest.host_network)


def _policy(
    owner: WorkloadOwner, manifest: AgentManifestSettings, settings: AgentSettings
) -> Manifest:
    """Allow ingress to an agent only for health and metrics.

    Egress is open, because an agent dials pods, Services and nodes at any address. If
    networks were configured, egress is those, DNS, and its servers at any address.
    """
    ingress = [around.to_ports(settings.admin.health_port)]
    if not manifest.allow_cidr:
        return around.network_policy(owner, ingress)
    egress = [
        around.to_dns(),
        around.to_ports(settings.proxy_server_port),
        {"to": around.blocks(manifest.allow_cidr)},
    ]
    return around.network_policy(owner, ingress, egress)


def identifiers(texts: Sequence[str], given: str = "") -> str:
    """A text for --agent-identifiers; ``given`` is a typed one, which stays in front.

    Raises:
        ConfigError: a text is neither address, network nor host; the message quotes it.
    """
    pairs: dict[str, None] = {}
    for text in texts:
        try:
            # Quoted, so that a text stays one value whatever it contains.
            found = Identifiers.parse(f"{_kind(text)}={quote(text, safe=':/')}")
        except ValueError:
            raise ConfigError(
                f"--stand-for takes an address, a network or a host, not {text!r}"
            ) from None
        pairs[found.to_query()] = None
    return "&".join(filter(None, (given, *pairs)))


def _kind(text: str) -> str:
    if "/" in text:
        return "cidr"
    if not is_address(text):
        return "host"
    return f"ipv{ip_address(text).version}"
