"""Small values that every layer uses: targets, identities, ids, dial requests and outcomes."""

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
# Resolvers read 2130706433, 0x7f.1 and 127.1 as addresses; as names they would bypass policy.
_NUMBER_LAST = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostPort:
    """The target of a dial: an IPv4 or IPv6 address or a host name, and a port.

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
            ValueError: the text is not a host and a port; the message says why.
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
    """The authenticated peer of a connection, as its transport proved it."""

    name: str
    groups: tuple[str, ...] = ()
    kind: str = "certificate"
    #: The other names of a certificate.
    sans: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Identity("anonymous", kind="none")


class TrafficClass(Enum):
    """The traffic classes in the order in which they are served, each with its name and weight.

    A link on which all three always have data to send is divided 16, 4 and 1 of 21.
    """

    URGENT = "urgent", 16
    NORMAL = "normal", 4
    BULK = "bulk", 1

    rank: int
    weight: int

    def __new__(cls, word: str, weight: int) -> TrafficClass:
        """Use the word as the value, and the position as the rank."""
        made = object.__new__(cls)
        made._value_ = word
        made.rank, made.weight = len(cls.__members__), weight
        return made

    # Members are singletons. Enum's own hash is a Python function, and every dial has a class.
    __hash__ = object.__hash__


URGENT, NORMAL, BULK = TrafficClass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetadata:
    """What a client says about its request; an empty field was not set."""

    network: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()
    tenant: str = ""
    object: str = ""
    traceparent: str = ""
    tracestate: str = ""

    @property
    def claims(self) -> bool:
        """Whether the client claims anything that needs trust; a trace is not a claim."""
        return bool(self.network or self.user or self.groups or self.tenant or self.object)

    def only_trace(self) -> RequestMetadata:
        if not self.claims:
            return self
        return RequestMetadata(traceparent=self.traceparent, tracestate=self.tracestate)

    def traced_as(self, traceparent: str, tracestate: str) -> RequestMetadata:
        """The same metadata within another span."""
        return replace(self, traceparent=traceparent, tracestate=tracestate)


NOTHING = RequestMetadata()


class DialRequest(NamedTuple):
    """The target of a dial and its requester, as passed to every layer that handles the dial.

    ``frontend`` names how the request arrived: a mode, or the equivalent. ``asking`` is the part
    of the client's metadata that may be passed on, the trace included. Both directions of the
    tunnel have class ``traffic``, as far as the peer supports classes.
    """

    # One is made for each dial: a tuple takes half the time of a frozen dataclass (timeit).
    target: HostPort
    requester: Identity
    frontend: str = ""
    connection_id: str = ""
    asking: RequestMetadata = NOTHING
    traffic: TrafficClass = NORMAL


class DialOutcome(NamedTuple):
    """How a target was reached; the default is a direct dial by this program.

    ``relay`` is the server whose agent dialed, if the dial was relayed. ``address`` is the address
    that was connected to, if known.
    """

    agent_id: AgentId = AgentId("")
    link_id: int = 0
    relay: ServerId = ServerId("")
    address: str = ""


DIRECTLY = DialOutcome()
