"""Which endpoints of a port this node uses: by readiness, place and hints (kube-proxy's rules)."""

from __future__ import annotations

from enum import Enum

from isthmus.programs.node_proxy.rules.model import ChosenEndpoints, Endpoint, ServicePort


class _Prefer(Enum):
    """Whose hints hold."""

    NOBODY = 0
    SAME_NODE = 1
    SAME_ZONE = 2


_NONE = ChosenEndpoints()


def categorize_endpoints(
    endpoints: tuple[Endpoint, ...], port: ServicePort, *, node_name: str, zone: str
) -> ChosenEndpoints:
    """Choose from the endpoints of a port, which are sorted, for its traffic policies.

    Ready ones are used; where there are none, those that still serve while they terminate, for
    either policy by itself.
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
    """Hints of a kind hold if every ready endpoint has some and one of them is for us."""
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
    """The same tuple where nothing was left out: there are many, and they stay."""
    return endpoints if len(some) == len(endpoints) else tuple(some)


def _either(
    endpoints: tuple[Endpoint, ...], cluster: tuple[Endpoint, ...], local: tuple[Endpoint, ...]
) -> tuple[Endpoint, ...]:
    wanted = {id(each) for each in cluster} | {id(each) for each in local}
    if len(wanted) == len(cluster):
        return cluster
    return tuple(each for each in endpoints if id(each) in wanted)
