"""Isthmus' own parts of a plan, filled in: files by their names, and what cannot be written yet.

Each part is in a module of its own, own_parts_*.py. What publishes the services, Services and
Routes, is made by objects.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isthmus.hosting.model import Endpoint, From, Plan, Service
from isthmus.hosting.own_parts_konnectivity import (
    Choices,
    agent_command,
    agent_daemon_set,
    server_command,
    server_files,
)
from isthmus.hosting.own_parts_names import certificates, components_no_proxy, no_proxy
from isthmus.hosting.own_parts_node import node_files
from isthmus.hosting.own_parts_router import router_files
from isthmus.hosting.own_parts_routes import routes_document, shared_addresses
from isthmus.hosting.reach import way
from isthmus.hosting.visibility import SHARED_INGRESS
from isthmus.settings.go_yaml_writing import to_yaml

OBJECTS = "objects.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnParts:
    """``files`` by name; ``missing`` says, a sentence each, what could not be written and why."""

    files: dict[str, str]
    missing: tuple[str, ...] = ()


def own_parts(plan: Plan, choices: Choices | None = None) -> OwnParts:
    """Fill in everything that a plan without errors decides.

    Raises:
        ConfigError: a choice is wrong; one sentence.
    """
    choices = choices or Choices()
    files = {OBJECTS: to_yaml(plan.objects), **server_files(plan, choices)}
    missing: list[str] = []
    for service, write in _FOR_NODES.items():
        endpoint = way(plan, service, From.GUEST_VPC)
        why = _why_not(plan, service, endpoint)
        if endpoint is None or why:
            missing.append(why)
        else:
            files |= write(plan, choices, endpoint)
    for shared in shared_addresses(plan):
        files[f"sni-routes.{shared.name}.yaml"] = routes_document(shared)
    files |= router_files(plan, choices)
    files["names.yaml"] = to_yaml([names_document(plan)])
    return OwnParts(files=files, missing=tuple(missing))


def _why_not(plan: Plan, service: Service, endpoint: Endpoint | None) -> str:
    """Why nodes cannot be told where a service is; empty when they can."""
    if endpoint is None:
        return f"nodes have no way to {service.value}"
    if endpoint.target is None:
        return (
            f"the address of {service.value} is known when {endpoint.by} has it: say it with"
            f" --address {endpoint.name}=HOST{'' if endpoint.port else ':PORT'}"
        )
    told_by_id = service is Service.API_SERVER and endpoint.through == SHARED_INGRESS
    if told_by_id and not plan.cluster.cluster_id:
        return "a shared ingress tells clusters apart by spec.clusterID, which is not given"
    return ""


def _agents(plan: Plan, choices: Choices, endpoint: Endpoint) -> dict[str, str]:
    return {"konnectivity-agent.yaml": agent_daemon_set(plan, choices, endpoint)}


_FOR_NODES: dict[Service, Callable[[Plan, Choices, Endpoint], dict[str, str]]] = {
    Service.KONNECTIVITY: _agents,
    Service.API_SERVER: node_files,
}


def names_document(plan: Plan) -> dict[str, Any]:
    """Names of certificates, and what is reached without a proxy."""
    return {
        "certificates": [
            {
                "name": each.name,
                "shownBy": each.shown_by,
                "dnsNames": list(each.names),
                **({"ipAddresses": list(each.addresses)} if each.addresses else {}),
            }
            for each in certificates(plan)
        ],
        "noProxy": {
            "nodes": list(no_proxy(plan.cluster)),
            "components": {
                name: list(entries) for name, entries in components_no_proxy(plan.cluster).items()
            },
        },
    }


def command_lines(plan: Plan, choices: Choices | None = None) -> dict[str, tuple[str, ...]]:
    """The words that start a server and an agent; no agent where it could not find its server."""
    found = {"server": server_command(choices or Choices())}
    endpoint = way(plan, Service.KONNECTIVITY, From.GUEST_VPC)
    if endpoint is not None and endpoint.target is not None:
        found["agent"] = agent_command(endpoint)
    return found
