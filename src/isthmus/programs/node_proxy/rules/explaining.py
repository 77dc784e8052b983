"""Explains what the node proxy's rules do to a packet: destination, masquerading, and the reason.

The question is first turned into a packet; what the user leaves out follows from the detector: a
pod's packet arrives as the detector expects. explaining_iptables.py and explaining_nftables.py walk
the rules, using the texts that the kernel is given; this module knows the order of the kernel's
hooks and the wording of the answer.
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
# Chains that mark on behalf of others: the rule that led to them gives the reason.
_MARKERS = (iptables.MARK_MASQ, iptables.MASQ_IF_NOT_LOCAL, nftables.NOT_LOCAL_CHAIN)
# ipvs chains for node ports and load balancers: they mark some packets and return others.
_IPVS_EXTERNAL = (ipvs.NODE_PORT, ipvs.LOAD_BALANCER)
_HAIRPINS = (
    f"@{nftables.NftContainer.HAIRPIN}",
    *(f" {IpSet.LOOP_BACK.of(family)} " for family in IpFamily),
)
_FROM_NODE = ("--src-type LOCAL", "fib saddr type local")


class Reason(Enum):
    """Why a packet is masqueraded or not; the values are shown to users."""

    ALL = "--masquerade-all"
    NOT_LOCAL = "the source is not a pod of this node"
    EXTERNAL = "external traffic policy Cluster: the endpoint may be on another node"
    NODE = "the source is this node itself"
    HAIRPIN = "the endpoint is the source"
    POD = "the source is a pod of this node"
    KEPT = "external traffic policy Local keeps the source address"
    NO_DETECTOR = "no local traffic detector: traffic to cluster IPs is never masqueraded"
    STAYS = "the endpoint is this node itself, and incoming traffic is not masqueraded"


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketOutcome:
    """One possible outcome for a packet, and its probability.

    ``endpoint`` is the resulting destination, as ``ip:port``. ``reasons`` explain why the packet is
    or is not masqueraded; empty if nothing was translated. ``steps`` are the rules it met.
    """

    verdict: PacketVerdict
    endpoint: str
    chance: float
    masqueraded: bool
    reasons: tuple[Reason, ...]
    steps: tuple[RuleStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketExplanation:
    """All possible outcomes for a packet; their probabilities add up to one.

    ``service`` is the port that the destination belongs to, and ``reached_by`` the kind of
    address; None and empty if it belongs to no Service.
    """

    packet: Packet
    outcomes: tuple[PacketOutcome, ...]
    service: PortKey | None = None
    reached_by: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> PacketVerdict:
        """The verdict, which is the same for all outcomes: the rules never leave it to chance."""
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
    """Walk a packet through the rules of a view.

    Raises:
        ConfigError: a detector of another package uses a match that cannot be explained.
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
    """Yield every possible outcome for a flow, in the order of the kernel's hooks."""
    origin = start.packet.origin
    first = Hook.OUTPUT if origin is Origin.NODE else Hook.PREROUTING
    for flow in rules.cross(first, start):
        here = flow.packet.is_here(flow.packet.destination)
        if origin is Origin.NODE:
            # What the node sends to itself leaves by the loopback interface and re-enters.
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
            # A virtual server took the packet; a destination on this node is delivered at once.
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
    if " src,dst " in cause.rule:  # only ipvs: the node sends from the Service's own address
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
    """The Service port that a packet is for, and the kind of address it uses."""
    for key, backed in view.ports.items():
        if key.protocol is packet.protocol and (kind := _kind(backed, packet)):
            return key, kind
    for key, backed in view.ports.items():
        if _checks_health(backed, packet):
            return key, HEALTH_CHECK
    return None


def _checks_health(backed: BackedPort, packet: Packet) -> bool:
    """Whether a packet is for the health check port, which the node proxy itself answers."""
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
    """The outcomes without their steps; equal ones are merged."""
    found: dict[PacketOutcome, float] = {}
    for each in explanation.outcomes:
        bare = replace(each, chance=0.0, steps=())
        found[bare] = found.get(bare, 0.0) + each.chance
    return tuple(replace(each, chance=chance) for each, chance in found.items())


#: The SRC that stands for the node itself.
NODE = "node"
_PROTOCOLS = {each.value: each for each in PortProtocol}


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketTarget:
    """An address, a port and a protocol, as given on the command line."""

    address: str
    port: int
    protocol: PortProtocol

    @classmethod
    def parse(cls, text: str) -> PacketTarget:
        """Read ``IP:PORT`` or ``[V6]:PORT``, optionally followed by ``/udp`` or ``/sctp``.

        Raises:
            ConfigError: the text is not a target; the message says why.
        """
        place, slash, protocol = text.partition("/")
        if slash and protocol.lower() not in _PROTOCOLS:
            raise ConfigError(f"DST: unknown protocol {protocol!r}: use tcp, udp or sctp")
        try:
            target = HostPort.parse(place)
        except ValueError as error:
            raise ConfigError(f"DST: {error}") from error
        if not is_address(target.host):
            raise ConfigError(f"DST: {target.host!r} is a name: use an IP address")
        return cls(
            address=canonical_address(target.host) or target.host,
            port=target.port,
            protocol=_PROTOCOLS[protocol.lower() or "tcp"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedNode:
    """The node that a packet is explained for: its addresses, pod ranges, view and settings."""

    view: ServiceView
    settings: RuleSettings
    here: frozenset[str]
    pod_cidrs: tuple[str, ...] = ()


def packet_to(
    destination: PacketTarget,
    source: str,
    node: ExplainedNode,
    *,
    from_pod: bool = False,
    interface: str = "",
    bridge_port: str = "",
) -> Packet:
    """Make the packet that the user asks about.

    ``source`` is an address, or NODE. Without ``from_pod`` a source counts as a pod of the node if
    it is in the node's pod ranges or an endpoint on the node.

    Raises:
        ConfigError: the arguments contradict each other; the message says how.
    """
    address = _source(source, destination, node)
    if family_of(address) is not family_of(destination.address):
        raise ConfigError(
            f"SRC {address} and DST {destination.address} are of different IP families"
        )
    # With an interface even an address of the node comes from outside: a forged source.
    own = address in node.here or parsed(address).is_loopback
    if own and not interface and not bridge_port:
        if from_pod:
            raise ConfigError(f"--from-pod: {address} is an address of the node itself")
        origin = Origin.NODE
    else:
        origin = Origin.POD if from_pod or _is_pod(address, node) else Origin.OUTSIDE
    if origin is Origin.POD and not interface and not bridge_port:
        interface, bridge_port = _expected(node.settings)
    return Packet(
        family=node.settings.family,
        source=address,
        destination=destination.address,
        port=destination.port,
        protocol=destination.protocol,
        origin=origin,
        interface=interface,
        bridge_port=bridge_port,
        here=node.here,
    )


def _source(text: str, destination: PacketTarget, node: ExplainedNode) -> str:
    if text != NODE:
        if not is_address(text):
            raise ConfigError(f"SRC: {text!r} is not an IP address: use one, or {NODE!r}")
        return canonical_address(text) or text
    if parsed(destination.address).is_loopback:
        return destination.address
    address = node.settings.node_ip
    if not address or parsed(address).is_loopback:
        family = node.settings.family.value
        raise ConfigError(f"SRC: the node's {family} address is unknown: set --bind-address")
    return address


def _is_pod(address: str, node: ExplainedNode) -> bool:
    if any(within(address, each) for each in node.pod_cidrs):
        return True
    backends = (backed.backends for backed in node.view.ports.values())
    return any(each.local and each.ip == address for found in backends for each in found.reachable)


def _expected(settings: RuleSettings) -> tuple[str, str]:
    """An interface and a bridge port by which the detector recognises a pod."""
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
    """Whether the detector takes a packet for traffic from a pod of this node."""
    flow = Flow(packet=packet)
    found = settings.detector.matches(settings.family)
    return any(matches(parse_rule(quoted_words(match.iptables)), flow) for match in found)
