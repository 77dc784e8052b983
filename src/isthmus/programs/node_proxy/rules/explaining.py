"""Says what becomes of a packet by our rules: where it may go, whether it is masqueraded, and why.

First somebody's question becomes a packet; what is not said is taken from the detector: a pod's
packet comes in as the detector expects it. The rules are walked by explaining_iptables.py and
explaining_nftables.py, from the texts that the kernel is given; here is the order in which the
kernel comes to them, and the words for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.explaining_flow import (
    Flow,
    Hook,
    Origin,
    Packet,
    PacketVerdict,
    RuleStep,
    WalkableRules,
    parsed,
    within,
)
from isthmus.programs.node_proxy.rules.explaining_iptables import HEALTH_CHECK, matches, parse_rule
from isthmus.programs.node_proxy.rules.iptables import base as iptables
from isthmus.programs.node_proxy.rules.iptables.base import quoted_words
from isthmus.programs.node_proxy.rules.ipvs import plan as ipvs
from isthmus.programs.node_proxy.rules.ipvs.sets import IpSet
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    IpFamily,
    PortKey,
    PortProtocol,
    ServiceView,
    family_of,
)
from isthmus.programs.node_proxy.rules.nftables import base as nftables
from isthmus.programs.node_proxy.rules.reading import canonical_address
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.values import HostPort, is_address

_EXTERNAL = (iptables.EXTERNAL_PREFIX, nftables.EXTERNAL)
_EVERY_ENDPOINT = (iptables.CLUSTER_PREFIX, nftables.SERVICE)
# Chains that mark for others: why is told by who led there.
_MARKERS = (iptables.MARK_MASQ, iptables.MASQ_IF_NOT_LOCAL, nftables.NOT_LOCAL_CHAIN)
# With ipvs: node ports and load balancers, where some are marked and others sent back.
_IPVS_EXTERNAL = (ipvs.NODE_PORT, ipvs.LOAD_BALANCER)
_HAIRPINS = (
    f"@{nftables.NftContainer.HAIRPIN}",
    *(f" {IpSet.LOOP_BACK.of(family)} " for family in IpFamily),
)
_FROM_NODE = ("--src-type LOCAL", "fib saddr type local")


class Reason(Enum):
    """Why a packet is masqueraded, or why not; the value is what people read."""

    ALL = "--masquerade-all"
    NOT_LOCAL = "it does not come from a pod of this node"
    EXTERNAL = "external traffic policy Cluster: the endpoint may be elsewhere"
    NODE = "it comes from this node itself"
    HAIRPIN = "the endpoint is its own source"
    POD = "it comes from a pod of this node"
    KEPT = "external traffic policy Local keeps the source"
    NO_DETECTOR = "nothing tells local traffic, so that nothing to a cluster IP is"
    STAYS = "the endpoint is this node itself, and nothing is masqueraded on the way in"


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketOutcome:
    """One thing that may become of a packet, and how likely it is.

    ``endpoint`` is its destination then, as ``ip:port``. ``reasons`` are for being masqueraded or
    not, empty where nothing was translated. ``steps`` are the rules that it met.
    """

    verdict: PacketVerdict
    endpoint: str
    chance: float
    masqueraded: bool
    reasons: tuple[Reason, ...]
    steps: tuple[RuleStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketExplanation:
    """All that may become of a packet; the chances add up to one.

    ``service`` is the port that its destination belongs to, and ``reached_by`` the kind of that
    address; None and nothing if it belongs to none.
    """

    packet: Packet
    outcomes: tuple[PacketOutcome, ...]
    service: PortKey | None = None
    reached_by: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> PacketVerdict:
        """What becomes of it; rules of ours never leave that to chance."""
        return self.outcomes[0].verdict

    @property
    def shared_steps(self) -> int:
        count = 0
        for steps in zip(*(each.steps for each in self.outcomes), strict=False):
            if len(set(steps)) > 1:
                break
            count += 1
        return count


def explain(rules: WalkableRules, packet: Packet, view: ServiceView) -> PacketExplanation:
    """Let a packet through the rules of a view.

    Raises:
        ConfigError: there is a match that nobody knows, of a detector of another package.
    """
    flows = list(_travel(rules, Flow(packet=packet)))
    found = _service(view, packet)
    return PacketExplanation(
        packet=packet,
        outcomes=tuple(_outcome(flow, rules.settings) for flow in flows),
        service=found[0] if found else None,
        reached_by=found[1] if found else "",
        notes=tuple(sorted(frozenset().union(*(flow.notes for flow in flows)))),
    )


def _travel(rules: WalkableRules, start: Flow) -> Iterator[Flow]:
    """Everything that may become of a flow, in the order of the kernel's hooks."""
    origin = start.packet.origin
    first = Hook.OUTPUT if origin is Origin.NODE else Hook.PREROUTING
    for flow in rules.cross(first, start):
        here = flow.packet.is_here(flow.packet.destination)
        if origin is Origin.NODE:
            # What the node sends to itself leaves by the loopback interface, and comes in again.
            hooks = [Hook.POSTROUTING, *([Hook.INPUT] if here else [])]
        else:
            hooks = [Hook.INPUT] if here else [Hook.FORWARD, Hook.POSTROUTING]
        yield from _through(rules, hooks, flow)


def _through(rules: WalkableRules, hooks: list[Hook], flow: Flow) -> Iterator[Flow]:
    if flow.verdict is not None or not hooks:
        yield flow
        return
    for after in rules.cross(hooks[0], flow):
        rest = hooks[1:]
        if hooks[0] is Hook.INPUT and after.virtual is not None and flow.virtual is None:
            # A virtual server took it; what goes to this node itself is delivered at once.
            packet = after.packet
            rest = [] if packet.is_here(packet.destination) else [Hook.POSTROUTING]
        yield from _through(rules, rest, after)


def _outcome(flow: Flow, settings: RuleSettings) -> PacketOutcome:
    verdict = flow.verdict or (
        PacketVerdict.TRANSLATED if flow.translated else PacketVerdict.UNTOUCHED
    )
    packet, steps = flow.packet, flow.steps()
    host = f"[{packet.destination}]" if ":" in packet.destination else packet.destination
    reasons: tuple[Reason, ...] = ()
    if verdict is PacketVerdict.TRANSLATED or flow.masqueraded:
        reasons = tuple(dict.fromkeys(_reasons(flow, steps, settings)))
    return PacketOutcome(
        verdict=verdict,
        endpoint=f"{host}:{packet.port}",
        chance=flow.chance,
        masqueraded=flow.masqueraded,
        reasons=reasons,
        steps=steps,
    )


def _reasons(flow: Flow, steps: tuple[RuleStep, ...], settings: RuleSettings) -> Iterator[Reason]:
    if flow.masqueraded:
        yield from _why(steps, settings)
    elif any(step.marks for step in steps):
        yield Reason.STAYS
    else:
        yield _why_not(steps, settings)


def _why(steps: tuple[RuleStep, ...], settings: RuleSettings) -> Iterator[Reason]:
    cause: RuleStep | None = None
    for step in steps:
        if step.chain not in _MARKERS:
            cause = step
        if step.marks and cause is not None:
            yield _why_marked(cause, settings)
        elif any(words in step.rule for words in _HAIRPINS):
            yield Reason.HAIRPIN


def _why_marked(cause: RuleStep, settings: RuleSettings) -> Reason:
    if cause.chain in _IPVS_EXTERNAL or IpSet.EXTERNAL_IP.of(settings.family) in cause.rule:
        return Reason.EXTERNAL
    if " src,dst " in cause.rule:  # of ipvs alone: the node sends from a Service's own address
        return Reason.NODE
    if cause.chain.startswith(_EXTERNAL):
        from_node = any(words in cause.rule for words in _FROM_NODE)
        return Reason.NODE if from_node else Reason.EXTERNAL
    if cause.chain.startswith(iptables.ENDPOINT_PREFIX):
        return Reason.HAIRPIN
    return Reason.ALL if settings.masquerade_all else Reason.NOT_LOCAL


def _why_not(steps: tuple[RuleStep, ...], settings: RuleSettings) -> Reason:
    kept = IpSet.EXTERNAL_IP_LOCAL.of(settings.family)
    if any(step.chain in _IPVS_EXTERNAL or kept in step.rule for step in steps):
        return Reason.KEPT
    for number, step in enumerate(steps[:-1]):
        if step.chain.startswith(_EXTERNAL):
            everywhere = steps[number + 1].chain.startswith(_EVERY_ENDPOINT)
            return Reason.POD if everywhere else Reason.KEPT
    local = settings.detector.matches(settings.family)
    return Reason.POD if local else Reason.NO_DETECTOR


def _service(view: ServiceView, packet: Packet) -> tuple[PortKey, str] | None:
    """The port of a Service that a packet is for, and by which kind of address."""
    for key, backed in view.ports.items():
        if key.protocol is packet.protocol and (kind := _kind(backed, packet)):
            return key, kind
    for key, backed in view.ports.items():
        if _checks_health(backed, packet):
            return key, HEALTH_CHECK
    return None


def _checks_health(backed: BackedPort, packet: Packet) -> bool:
    """The node proxy itself answers there, of every port of a Service."""
    number = backed.port.health_check_node_port
    here = packet.is_here(packet.destination)
    return number == packet.port and packet.protocol is PortProtocol.TCP and here


def _kind(backed: BackedPort, packet: Packet) -> str:
    port = backed.port
    if packet.port == port.port:
        if packet.destination == port.cluster_ip:
            return "cluster IP"
        if packet.destination in port.external_ips:
            return "external IP"
        if packet.destination in port.load_balancer_ips:
            return "load balancer IP"
    if port.node_port == packet.port and packet.is_here(packet.destination):
        return "node port"
    return ""


def merged(explanation: PacketExplanation) -> tuple[PacketOutcome, ...]:
    """The outcomes without their steps; those that are the same then are one."""
    found: dict[PacketOutcome, float] = {}
    for each in explanation.outcomes:
        bare = replace(each, chance=0.0, steps=())
        found[bare] = found.get(bare, 0.0) + each.chance
    return tuple(replace(each, chance=chance) for each, chance in found.items())


#: The source that stands for the node itself.
NODE = "node"
_PROTOCOLS = {each.value: each for each in PortProtocol}


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketTarget:
    """An address, a port and a protocol, as somebody asks for them."""

    address: str
    port: int
    protocol: PortProtocol

    @classmethod
    def parse(cls, text: str) -> PacketTarget:
        """Read ``IP:PORT``, ``[V6]:PORT``, and ``/udp`` or ``/sctp`` behind it.

        Raises:
            ConfigError: it is none; one sentence.
        """
        place, slash, protocol = text.partition("/")
        if slash and protocol.lower() not in _PROTOCOLS:
            raise ConfigError(f"DST: {protocol!r} is no protocol, which are tcp, udp and sctp")
        try:
            target = HostPort.parse(place)
        except ValueError as error:
            raise ConfigError(f"DST: {error}") from error
        if not is_address(target.host):
            raise ConfigError(f"DST: {target.host!r} is a name, and rules know addresses only")
        return cls(
            address=canonical_address(target.host) or target.host,
            port=target.port,
            protocol=_PROTOCOLS[protocol.lower() or "tcp"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedNode:
    """Where packets are looked at: a node's addresses, pod ranges, view and settings."""

    view: ServiceView
    settings: RuleSettings
    here: frozenset[str]
    pod_cidrs: tuple[str, ...] = ()


def packet_to(
    destination: PacketTarget,
    source: str,
    place: ExplainedNode,
    *,
    from_pod: bool = False,
    interface: str = "",
    bridge_port: str = "",
) -> Packet:
    """Make the packet that somebody asks about.

    ``source`` is an address, or NODE. Without ``from_pod`` the node's pods are known by their
    range and by being endpoints.

    Raises:
        ConfigError: it makes no sense; one sentence.
    """
    address = _source(source, destination, place)
    if family_of(address) is not family_of(destination.address):
        raise ConfigError(f"SRC {address} and DST {destination.address} are of two families")
    # With an interface even an address of the node comes from elsewhere: somebody forged it.
    own = address in place.here or parsed(address).is_loopback
    if own and not interface and not bridge_port:
        if from_pod:
            raise ConfigError(f"--from-pod: {address} is the node itself")
        origin = Origin.NODE
    else:
        origin = Origin.POD if from_pod or _is_pod(address, place) else Origin.OUTSIDE
    if origin is Origin.POD and not interface and not bridge_port:
        interface, bridge_port = _expected(place.settings)
    return Packet(
        family=place.settings.family,
        source=address,
        destination=destination.address,
        port=destination.port,
        protocol=destination.protocol,
        origin=origin,
        interface=interface,
        bridge_port=bridge_port,
        here=place.here,
    )


def _source(text: str, destination: PacketTarget, place: ExplainedNode) -> str:
    if text != NODE:
        if not is_address(text):
            raise ConfigError(f"SRC: {text!r} is not an address, nor {NODE!r}")
        return canonical_address(text) or text
    if parsed(destination.address).is_loopback:
        return destination.address
    address = place.settings.node_ip
    if not address or parsed(address).is_loopback:
        family = place.settings.family.value
        raise ConfigError(f"SRC: the node's {family} address is not known: --bind-address says it")
    return address


def _is_pod(address: str, place: ExplainedNode) -> bool:
    if any(within(address, each) for each in place.pod_cidrs):
        return True
    backends = (backed.backends for backed in place.view.ports.values())
    return any(each.local and each.ip == address for found in backends for each in found.reachable)


def _expected(settings: RuleSettings) -> tuple[str, str]:
    """An interface and a bridge port that the detector takes for a pod's."""
    for match in settings.detector.matches(settings.family):
        for option, text, _ in parse_rule(quoted_words(match.iptables)).tests:
            name = f"{text.removesuffix('+')}0" if text.endswith("+") else text
            match option:
                case "-i":
                    return name, ""
                case "--physdev-in" | "--physdev-is-in":
                    return "", name or "veth0"
                case _:
                    pass
    return "", ""


def taken_for_local(packet: Packet, settings: RuleSettings) -> bool:
    """Whether the detector takes a packet for one of a pod of this node."""
    flow = Flow(packet=packet)
    found = settings.detector.matches(settings.family)
    return any(matches(parse_rule(quoted_words(match.iptables)), flow) for match in found)
