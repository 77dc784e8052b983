"""The EndpointSlices of a cluster by Service, and the endpoints that those of a Service make.

An endpoint may move from one slice to another and be in both for a while, so that slices are kept
apart until somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import Endpoint, IpFamily, PortProtocol
from isthmus.programs.node_proxy.rules.objects import SliceObject

#: Endpoints by the name and protocol of a Service's port, sorted by their text.
EndpointsByPort = Mapping[tuple[str, PortProtocol], tuple[Endpoint, ...]]


class SliceCache:
    """Knows EndpointSlices, by their own names and by the Services that they belong to."""

    def __init__(self) -> None:
        self._slices: dict[tuple[str, str], SliceObject] = {}
        self._of: dict[tuple[ServiceName, IpFamily], dict[str, SliceObject]] = {}

    def __len__(self) -> int:
        return len(self._slices)

    def put(self, new: SliceObject) -> list[SliceObject]:
        """Keep a slice; give what is different now: it, and what it was if that is elsewhere."""
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
        """Forget a slice; give it, if there was one."""
        old = self._slices.pop(key, None)
        if old is None:
            return []
        self._forget(old)
        return [old]

    def gone(self, keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those that are kept and not among the keys."""
        return list(self._slices.keys() - set(keys))

    def hinted(self) -> Iterator[tuple[ServiceName, IpFamily]]:
        """Whose endpoints have hints for zones."""
        for of, slices in self._of.items():
            if any(each.zone_hints for found in slices.values() for each in found.endpoints):
                yield of

    def endpoints(self, service: ServiceName, family: IpFamily, node_name: str) -> EndpointsByPort:
        """The endpoints of a Service. Of two at one place the one that is not terminating wins."""
        slices = self._of.get((service, family))
        if slices is None:
            return {}
        # By name, so that the result does not depend on the order in which they came.
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
