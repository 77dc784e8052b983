"""What a node proxy would program, without a node: for render, explain and diff.

Manifests, or one listing of an API server, become views; flags and the Node become rule settings.
Of this machine only the name is used, and the kernel is not touched.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from isthmus.errors import ConfigError, KubeError
from isthmus.kube.api import ObjectSource
from isthmus.kube.opening import open_kube
from isthmus.programs.node_proxy.input import FoundCidrs, cluster_sources
from isthmus.programs.node_proxy.kernel.host import node_ips
from isthmus.programs.node_proxy.kernel.manifests import Manifests, read_manifests
from isthmus.programs.node_proxy.node import HostFacts, find_detector, rule_settings
from isthmus.programs.node_proxy.rules.detectors import LocalTrafficDetector, needs_pod_cidrs
from isthmus.programs.node_proxy.rules.explaining_flow import WalkableRules
from isthmus.programs.node_proxy.rules.explaining_iptables import IptablesRules, IpvsWalk
from isthmus.programs.node_proxy.rules.explaining_nftables import NftablesRules
from isthmus.programs.node_proxy.rules.iptables.ruleset import IptablesRenderer
from isthmus.programs.node_proxy.rules.ipvs.plan import DEFAULT_SCHEDULER, IpvsOptions, plan
from isthmus.programs.node_proxy.rules.ipvs.plan import rules as ipvs_rules
from isthmus.programs.node_proxy.rules.model import IpFamily, NodeObject, ServiceView, family_of
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesRenderer
from isthmus.programs.node_proxy.rules.rendering import Rendered, rendered
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.programs.node_proxy.rules.tracker import ServiceTracker
from isthmus.programs.node_proxy.settings import IPVS, NFTABLES, NodeProxySettings

#: The time limit for listing everything.
_LIST_S = 60.0
_LOOPBACK = {IpFamily.IPV4: "127.0.0.1", IpFamily.IPV6: "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What would be programmed on one node, and the settings of its rules.

    ``here`` are the node's addresses known from its Node, without loopback addresses; ``notes`` are
    messages about ignored objects.
    """

    settings: NodeProxySettings
    node: NodeObject
    detector: LocalTrafficDetector
    views: Mapping[IpFamily, ServiceView]
    rules: Mapping[IpFamily, RuleSettings]
    here: frozenset[str]
    notes: tuple[str, ...] = ()

    @property
    def families(self) -> list[IpFamily]:
        """The families that have Services; IPv4 if there are none."""
        found = [family for family, view in self.views.items() if view.ports]
        return found or [IpFamily.IPV4]

    def rendered(self, family: IpFamily) -> Rendered:
        return rendered(
            self.settings.mode,
            self.views[family],
            self.rules[family],
            options=self.ipvs_options,
            node_addresses=self.own(family),
        )

    @property
    def ipvs_options(self) -> IpvsOptions:
        return IpvsOptions(scheduler=self.settings.ipvs_scheduler or DEFAULT_SCHEDULER)

    def own(self, family: IpFamily) -> frozenset[str]:
        """The node's addresses of a family."""
        return frozenset(ip for ip in self.here if family_of(ip) is family)


def rules_of(snapshot: Snapshot, family: IpFamily) -> WalkableRules:
    """The rules of a family, to walk packets through."""
    view, settings = snapshot.views[family], snapshot.rules[family]
    if snapshot.settings.mode == IPVS:
        made = plan(view, settings, snapshot.ipvs_options, snapshot.own(family))
        return IpvsWalk(made, ipvs_rules(made, settings), settings)
    if snapshot.settings.mode == NFTABLES:
        renderer = NftablesRenderer(settings)
        renderer.advance(view)
        return NftablesRules(renderer.ruleset(), settings)
    return IptablesRules(IptablesRenderer(settings).render(view).ruleset)


def look(settings: NodeProxySettings) -> Snapshot:
    """Read the manifests of the settings or, without manifests, list from the API server; blocks.

    Raises:
        ConfigError: a manifest cannot be read or is invalid, or something is missing.
        KubeError: the API server failed to answer.
    """
    if settings.manifests:
        return look_at(settings, Path(settings.manifests))
    name = (settings.hostname_override or socket.gethostname()).strip().lower()
    return _snapshot(settings, asyncio.run(_listed(settings, name)), name)


def look_at(settings: NodeProxySettings, path: Path) -> Snapshot:
    """Read manifests, a directory of them or one file; blocks.

    Raises:
        ConfigError: a manifest cannot be read or is invalid, or something is missing.
    """
    asked = settings.hostname_override.strip().lower()
    found = read_manifests([path], node_name=asked)
    if asked and found.nodes and found.node is None:
        raise ConfigError(f"{path}: no Node {asked}, which --hostname-override names")
    if len(found.nodes) > 1 and found.node is None:
        names = ", ".join(sorted(node.name for node in found.nodes)[:5])
        raise ConfigError(f"{path}: several Nodes ({names}): choose one by --hostname-override")
    return _snapshot(settings, found, asked)


async def _listed(settings: NodeProxySettings, name: str) -> Manifests:

    try:
        kube = open_kube(settings.kubeconfig, server=settings.master)
    except ConfigError as error:
        if settings.kubeconfig or settings.master:
            raise
        raise ConfigError("--manifests or --kubeconfig is required: this is not a pod") from error
    try:
        sources = cluster_sources(kube.client, name)
        async with asyncio.timeout(_LIST_S):
            services = await sources.services.list()
            slices = await sources.slices.list()
            nodes = await sources.node.list()
            ranges = await _service_cidrs(sources.service_cidrs)
    except TimeoutError as error:
        raise KubeError(f"the API server did not list everything within {_LIST_S:.0f} s") from error
    finally:
        await kube.close()
    node = next((each.value for each in nodes.items if each.value is not None), None)
    return Manifests(
        services=tuple(each.value for each in services.items if each.value is not None),
        slices=tuple(each.value for each in slices.items if each.value is not None),
        node=node,
        service_cidrs=ranges,
    )


async def _service_cidrs(source: ObjectSource[FoundCidrs]) -> tuple[str, ...]:
    try:
        found = await source.list()
    except KubeError as error:
        if error.status != 404:  # clusters before 1.33 may not have the resource
            raise
        return ()
    return tuple(sorted({cidr for each in found.items for cidr in each.value or ()}))


def _snapshot(settings: NodeProxySettings, found: Manifests, asked: str) -> Snapshot:
    node = found.node or NodeObject(name=asked or socket.gethostname().strip().lower())
    detector = _detector(settings, node)
    ips = node_ips(node.addresses, settings.bind_address)
    known = {*node.addresses, *ips.of.values()}
    here = frozenset(ip for ip in known if not ip_address(ip).is_loopback)
    host = HostFacts(
        addresses={
            family: frozenset({*(ip for ip in here if family_of(ip) is family), _LOOPBACK[family]})
            for family in IpFamily
        }
    )
    rules = {
        family: rule_settings(
            settings, family, detector=detector, ips=ips.of, host=host,
            service_cidrs=found.service_cidrs,
        )
        for family in IpFamily
    }  # fmt: skip
    return Snapshot(
        settings=settings,
        node=node,
        detector=detector,
        views=_views(found, node),
        rules=rules,
        here=here,
        notes=found.notes,
    )


def _detector(settings: NodeProxySettings, node: NodeObject) -> LocalTrafficDetector:
    mode = settings.detector_mode
    given = settings.detector_settings(node.pod_cidrs)
    if needs_pod_cidrs(mode, given) and not node.pod_cidrs:
        way = ": set --node-cidr" if mode == "node-cidr" else ""
        raise ConfigError(
            f"--detect-local={mode} uses the podCIDRs of the Node {node.name}, which has none{way}"
        )
    return find_detector(mode)(given)


def _views(found: Manifests, node: NodeObject) -> dict[IpFamily, ServiceView]:
    tracker = ServiceTracker(node_name=node.name, families=tuple(IpFamily))
    tracker.set_node(node.labels)
    tracker.replace_services(found.services)
    tracker.replace_slices(found.slices)
    return {family: update.view for family, update in tracker.take().items()}
