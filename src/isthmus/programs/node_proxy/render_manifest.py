"""Renders a node proxy as a DaemonSet with its RBAC rules, a static pod, or a systemd unit.

Least privilege: an init container (``--init-only``) sets sysctls; the main container has only the
capabilities for rules. ipvs mode sets sysctls while it runs, and is therefore privileged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests import around, containers, pods, volumes
from isthmus.manifests.arguments import Given, arguments, for_pod, references
from isthmus.manifests.around import WorkloadOwner
from isthmus.manifests.containers import NET_ADMIN, NET_RAW, SYS_RESOURCE, PodContainer
from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.settings import DAEMON_SET, STATIC_POD, SYSTEMD
from isthmus.manifests.systemd import ServiceUnit, command_line, file_names
from isthmus.manifests.template import Node
from isthmus.manifests.volumes import SERVICE_ACCOUNT, FlagFile, Volume
from isthmus.programs.node_proxy.settings import IPVS, NFTABLES, NodeProxySettings
from isthmus.programs.node_proxy.settings_manifest import NodeProxyManifestSettings
from isthmus.settings.options import options_of
from isthmus.text.go_yaml import to_yaml

_PROGRAM = "node-proxy"
_FILES = ("config", "kubeconfig")
#: Files of the node in any form: a private key does not belong in a ConfigMap.
_NODE_FILES = ("health_cert", "health_key")
_SPARE_S = 10
#: Without SYS_RESOURCE a process cannot have a lower OOM score than it was started with: a unit has
#: this one, and a pod of system-node-critical the kubelet's.
_UNIT_SCORE, _POD_SCORE = -999, -997
LOCK, MODULES = "/run/xtables.lock", "/lib/modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProxyPlan:
    """The settings of a manifest and of its node proxy.

    ``given`` has the node proxy's flags as typed, ``settings`` their values.
    """

    manifest: NodeProxyManifestSettings
    settings: NodeProxySettings
    given: Given

    @property
    def runs_iptables(self) -> bool:
        """Whether it runs iptables, or a configuration file may say so."""
        return bool(self.settings.config) or self.settings.mode != NFTABLES

    @property
    def watches_ranges(self) -> bool:
        """Whether it watches ServiceCIDRs, or a configuration file may say so."""
        return bool(self.settings.config) or self.settings.mode == NFTABLES

    @property
    def privileged(self) -> bool:
        return self.settings.mode == IPVS

    @property
    def args(self) -> list[str]:
        """The program's arguments, without ``isthmus``."""
        given = dict(self.given)
        if self.manifest.form != SYSTEMD and not self.settings.hostname_override:
            # With hostNetwork a pod has the host's name, which may differ from the Node's.
            given["hostname_override"] = ("$(NODE_NAME)",)
        return [_PROGRAM, *arguments(options_of(NodeProxySettings), given)]

    @property
    def files(self) -> tuple[FlagFile, ...]:
        """The files that flags name.

        Raises:
            ConfigError: a manifest cannot contain one of the paths.
        """
        return (*self._files(_FILES), *self.node_files)

    @property
    def node_files(self) -> tuple[FlagFile, ...]:
        """Those of the files that are on the node in any form."""
        return self._files(_NODE_FILES)

    def _files(self, attributes: Sequence[str]) -> tuple[FlagFile, ...]:
        named = {each.replace("_", "-"): getattr(self.settings, each) for each in attributes}
        return tuple(FlagFile.named(f"--{flag}", text) for flag, text in named.items() if text)

    @property
    def grace_s(self) -> int:
        """The grace period: the time for open connections to localhost, if there are any."""
        carries = self.settings.nftables_localhost_nodeports
        return math.ceil(self.settings.graceful_shutdown_timeout_s * carries) + _SPARE_S

    @property
    def max_files(self) -> int:
        return max(65536, 4 * self.settings.max_connections + 8192)


def node_proxy_manifest(plan: NodeProxyPlan) -> str:
    """Render the manifest.

    Raises:
        ConfigError: the node proxy cannot run in that form; the message says why.
    """
    _check(plan)
    if plan.manifest.form == SYSTEMD:
        return _unit(plan)
    return to_yaml(_daemon_set(plan) if plan.manifest.form == DAEMON_SET else [_static_pod(plan)])


def _check(plan: NodeProxyPlan) -> None:
    settings, manifest = plan.settings, plan.manifest
    form = manifest.form
    if settings.manifests:
        raise ConfigError("--manifests cannot be used in a manifest: set an API server")
    for flag in ("init_only", "cleanup", "write_config_to"):
        if getattr(settings, flag):
            raise ConfigError(f"--{flag.replace('_', '-')} ends the program at once: leave it out")
    if settings.healthz is None or settings.healthz.port == 0:
        raise ConfigError("--healthz-bind-address must have a port, which probes need")
    reached = settings.kubeconfig or settings.config
    if form == DAEMON_SET:
        if not reached and manifest.api is None:
            raise ConfigError(
                "--api-server is missing: the Service of kube-apiserver is not reachable before"
                " a node proxy runs; set --api-server, --kubeconfig or --config"
            )
        if reached and manifest.api is not None:
            raise ConfigError("--api-server cannot be combined with --kubeconfig or --config")
        if settings.master and not reached:
            raise ConfigError("--master has no credentials in a pod: use --api-server")
    elif not reached:
        what = "a static pod" if form == STATIC_POD else "a systemd unit"
        raise ConfigError(f"--kubeconfig is missing: {what} has no service account")
    elif any(SERVICE_ACCOUNT in file.path.parents for file in plan.files):
        raise ConfigError("--kubeconfig must be a file on the node: no service account here")
    if manifest.config_map and not reached:
        raise ConfigError(
            "--config-map requires --config or --kubeconfig, whose directory it mounts"
        )
    named = references(plan.given)
    if named and form == SYSTEMD:
        raise ConfigError(f"$({named[0]}) is expanded only in the flags of a pod")


def workload(
    plan: NodeProxyPlan, args: Sequence[Node], files: Sequence[Volume], env: Sequence[Node]
) -> tuple[list[Manifest], list[Volume]]:
    """The init container, the main container, and their volumes."""
    manifest = plan.manifest
    assert plan.settings.healthz is not None  # checked by _check
    host = plan.settings.healthz.host
    stays = PodContainer(
        name=_PROGRAM,
        image=manifest.image,
        args=args,
        security=security(plan),
        env=env,
        volumes=[*files, *kernel_volumes(iptables=plan.runs_iptables)],
        # Declares no ports: the scheduler would place no pod beside a kube-proxy with the same.
        probes=containers.probes(
            port=plan.settings.healthz.port,
            host="" if host in ("0.0.0.0", "::") else host,
            scheme="HTTPS" if plan.settings.health_cert else "",
        ),
        resources=resources(),
    )
    first = prepares(stays, [*args, "--init-only=true"])
    return [first.to_spec(), stays.to_spec()], list(stays.volumes)


def prepares(stays: PodContainer, args: Sequence[Node]) -> PodContainer:
    """The init container, which sets sysctls and ends."""
    return replace(
        stays,
        name="prepare-kernel",
        args=args,
        security=containers.privileged(),
        ports={},
        probes={},
    )


def security(plan: NodeProxyPlan) -> dict[str, Any]:
    """The security context of the main container."""
    if plan.privileged:
        return containers.privileged()
    return containers.with_capability(*capabilities(plan))


def capabilities(plan: NodeProxyPlan) -> list[str]:
    """Capabilities for rules, for iptables' raw sockets, and for a lower OOM score."""
    found = [NET_ADMIN]
    if plan.runs_iptables:
        found.append(NET_RAW)
    started = _UNIT_SCORE if plan.manifest.form == SYSTEMD else _POD_SCORE
    if plan.settings.oom_score_adj < started:
        found.append(SYS_RESOURCE)
    return found


def kernel_volumes(*, iptables: bool) -> list[Volume]:
    """The host paths that iptables needs: its lock, and kernel modules."""
    if not iptables:
        return []
    lock = {"hostPath": {"path": LOCK, "type": "FileOrCreate"}}
    modules = {"hostPath": {"path": MODULES, "type": ""}}
    return [
        Volume(name="xtables-lock", mount=LOCK, source=lock, read_only=False),
        Volume(name="modules", mount=MODULES, source=modules),
    ]


def resources() -> dict[str, Any]:
    """Resource requests; no limits: a node without a node proxy loses its Services."""
    return {"requests": {"cpu": "100m", "memory": "128Mi"}}


def api_variables(host: str, port: str) -> list[dict[str, Any]]:
    """Variables that replace the Service's address in the in-cluster configuration."""
    named = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return containers.variables(named)


def _daemon_set(plan: NodeProxyPlan) -> list[Manifest]:
    manifest = plan.manifest
    owner = WorkloadOwner(name=manifest.name, namespace=manifest.namespace)
    files = [each for each in plan.files if SERVICE_ACCOUNT not in each.path.parents]
    if manifest.config_map:
        own = plan.node_files
        named = {each.path.name: each for each in files if each not in own}
        found = [
            volumes.config_map("config", manifest.config_map, named),
            *volumes.host_directories(own),
        ]
    else:
        found = volumes.host_directories(files)
    env = _environment(plan)
    if manifest.api is not None:
        env += api_variables(manifest.api.host, str(manifest.api.port))
    pod = _pod(plan, found, env)
    extra = {
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": True,
        # The cluster's DNS is a Service.
        "dnsPolicy": "Default",
    }
    rights = around.service_rights(owner, owner.account, service_cidrs=plan.watches_ranges)
    return [
        around.service_account(owner),
        *rights,
        pods.daemon_set(replace(pod, extra=extra)),
    ]


def _static_pod(plan: NodeProxyPlan) -> Manifest:
    return pods.static_pod(_pod(plan, volumes.host_directories(plan.files), _environment(plan)))


def _environment(plan: NodeProxyPlan) -> list[dict[str, Any]]:
    named = references({"args": tuple(plan.args)})
    return containers.fields(named)


def _pod(plan: NodeProxyPlan, files: Sequence[Volume], env: Sequence[Node]) -> Pod:
    (first, stays), found = workload(plan, for_pod(plan.args), files, env)
    return Pod(
        name=plan.manifest.name,
        namespace=plan.manifest.namespace,
        init_containers=[first],
        containers=[stays],
        volumes=found,
        grace_s=plan.grace_s,
    )


_UNIT_COMMENTS = (
    "Programs this node for the Services of its cluster, in place of kube-proxy.",
    "",
    "    systemctl enable --now UNIT        # reads {names}",
    "",
    "Runs as root, because it sets sysctls and shares iptables' lock, but with only the",
    "capabilities that rules need.",
)


def _unit(plan: NodeProxyPlan) -> str:
    loosened = {"ProtectKernelTunables": "no"}
    if plan.privileged:
        loosened["ProtectKernelModules"] = "no"
    allowed = [*capabilities(plan), *(["SYS_MODULE"] if plan.privileged else [])]
    unit = ServiceUnit(
        description="Isthmus node proxy",
        comments=[each.format(names=file_names(plan.files)) for each in _UNIT_COMMENTS],
        commands=[("ExecStart", command_line([plan.manifest.executable, *plan.args]))],
        files=plan.files,
        user=[("ReadWritePaths", "/run")] if plan.runs_iptables else [],
        capabilities=allowed,
        loosened=loosened,
        grace_s=plan.grace_s,
        max_files=plan.max_files,
        max_memory="infinity",
    )
    return unit.to_text()


def plan_warnings(plan: NodeProxyPlan) -> list[str]:
    """Warnings about a valid plan."""
    found = list(plan.settings.notes())
    if plan.privileged and plan.manifest.form != SYSTEMD:
        found.append(
            "with --proxy-mode=ipvs the container is privileged because it sets sysctls while it"
            " runs; nftables needs only NET_ADMIN"
        )
    if plan.settings.config:
        found.append(
            "the file of --config is not read here: the manifest suits every mode except ipvs"
        )
    if not plan.settings.take_over:
        found.append("without --take-over the node proxy refuses to start while kube-proxy runs")
    return found
