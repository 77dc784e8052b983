"""Keeps Services and EndpointSlices, and computes what to program and what changed.

Changes accumulate until they are taken. Taking costs time for what changed, plus a copy of the
mapping of ports. ``categorize_endpoints`` chooses the endpoints that this node uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServiceBatch,
    ServiceObject,
    ServicePort,
    ServiceView,
    SliceBatch,
    SliceObject,
    Update,
    family_of,
)

#: Endpoints by the name and protocol of a Service's port, sorted by text.
EndpointsByPort = Mapping[tuple[str, PortProtocol], tuple[Endpoint, ...]]


class _Prefer(Enum):
    """Which topology hints apply."""

    NOBODY = 0
    SAME_NODE = 1
    SAME_ZONE = 2


_NONE = ChosenEndpoints()


def categorize_endpoints(
    endpoints: tuple[Endpoint, ...], port: ServicePort, *, node_name: str, zone: str
) -> ChosenEndpoints:
    """Choose the endpoints of a port for each of its traffic policies.

    Ready endpoints are used. If a policy has none, those that are terminating but still serving
    are used for that policy.
    """
    if not endpoints:
        return _NONE
    serving = _all_if(endpoints, [each for each in endpoints if each.serving])
    ready = _all_if(endpoints, [each for each in endpoints if each.ready])
    if not (ready or serving):
        return _NONE
    leaving = () if ready else tuple(each for each in serving if each.terminating)
    cluster: tuple[Endpoint, ...] = ()
    if port.uses_cluster_endpoints:
        prefer = _preference(ready, node_name, zone)
        cluster = _preferred(ready, prefer, node_name, zone) or leaving
    exist = bool(cluster)
    if not port.uses_local_endpoints:
        return ChosenEndpoints(cluster=cluster, reachable=cluster, exist=exist, serving=serving)
    local = tuple(each for each in ready if each.local) or tuple(
        each for each in serving if each.local and each.terminating and not each.ready
    )
    exist = exist or bool(ready or leaving)
    if not port.uses_cluster_endpoints:
        return ChosenEndpoints(local=local, reachable=local, exist=exist, serving=serving)
    reachable = _either(endpoints, cluster, local)
    return ChosenEndpoints(
        cluster=cluster, local=local, reachable=reachable, exist=exist, serving=serving
    )


def _preference(ready: tuple[Endpoint, ...], node_name: str, zone: str) -> _Prefer:
    """Hints of a kind apply if every ready endpoint has some and one of them names this node."""
    if not ready:
        return _Prefer.NOBODY
    if all(each.node_hints for each in ready) and any(
        node_name in each.node_hints for each in ready
    ):
        return _Prefer.SAME_NODE
    if all(each.zone_hints for each in ready) and any(zone in each.zone_hints for each in ready):
        return _Prefer.SAME_ZONE
    return _Prefer.NOBODY


def _preferred(
    ready: tuple[Endpoint, ...], prefer: _Prefer, node_name: str, zone: str
) -> tuple[Endpoint, ...]:
    match prefer:
        case _Prefer.SAME_NODE:
            return tuple(each for each in ready if node_name in each.node_hints)
        case _Prefer.SAME_ZONE:
            return tuple(each for each in ready if zone in each.zone_hints)
        case _Prefer.NOBODY:
            return ready


def _all_if(endpoints: tuple[Endpoint, ...], some: list[Endpoint]) -> tuple[Endpoint, ...]:
    """The same tuple if nothing was left out: there are many, and they live long."""
    return endpoints if len(some) == len(endpoints) else tuple(some)


def _either(
    endpoints: tuple[Endpoint, ...], cluster: tuple[Endpoint, ...], local: tuple[Endpoint, ...]
) -> tuple[Endpoint, ...]:
    wanted = {id(each) for each in cluster} | {id(each) for each in local}
    if len(wanted) == len(cluster):
        return cluster
    return tuple(each for each in endpoints if id(each) in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltService:
    """A Service in one family. ``endpoints`` counts all endpoints of its ports, usable or not.

    ``local_ready`` counts ready addresses on this node, if the Service has a health check port.
    """

    ports: tuple[BackedPort, ...] = ()
    endpoints: int = 0
    health_port: int = 0
    local_ready: int = 0

    @property
    def udp(self) -> dict[PortKey, object]:
        return {
            each.port.key: each.backends
            for each in self.ports
            if each.port.key.protocol is PortProtocol.UDP
        }


NOTHING = BuiltService()


def build(
    obj: ServiceObject, family: IpFamily, behind: EndpointsByPort, *, node_name: str, zone: str
) -> BuiltService:
    """Build one Service in one family; nothing if it has no address in the family."""
    ports = service_ports(obj, family)
    if not ports:
        return NOTHING
    backed, count = [], 0
    for port in ports:
        endpoints = behind.get((port.key.port, port.key.protocol), ())
        count += len(endpoints)
        backends = categorize_endpoints(endpoints, port, node_name=node_name, zone=zone)
        backed.append(BackedPort(port=port, backends=backends))
    local: set[str] = set()
    if obj.health_check_node_port:
        # Counts every port of the slices, in the Service or not, as kube-proxy's metric does.
        local = {
            each.ip
            for endpoints in behind.values()
            for each in endpoints
            if each.local and each.ready
        }
    return BuiltService(
        ports=tuple(backed),
        endpoints=count,
        health_port=obj.health_check_node_port,
        local_ready=len(local),
    )


def service_ports(obj: ServiceObject, family: IpFamily) -> list[ServicePort]:
    """The ports of a Service in one family; on equal name and protocol the last one wins."""
    cluster_ip = obj.cluster_ip(family)
    if not cluster_ip:
        return []
    external_ips = _of_family(obj.external_ips, family)
    load_balancer_ips = _of_family(obj.load_balancer_ips, family)
    source_ranges = _of_family(obj.source_ranges, family)
    if any(each.endswith("/0") for each in source_ranges):
        source_ranges = ()  # a range of all addresses is the same as no ranges
    found = {
        (each.name, each.protocol): ServicePort(
            key=PortKey(obj.name, each.name, each.protocol),
            cluster_ip=cluster_ip,
            port=each.port,
            node_port=each.node_port,
            external_ips=external_ips,
            load_balancer_ips=load_balancer_ips,
            source_ranges=source_ranges,
            affinity_s=obj.affinity_s,
            internal_local=obj.internal_local,
            external_local=obj.external_local,
            health_check_node_port=obj.health_check_node_port,
        )
        for each in obj.ports
    }
    return list(found.values())


def _of_family(given: Iterable[str], family: IpFamily) -> tuple[str, ...]:
    return tuple([each for each in given if family_of(each) is family])


class SliceCache:
    """EndpointSlices, by their own keys and by Service."""

    def __init__(self) -> None:
        self._slices: dict[tuple[str, str], SliceObject] = {}
        self._of: dict[tuple[ServiceName, IpFamily], dict[str, SliceObject]] = {}

    def __len__(self) -> int:
        return len(self._slices)

    def put(self, new: SliceObject) -> list[SliceObject]:
        """Store a slice; return it, and the old one if that belonged to another Service."""
        old = self._slices.get(new.key)
        if old == new:
            return []
        self._slices[new.key] = new
        here = new.service, new.family
        self._of.setdefault(here, {})[new.name] = new
        if old is None or (old.service, old.family) == here:
            return [new]
        self._forget(old)
        return [new, old]

    def drop(self, key: tuple[str, str]) -> list[SliceObject]:
        """Remove a slice; return it if it was there."""
        old = self._slices.pop(key, None)
        if old is None:
            return []
        self._forget(old)
        return [old]

    def gone(self, keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The stored keys that are not among ``keys``."""
        return list(self._slices.keys() - set(keys))

    def hinted(self) -> Iterator[tuple[ServiceName, IpFamily]]:
        """The Services whose endpoints have topology hints, with their family."""
        for of, slices in self._of.items():
            if any(each.zone_hints for found in slices.values() for each in found.endpoints):
                yield of

    def endpoints(self, service: ServiceName, family: IpFamily, node_name: str) -> EndpointsByPort:
        """The endpoints of a Service. Of duplicates, one that is not terminating wins."""
        slices = self._of.get((service, family))
        if slices is None:
            return {}
        # Sorted by name, so that the result does not depend on the order of arrival.
        ordered = [slices[name] for name in sorted(slices)]
        found: dict[tuple[str, PortProtocol], dict[str, Endpoint]] = {}
        for each in ordered:
            for port in each.ports:
                _add(found.setdefault((port.name, port.protocol), {}), each, port.port, node_name)
        return {port: tuple([at[text] for text in sorted(at)]) for port, at in found.items() if at}

    def _forget(self, old: SliceObject) -> None:
        of = old.service, old.family
        slices = self._of[of]
        del slices[old.name]
        if not slices:
            del self._of[of]


def _add(found: dict[str, Endpoint], given: SliceObject, port: int, node_name: str) -> None:
    six = given.family is IpFamily.IPV6
    for each in given.endpoints:
        text = f"[{each.address}]:{port}" if six else f"{each.address}:{port}"
        if each.terminating and text in found:
            continue
        found[text] = Endpoint(
            ip=each.address,
            port=port,
            local=bool(node_name) and each.node == node_name,
            ready=each.ready,
            serving=each.serving,
            terminating=each.terminating,
            zone_hints=each.zone_hints,
            node_hints=each.node_hints,
        )


ZONE_LABEL = "topology.kubernetes.io/zone"
_MOST_TRIGGERS = 100  # per Service between two calls of take()


class ServiceTracker:
    """The Services and EndpointSlices of a cluster, seen from one node. Not thread-safe."""

    def __init__(self, *, node_name: str, families: Sequence[IpFamily], since: float = 0.0) -> None:
        """``since`` is the present time in seconds since 1970: earlier changes are not timed."""
        self._node_name = node_name
        self._since = since
        self._zone = ""
        self._services: dict[ServiceName, ServiceObject] = {}
        self._slices = SliceCache()
        self._sides = {family: _Side(family) for family in families}
        self._listed: set[str] = set()
        self._first = True
        self._service_changes = 0
        self._changed_services: set[ServiceName] = set()

    def __repr__(self) -> str:
        kept = f"{len(self._services)} services, {len(self._slices)} slices"
        return f"<ServiceTracker {kept}{'' if self.synced else ', not synced'}>"

    @property
    def synced(self) -> bool:
        """Whether both Services and EndpointSlices have been listed."""
        return len(self._listed) == 2

    @property
    def pending(self) -> bool:
        """Whether there is something to take: a change, or the first listing."""
        return (self.synced and self._first) or any(side.dirty for side in self._sides.values())

    @property
    def pending_services(self) -> int:
        return len(self._changed_services)

    @property
    def pending_slices(self) -> int:
        """The number of EndpointSlice changes since the last take."""
        return sum(side.slice_changes for side in self._sides.values())

    def set_node(self, labels: Mapping[str, str]) -> None:
        zone = labels.get(ZONE_LABEL, "")
        if zone == self._zone:
            return
        self._zone = zone
        for service, family in self._slices.hinted():
            self._mark(service, family)

    def replace_services(self, objects: Iterable[ServiceObject]) -> None:
        new = {obj.name: obj for obj in objects}
        for name in self._services.keys() - new.keys():
            self.drop_service(name)
        for obj in new.values():
            self.put_service(obj)
        self._listed.add("services")

    def put_service(self, obj: ServiceObject) -> None:
        if self._services.get(obj.name) != obj:
            self._services[obj.name] = obj
            self._service_changed(obj.name)

    def drop_service(self, name: ServiceName) -> None:
        """Remove a Service; unknown names are ignored."""
        if self._services.pop(name, None) is not None:
            self._service_changed(name)

    def hear_services(self, batch: ServiceBatch) -> None:
        if batch.complete:
            self.replace_services(batch.put)
            return
        for name in batch.drop:
            self.drop_service(name)
        for obj in batch.put:
            self.put_service(obj)

    def replace_slices(self, objects: Iterable[SliceObject]) -> None:
        new = {obj.key: obj for obj in objects}
        for key in self._slices.gone(new):
            self.drop_slice(*key)
        for obj in new.values():
            self.put_slice(obj)
        self._listed.add("slices")

    def put_slice(self, obj: SliceObject) -> None:
        for each in self._slices.put(obj):
            side = self._mark(each.service, each.family)
            if side is not None:
                side.slice_changes += 1
                if each is obj and obj.changed_at > self._since:
                    side.trigger(obj.service, obj.changed_at)

    def drop_slice(self, namespace: str, name: str) -> None:
        """Remove an EndpointSlice; unknown keys are ignored."""
        for each in self._slices.drop((namespace, name)):
            side = self._mark(each.service, each.family)
            if side is not None:
                side.slice_changes += 1
                # The slice's time is that of its last change, not of its removal.
                side.triggers.pop(each.service, None)

    def hear_slices(self, batch: SliceBatch) -> None:
        if batch.complete:
            self.replace_slices(batch.put)
            return
        for key in batch.drop:
            self.drop_slice(*key)
        for obj in batch.put:
            self.put_slice(obj)

    def take(self) -> dict[IpFamily, Update]:
        """Return what to program, and what changed since the last call.

        Unchanged parts are the same objects as before.
        """
        taken = {
            family: side.take(
                {name: self._build(name, family) for name in side.dirty}, self._service_changes
            )
            for family, side in self._sides.items()
        }
        self._first = not self.synced
        self._service_changes = 0
        self._changed_services.clear()
        return taken

    def local_ready(self) -> dict[ServiceName, int]:
        """The number of ready endpoints on this node, per Service with a health check port.

        An endpoint with addresses of both families counts once: the larger of the two counts.
        """
        found: dict[ServiceName, int] = {}
        for side in self._sides.values():
            for name, built in side.checked.items():
                found[name] = max(found.get(name, 0), built.local_ready)
        return found

    def health_ports(self) -> dict[ServiceName, int]:
        """The health check ports of Services that have one, as of the last take."""
        return {
            name: built.health_port
            for side in self._sides.values()
            for name, built in side.checked.items()
        }

    def _build(self, name: ServiceName, family: IpFamily) -> BuiltService:
        obj = self._services.get(name)
        if obj is None:
            return NOTHING
        behind = self._slices.endpoints(name, family, self._node_name)
        return build(obj, family, behind, node_name=self._node_name, zone=self._zone)

    def _service_changed(self, name: ServiceName) -> None:
        self._service_changes += 1
        self._changed_services.add(name)
        for side in self._sides.values():
            side.dirty.add(name)

    def _mark(self, name: ServiceName, family: IpFamily) -> _Side | None:
        side = self._sides.get(family)
        if side is not None:
            side.dirty.add(name)
        return side


class _Side:
    """One family as last taken, and its changes since."""

    def __init__(self, family: IpFamily) -> None:
        self._view = ServiceView(family=family, ports={})
        self._built: dict[ServiceName, BuiltService] = {}
        self.dirty: set[ServiceName] = set()
        self.slice_changes = 0
        self.triggers: dict[ServiceName, list[float]] = {}
        self.checked: dict[ServiceName, BuiltService] = {}

    def trigger(self, name: ServiceName, at: float) -> None:
        times = self.triggers.setdefault(name, [])
        times.append(at)
        del times[:-_MOST_TRIGGERS]

    def take(self, built: Mapping[ServiceName, BuiltService], service_changes: int) -> Update:
        """Update the dirty Services in the view."""
        ports = dict(self._view.ports)
        endpoints, udp, added = self._view.endpoints, False, False
        changed = set()
        for name, new in built.items():
            old = self._built.get(name, NOTHING)
            endpoints += new.endpoints - old.endpoints
            differs = _merge(ports, old, new)
            self._keep(name, new, ports)
            if differs is not None:
                changed.add(name)
                added = added or differs
                udp = udp or old.udp != new.udp
        if added:
            ports = {key: ports[key] for key in sorted(ports, key=_order)}
        self._view = ServiceView(family=self._view.family, ports=ports, endpoints=endpoints)
        update = Update(
            view=self._view,
            changed=frozenset(changed),
            udp=udp,
            services=service_changes,
            endpoint_slices=self.slice_changes,
            triggers=tuple(at for times in self.triggers.values() for at in times),
        )
        self.dirty.clear()
        self.slice_changes = 0
        self.triggers.clear()
        return update

    def _keep(
        self, name: ServiceName, new: BuiltService, ports: Mapping[PortKey, BackedPort]
    ) -> None:
        self.checked.pop(name, None)
        if not new.ports:
            self._built.pop(name, None)
            return
        # Reuse the view's objects, which may be older than these and equal.
        kept = replace(new, ports=tuple(ports[each.port.key] for each in new.ports))
        self._built[name] = kept
        if kept.health_port:
            self.checked[name] = kept


def _merge(ports: dict[PortKey, BackedPort], old: BuiltService, new: BuiltService) -> bool | None:
    """Update one Service's ports; returns whether keys were added, None if nothing changed."""
    was = {each.port.key: each for each in old.ports}
    differs: bool | None = None
    for each in new.ports:
        key = each.port.key
        before = was.pop(key, None)
        if before != each:
            ports[key] = each
            differs = bool(differs) or before is None
    for key in was:
        del ports[key]
        differs = bool(differs)
    return differs


def _order(key: PortKey) -> tuple[str, str]:
    return str(key), key.protocol.value
