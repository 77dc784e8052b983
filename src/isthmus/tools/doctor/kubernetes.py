"""Whether the Kubernetes API answers, and lets the program do what it has to; and its time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.errors import ConfigError, KubeError
from isthmus.kube.permissions import Permission, look_at_api, may
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.tools.doctor.certificates import judge_skew
from isthmus.tools.doctor.finding import Asked, CheckId, Finding
from isthmus.tools.doctor.patient import Patient

_LEASES = "coordination.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a program asks of the API: as whom, and which permissions that takes."""

    kubeconfig: str
    server: str = ""
    permissions: tuple[Permission, ...] = ()

    @property
    def about(self) -> str:
        """What sentences call it."""
        return f"--kubeconfig {self.kubeconfig}" if self.kubeconfig else "the pod's service account"


def need_of(settings: object) -> Need | None:
    """What a program asks of the API; None if nothing."""
    match settings:
        case ServerSettings() if settings.needs_kube:
            return Need(kubeconfig=settings.kubeconfig, permissions=tuple(_of_server(settings)))
        case AgentSettings() if settings.count_server_leases:
            namespace = settings.lease_namespace
            return Need(
                kubeconfig=settings.kubeconfig, permissions=tuple(_leases(namespace, *_READ))
            )
        case NodeProxySettings() if not settings.manifests:
            return Need(
                kubeconfig=settings.kubeconfig,
                server=settings.master,
                permissions=tuple(_of_node_proxy()),
            )
        case SidecarSettings() if settings.needs_kube:
            permissions = tuple(Permission(verb=verb, resource="services") for verb in _READ)
            return Need(kubeconfig=settings.kubeconfig, permissions=permissions)
        case _:
            return None


_READ = ("list", "watch")


def _leases(namespace: str, *verbs: str) -> Iterator[Permission]:
    for verb in verbs:
        yield Permission(verb=verb, resource="leases", group=_LEASES, namespace=namespace)


def _of_server(settings: ServerSettings) -> Iterator[Permission]:
    if settings.wants_tokens:
        yield Permission(verb="create", resource="tokenreviews", group="authentication.k8s.io")
    if settings.enable_lease_controller:
        verbs = (*_READ, "get", "create", "update", "delete")
        yield from _leases(settings.lease_namespace, *verbs)


def _of_node_proxy() -> Iterator[Permission]:
    for resource, group in (
        ("services", ""),
        ("nodes", ""),
        ("endpointslices", "discovery.k8s.io"),
    ):
        for verb in _READ:
            yield Permission(verb=verb, resource=resource, group=group)


def see_api(patient: Patient) -> Iterator[Finding]:
    """Ask the API for its version, compare its time, and ask what we may do."""
    need = need_of(patient.settings)
    if need is None:
        return
    asked = Asked(CheckId.KUBE_API, need.about, "asked the API for its version")
    limit = patient.timeout_s
    try:
        seen = asyncio.run(look_at_api(need.kubeconfig, server=need.server, timeout_s=limit))
    except ConfigError as error:
        yield asked.fail(str(error), "give a kubeconfig that works: kubectl --kubeconfig=… version")
        return
    except KubeError as error:
        yield asked.fail(str(error), "see its address, the routes and firewalls to it, and its CA")
        return
    if seen.status >= 500:
        yield asked.fail(f"{seen.server} answers {seen.status}", "see how kube-apiserver is doing")
    else:
        yield asked.ok(f"{seen.server} answers")
    if seen.date is not None:
        yield judge_skew(f"{seen.server}, its Date", seen.date, patient.now())
    yield from _see_permissions(need, limit)


def _see_permissions(need: Need, limit_s: float) -> Iterator[Finding]:
    done = "asked by SelfSubjectAccessReview"
    try:
        found = asyncio.run(
            may(need.kubeconfig, need.permissions, server=need.server, timeout_s=limit_s)
        )
    except (ConfigError, KubeError) as error:
        unknown = isinstance(error, KubeError) and error.status == 401
        todo = "give credentials that the API knows" if unknown else "see how the API is doing"
        yield Asked(CheckId.PERMISSIONS, need.about, done).fail(str(error), todo)
        return
    for permission, allowed in zip(need.permissions, found, strict=True):
        asked = Asked(CheckId.PERMISSIONS, f"{need.about}: {permission}", done)
        if allowed:
            yield asked.ok("allowed")
        else:
            yield asked.fail(
                "not allowed",
                f"allow it by a Role or ClusterRole: kubectl auth can-i {permission.verb}"
                f" {permission.resource}",
            )
