"""The parts of a lab as values: networks, hosts, walls, programs, and steps.

Values only; reading.py makes them from YAML and checks them against each other; nothing here
touches the kernel. A name means a host unless stated otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

CUT, MEND = "cut", "mend"
#: The default time limit for a process to become ready.
READY_WITHIN_S = 60.0
#: The prefix of a target for ask by UDP.
UDP = "udp://"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabNetwork:
    """A bridge. With a gateway it can reach other networks as far as the wall allows.

    Without a gateway nothing leaves it, so several of them may have the same addresses. A network
    ``behind`` a host has that host as its router: ``bridge`` is a bridge on that host, or empty for
    a cable to each other host. ``ports`` is the prefix of the names of the cables' ends.
    """

    name: str
    cidrs: tuple[IpNetwork, ...]
    gateway: bool = True  # at the wall
    behind: str = ""
    bridge: str = ""
    ports: str = ""

    def gateway_in(self, cidr: IpNetwork) -> IpAddress:
        """The wall's address in one of the CIDRs: the first."""
        return cidr[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineShape:
    """The properties of a bad line, per direction: one-way delay, loss, rate.

    ``loss`` is a share between 0 and 1; a ``rate`` of 0 is unlimited.
    """

    delay_ms: float = 0.0
    loss: float = 0.0
    rate_mbit: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A host's attachment to a network; the interface has the network's name."""

    network: str
    addresses: tuple[IpAddress, ...]
    shape: LineShape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRoute:
    """A route of a host: packets to ``to`` go by another host on one of its networks."""

    to: IpNetwork
    via: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LabService:
    """An address that a host translates for what it sends, like kube-proxy with a cluster IP.

    The target is a host, or an address that no host has initially.
    """

    address: IpAddress
    port: int
    to_host: str = ""
    to_address: IpAddress | None = None
    to_port: int

    @property
    def to(self) -> str:
        """The target, for messages."""
        return self.to_host or str(self.to_address)


class Serving(Enum):
    """The small servers of the lab."""

    HTTP = "http"
    HTTPS = "https"
    ECHO = "echo"
    SOURCE = "source"
    SINK = "sink"
    WHO = "who"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """One of the small servers on a port of a host, on all its addresses."""

    kind: Serving
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A program on a host. ``command`` has placeholders, see commands.py.

    ``ready`` is an http or https URL that answers 200 once the program is ready, or ``tcp:PORT``;
    empty means ready at once. A program that runs ``once`` is ready when it has ended with exit
    code 0. Without ``start`` it waits for a step, or for the user; it starts once ``after`` are
    ready.
    """

    name: str
    host: str
    command: tuple[str, ...]
    ready: str = ""
    start: bool = True
    once: bool = False
    after: tuple[str, ...] = ()
    within_s: float = READY_WITHIN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LabHost:
    """A namespace; a ``machine`` has processes, mounts and cgroups of its own as well."""

    name: str
    attachments: tuple[Attachment, ...]
    also: tuple[IpAddress, ...] = ()  # on its loopback interface
    routes: tuple[LabRoute, ...] = ()
    services: tuple[LabService, ...] = ()
    serves: tuple[Serve, ...] = ()
    processes: tuple[Process, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    machine: bool = False

    @property
    def addresses(self) -> tuple[IpAddress, ...]:
        """All addresses except loopback; those on networks first."""
        return (*(one for at in self.attachments for one in at.addresses), *self.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """An opening of the wall: hosts or networks on each side; no ports means all ports."""

    source: str
    target: str
    ports: tuple[int, ...] = ()


class Wall(Enum):
    """What the wall does with a connection that is not allowed."""

    REJECT = "reject"  # an error at once, "no route to host"
    DROP = "drop"  # silence


class FrontendProtocol(Enum):
    """The protocol of a way's frontend."""

    HTTP_CONNECT = "http-connect"
    GRPC = "grpc"
    PAYLOAD = "payload"  # KEP-1281's protocol, also over gRPC


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFrontend:
    """A frontend for attempts: a UNIX socket, or host:port with the lab's certificates."""

    name: str
    protocol: FrontendProtocol
    uds: str = ""
    tcp: str = ""


class Verb(Enum):
    """What an attempt does."""

    CONNECT = "connect"  # nothing else
    GET = "get"  # a page, by HTTP or HTTPS
    ECHO = "echo"  # send, half-close, and get everything back
    DOWNLOAD = "download"  # from a source, for some seconds
    UPLOAD = "upload"  # to a sink, for some seconds
    ASK = "ask"  # which address the target sees, by TCP or UDP


class AttemptFailure(Enum):
    """How an attempt fails, in one word."""

    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    UNRESOLVED = "unresolved"
    DENIED = "denied"
    NO_AGENT = "no-agent"
    RESET = "reset"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabAttempt:
    """One attempt from a host; ``through`` names a way, empty means directly."""

    source: str
    verb: Verb
    target: str  # host:port, or a URL for GET and ASK
    through: str = ""
    timeout_s: float = 5.0
    seconds: float = 3.0  # of a download or upload
    bytes: int = 100_000  # of an echo


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """An attempt and its expected outcome, repeated until ``within_s`` has passed.

    ``fails`` None means that it has to succeed; several values are alternatives. ``answers`` has to
    be in the page or answer, ``at_least_mbit`` is the minimum rate.
    """

    attempt: LabAttempt
    fails: tuple[AttemptFailure, ...] | None = None
    answers: str = ""
    at_least_mbit: float = 0.0
    within_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsAre:
    """The exact set of agents of a server's process, within some time."""

    server: str  # a process
    agents: tuple[str, ...]
    within_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsGrow:
    """The windows on a program's links have grown by at least this much in total."""

    process: str
    at_least_bytes: int
    within_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command on a host, its exit code and its output."""

    source: str
    command: tuple[str, ...]
    prints: str = ""  # a regular expression, searched for
    fails: bool = False
    stdin: str = ""
    timeout_s: float = 10.0
    within_s: float = 0.0


class Deed(Enum):
    """An action on a process."""

    START = "start"
    STOP = "stop"  # SIGTERM
    KILL = "kill"
    FREEZE = "freeze"  # SIGSTOP
    THAW = "thaw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessAction:
    """An action and its process."""

    deed: Deed
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """Cutting or mending the cables of a host to some of its networks."""

    host: str
    networks: tuple[str, ...]
    whole: bool

    @property
    def deed(self) -> str:
        """The action, in one word."""
        return MEND if self.whole else CUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Attempts repeated in the background, until a step ends and counts them."""

    name: str
    attempts: tuple[LabAttempt, ...]
    clients: int = 2  # per attempt
    pause_s: float = 0.05  # between two attempts of a client


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficEnds:
    """The end of background traffic; some attempts succeeded, and at most so many failed."""

    name: str
    at_most_failed: int | None = None


LabStep = (
    Expectation | AgentsAre | WindowsGrow | Run | ProcessAction | Cable | Traffic | TrafficEnds
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabDoor:
    """Where kubectl of this machine comes in: a port of a host, for which a kubeconfig is written.

    ``kubeconfig`` is the file for those who are on the host, from which the other one is made.
    """

    host: str
    port: int
    kubeconfig: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A whole lab.

    ``needs`` are programs that have to be in the PATH; with ``builds`` those of a cluster are
    built, and its images.
    """

    name: str
    title: str
    networks: tuple[LabNetwork, ...]
    hosts: tuple[LabHost, ...]
    about: str = ""
    wall: Wall = Wall.REJECT
    allows: tuple[Allow, ...] = ()
    names: tuple[tuple[str, IpAddress], ...] = ()
    files: tuple[tuple[str, str], ...] = ()  # name in the lab's directory, text with placeholders
    ways: tuple[LabFrontend, ...] = ()
    steps: tuple[LabStep, ...] = ()
    needs: tuple[str, ...] = ()
    congestion_control: str = ""
    builds: bool = False
    door: LabDoor | None = None
    _hosts: dict[str, LabHost] = field(init=False, repr=False, compare=False)
    _networks: dict[str, LabNetwork] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hosts", {host.name: host for host in self.hosts})
        object.__setattr__(self, "_networks", {one.name: one for one in self.networks})

    def host(self, name: str) -> LabHost:
        return self._hosts[name]

    def network(self, name: str) -> LabNetwork:
        return self._networks[name]

    @property
    def processes(self) -> tuple[Process, ...]:
        """All processes, host by host; their names are unique in the topology."""
        return tuple(process for host in self.hosts for process in host.processes)
