"""What a change of Services and endpoints does: in words, port by port, and rule by rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    Endpoint,
    PortKey,
    ServicePort,
    ServiceView,
)

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
#: What people call the settings of a port, in the order in which they are told.
_WORDS = {
    "cluster_ip": "cluster IP",
    "port": "port",
    "node_port": "node port",
    "external_ips": "external IPs",
    "load_balancer_ips": "load balancer IPs",
    "source_ranges": "source ranges",
    "affinity_s": "session affinity",
    "internal_local": "internal traffic policy",
    "external_local": "external traffic policy",
    "health_check_node_port": "health check node port",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PortChange:
    """One port that is added, removed or changed, and a clause for everything about it."""

    key: PortKey
    what: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """Lines of one place that go and come, in order; each with its sign, ``-`` or ``+``."""

    place: str
    lines: tuple[tuple[str, str], ...]


def port_changes(old: ServiceView, new: ServiceView) -> list[PortChange]:
    """What differs between two views of a family, by the ports' names."""
    keys = sorted(
        old.ports.keys() | new.ports.keys(), key=lambda key: (str(key), key.protocol.value)
    )
    found: list[PortChange] = []
    for key in keys:
        before, after = old.ports.get(key), new.ports.get(key)
        if before == after:
            continue
        if before is None and after is not None:
            found.append(PortChange(key=key, what=ADDED, words=tuple(_told(after))))
        elif after is None and before is not None:
            found.append(PortChange(key=key, what=REMOVED, words=tuple(_told(before))))
        elif before is not None and after is not None:
            words = (*_settings(before.port, after.port), *_endpoints(before, after))
            found.append(
                PortChange(
                    key=key, what=CHANGED, words=words or ("endpoints are chosen otherwise",)
                )
            )
    return found


def _told(backed: BackedPort) -> Iterator[str]:
    """A whole port: its address, the settings that it has, and how many endpoints."""
    port = backed.port
    host = f"[{port.cluster_ip}]" if ":" in port.cluster_ip else port.cluster_ip
    yield f"cluster IP {host}:{port.port}/{port.key.protocol.value}"
    for name, words in _WORDS.items():
        value = getattr(port, name)
        if name not in ("cluster_ip", "port") and value:
            yield f"{words} {_text(name, value)}"
    count = len(_used(backed))
    yield f"{count} endpoint{'' if count == 1 else 's'}{_lack(backed)}"


def _settings(before: ServicePort, after: ServicePort) -> Iterator[str]:
    for name, words in _WORDS.items():
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{words} {_text(name, old)} → {_text(name, new)}"


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "Local" if value else "Cluster"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return f"{value} s" if name == "affinity_s" and value else str(value or "none")


def _endpoints(before: BackedPort, after: BackedPort) -> Iterator[str]:
    old, new = _used(before), _used(after)
    for endpoint in sorted(new.keys() - old.keys()):
        yield f"endpoint {endpoint} added{_where(new[endpoint])}"
    for endpoint in sorted(old.keys() - new.keys()):
        yield f"endpoint {endpoint} removed"
    for endpoint in sorted(new.keys() & old.keys()):
        yield from _moved(endpoint, old[endpoint], new[endpoint])
    if _lack(before) != _lack(after):
        yield _lack(after).removeprefix(", ") or "traffic finds endpoints again"


def _moved(text: str, before: Endpoint, after: Endpoint) -> Iterator[str]:
    if before.local != after.local:
        yield f"endpoint {text} is {'on this node' if after.local else 'elsewhere'} now"
    if before.terminating != after.terminating:
        yield f"endpoint {text} is {'' if after.terminating else 'no longer '}terminating"


def _where(endpoint: Endpoint) -> str:
    said = ["on this node"] if endpoint.local else []
    said += ["terminating"] if endpoint.terminating else []
    return f" ({', '.join(said)})" if said else ""


def _used(backed: BackedPort) -> dict[str, Endpoint]:
    """The endpoints that get traffic, by their texts."""
    return {str(each): each for each in backed.backends.reachable}


def _lack(backed: BackedPort) -> str:
    """What traffic does not find, if it is so."""
    port, backends = backed.port, backed.backends
    if not backends.exist:
        return ", traffic is refused"
    kinds = [
        kind
        for kind, local in (
            ("internal", port.internal_local),
            ("external", port.external_local and port.external),
        )
        if local and not backends.local
    ]
    return f", {' and '.join(kinds)} traffic finds none on this node" if kinds else ""


def line_changes(
    old: Mapping[str, tuple[str, ...]], new: Mapping[str, tuple[str, ...]]
) -> list[LineChange]:
    """The lines that differ, place by place; see ``rendering.Rendered.places``."""
    found: list[LineChange] = []
    for place in dict.fromkeys((*new, *old)):
        before, after = old.get(place, ()), new.get(place, ())
        if before != after:
            found.append(LineChange(place=place, lines=tuple(_lines(before, after))))
    return found


def _lines(before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    # Without "junk": a rule that comes often, as in no chain of ours, would not be compared.
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag != "equal":
            yield from (("-", line) for line in before[start:end])
            yield from (("+", line) for line in after[other_start:other_end])
