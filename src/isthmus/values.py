"""The small values that every layer speaks of: targets, identities, ids, and what a dial is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from ipaddress import IPv6Address
from typing import NamedTuple, NewType

AgentId = NewType("AgentId", str)
ServerId = NewType("ServerId", str)
DialId = NewType("DialId", int)
TunnelId = NewType("TunnelId", int)
Network = NewType("Network", str)

# Underscores are not legal in host names (RFC 1123 §2.1) but real DNS has them.
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_MAX_NAME_CHARS = 253
_MAX_SHOWN_CHARS = 100
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_V4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}", re.ASCII)
# Resolvers read 2130706433, 0x7f.1 and 127.1 as addresses; as names they would slip past policy.
_NUMBER_LAST = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where a dial wants to go: an IPv4 or IPv6 address or a name, and a port.

    ``str()`` writes it as a URL authority does (RFC 3986 §3.2.2), IPv6 in brackets;
    ``parse()`` is the inverse.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise ValueError(f"port out of range: {self.port}")
        if not self.host or len(self.host) > _MAX_NAME_CHARS:
            raise ValueError("host is empty" if not self.host else "host name is too long")
        if is_address(self.host):
            return
        if not _NAME.fullmatch(self.host) or _NUMBER_LAST.fullmatch(self.host):
            raise ValueError(f"not a host name or address: {_shown(self.host)}")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Read ``host:port`` or ``[v6]:port``.

        Raises:
            ValueError: the text is not a host and a port; the message says what is wrong.
        """
        host, colon, port = text.rpartition(":")
        if not colon:
            raise ValueError(f"no port in {_shown(text)}")
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise ValueError(f"not a port: {_shown(port)}")
        if host.startswith("[") or host.endswith("]"):
            inner = host[1:-1]
            if host != f"[{inner}]" or not _is_v6(inner):
                raise ValueError(f"not an IPv6 address in brackets: {_shown(text)}")
            host = inner
        elif ":" in host:
            raise ValueError(f"an IPv6 address needs brackets: {_shown(text)}")
        return cls(host, int(port))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…")


def is_address(host: str) -> bool:
    """Tell whether the host is a literal IPv4 or IPv6 address, which needs no resolver."""
    # A regular expression for the common kind: ip_address() takes 2.9 µs, this 0.5 (timeit).
    return _V4.fullmatch(host) is not None or (":" in host and _is_v6(host))


def _is_v6(host: str) -> bool:
    if "%" in host:
        return False  # a zone means something on one machine only
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is at the other end of a connection, as its transport proved it."""

    name: str
    groups: tuple[str, ...] = ()
    kind: str = "certificate"
    #: The other names of a certificate.
    sans: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Identity("anonymous", kind="none")


class TrafficClass(Enum):
    """In the order in which they are served: the word for each, and how much of a link it has.

    A link on which all three wait without end is divided by 16, 4 and 1 of 21.
    """

    URGENT = "urgent", 16
    NORMAL = "normal", 4
    BULK = "bulk", 1

    rank: int
    weight: int

    def __new__(cls, word: str, weight: int) -> TrafficClass:
        """Take the word as the value, and the place as the rank."""
        made = object.__new__(cls)
        made._value_ = word
        made.rank, made.weight = len(cls.__members__), weight
        return made

    # Members are singletons. Enum's own hash is a Python function, and every dial has a class.
    __hash__ = object.__hash__


URGENT, NORMAL, BULK = TrafficClass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetadata:
    """What a client says about its request. Empty is not said."""

    network: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()
    tenant: str = ""
    object: str = ""
    traceparent: str = ""
    tracestate: str = ""

    @property
    def claims(self) -> bool:
        """It says something that may be believed or not; a trace is no claim."""
        return bool(self.network or self.user or self.groups or self.tenant or self.object)

    def only_trace(self) -> RequestMetadata:
        """Forget everything but the trace."""
        if not self.claims:
            return self
        return RequestMetadata(traceparent=self.traceparent, tracestate=self.tracestate)

    def traced_as(self, traceparent: str, tracestate: str) -> RequestMetadata:
        """The same within another span."""
        return replace(self, traceparent=traceparent, tracestate=tracestate)


NOTHING = RequestMetadata()


class DialRequest(NamedTuple):
    """What is dialed and for whom, as every layer on the way of one dial is given it.

    ``frontend`` is how it came, for people: a mode, or what stands for one. ``asking`` is what may
    be passed on of what the client said, the trace included. Both directions of the tunnel are of
    class ``traffic``, as far as a peer understands it.
    """

    # One is made for each dial: a tuple takes half the time of a frozen dataclass (timeit).
    target: HostPort
    requester: Identity
    frontend: str = ""
    connection_id: str = ""
    asking: RequestMetadata = NOTHING
    traffic: TrafficClass = NORMAL


class DialOutcome(NamedTuple):
    """By whom a target was reached; the default: by this program itself.

    ``relay`` is the other server that has the agent, if one has. ``address`` is what was connected
    to, where that is told.
    """

    agent_id: AgentId = AgentId("")
    link_id: int = 0
    relay: ServerId = ServerId("")
    address: str = ""


DIRECTLY = DialOutcome()
