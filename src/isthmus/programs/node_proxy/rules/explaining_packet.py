"""From what somebody asks about to a packet: where it comes from, and by which interface.

What is not said is taken from the detector: a pod's packet comes in as the detector expects it.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.addresses import canonical_address
from isthmus.programs.node_proxy.rules.explaining_flow import Flow, Origin, Packet, parsed, within
from isthmus.programs.node_proxy.rules.explaining_iptables import matches, parse_rule
from isthmus.programs.node_proxy.rules.iptables.base import words
from isthmus.programs.node_proxy.rules.model import PortProtocol, ServiceView
from isthmus.programs.node_proxy.rules.objects import family_of
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.values import HostPort, is_address

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
        for option, text, _ in parse_rule(words(match.iptables)).tests:
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
    return any(matches(parse_rule(words(match.iptables)), flow) for match in found)
