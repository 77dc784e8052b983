"""What a lab is made of, as values: networks, hosts, walls, programs, and what has to be seen.

Values only, checked against each other by reading.py, which makes them from YAML; nothing here
touches the kernel. A name means a host unless something else is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

CUT, MEND = "cut", "mend"
#: How long a process has to be ready, unless something else is said.
READY_WITHIN_S = 60.0
#: What a target that is asked by UDP begins with.
UDP = "udp://"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabNetwork:
    """A bridge. With a gateway it can reach the other networks as far as the wall allows.

    Without one nothing leaves it, so several such may have the same addresses. One ``behind`` a
    host has that host for its router: there is a bridge of this name, or without one a cable to
    each of the others. ``ports`` is what its ends of the cables are called, with a number.
    """

    name: str
    cidrs: tuple[IpNetwork, ...]
    gateway: bool = True  # of the wall's
    behind: str = ""
    bridge: str = ""
    ports: str = ""

    def gateway_in(self, cidr: IpNetwork) -> IpAddress:
        """The wall's own address in one of the CIDRs: the first."""
        return cidr[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineShape:
    """What a bad line does to frames, in each direction: one-way delay, loss, rate.

    ``loss`` is a share between 0 and 1; a ``rate`` of 0 is no limit.
    """

    delay_ms: float = 0.0
    loss: float = 0.0
    rate_mbit: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A host's place on a network; the interface is called as the network."""

    network: str
    addresses: tuple[IpAddress, ...]
    shape: LineShape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRoute:
    """Where a host sends what goes to ``to``: to another host on one of its networks."""

    to: IpNetwork
    via: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LabService:
    """An address that a host translates, as kube-proxy does a cluster IP, for what it sends.

    Where it leads is a host, or an address that no host has from the beginning.
    """

    address: IpAddress
    port: int
    to_host: str = ""
    to_address: IpAddress | None = None
    to_port: int

    @property
    def to(self) -> str:
        """Where it leads, for those who read it."""
        return self.to_host or str(self.to_address)


class Serving(Enum):
    """The small servers that come with the lab."""

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

    ``ready`` is a URL (http or https) that answers 200 from then on, or ``tcp:PORT``; empty means
    that it is ready at once. One that runs ``once`` is ready when it has ended well. Without
    ``start`` it waits for a step, or for somebody's hand; ``after`` are those that are ready first.
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
    also: tuple[IpAddress, ...] = ()  # on its loopback
    routes: tuple[LabRoute, ...] = ()
    services: tuple[LabService, ...] = ()
    serves: tuple[Serve, ...] = ()
    processes: tuple[Process, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    machine: bool = False

    @property
    def addresses(self) -> tuple[IpAddress, ...]:
        """All of them but 127.0.0.1, the networks' first."""
        return (*(one for at in self.attachments for one in at.addresses), *self.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """Who may open connections to whom through the wall: hosts or networks; no ports means all."""

    source: str
    target: str
    ports: tuple[int, ...] = ()


class Wall(Enum):
    """What becomes of a connection that the wall does not allow."""

    REJECT = "reject"  # said at once, "no route to host"
    DROP = "drop"  # silence


class FrontendProtocol(Enum):
    """How a way's frontend is spoken to."""

    HTTP_CONNECT = "http-connect"
    GRPC = "grpc"
    PAYLOAD = "payload"  # gRPC, too, as KEP-1281 has it


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFrontend:
    """A frontend to go through: a UNIX socket, or host:port with the lab's certificates."""

    name: str
    protocol: FrontendProtocol
    uds: str = ""
    tcp: str = ""


class Verb(Enum):
    """What is tried at a target."""

    CONNECT = "connect"  # and nothing else
    GET = "get"  # a page, by HTTP or HTTPS
    ECHO = "echo"  # send, half-close, and get everything back
    DOWNLOAD = "download"  # from a source, for some seconds
    UPLOAD = "upload"  # to a sink, for some seconds
    ASK = "ask"  # who it is that asks, by TCP or UDP


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
    """One thing to try from a host; ``through`` names a way, empty is directly."""

    source: str
    verb: Verb
    target: str  # host:port, or a URL for GET and ASK
    through: str = ""
    timeout_s: float = 5.0
    seconds: float = 3.0  # of a download or upload
    bytes: int = 100_000  # of an echo


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """An attempt and what has to come of it, tried again until ``within_s`` has passed.

    ``fails`` None means that it has to work; several are alternatives. ``answers`` has to be in the
    page or answer, ``at_least_mbit`` is the rate to be reached.
    """

    attempt: LabAttempt
    fails: tuple[AttemptFailure, ...] | None = None
    answers: str = ""
    at_least_mbit: float = 0.0
    within_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsAre:
    """The agents that a server's process has, exactly, within some time."""

    server: str  # a process
    agents: tuple[str, ...]
    within_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsGrow:
    """The windows on a program's links have grown by at least so much, in all."""

    process: str
    at_least_bytes: int
    within_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command in a host, its exit code and what it prints."""

    source: str
    command: tuple[str, ...]
    prints: str = ""  # a regular expression, searched for
    fails: bool = False
    stdin: str = ""
    timeout_s: float = 10.0
    within_s: float = 0.0


class Deed(Enum):
    """What is done to a process."""

    START = "start"
    STOP = "stop"  # SIGTERM
    KILL = "kill"
    FREEZE = "freeze"  # SIGSTOP
    THAW = "thaw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessAction:
    """Something done to a process."""

    deed: Deed
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """The cables of a host to some of its networks are cut, or whole again."""

    host: str
    networks: tuple[str, ...]
    whole: bool

    @property
    def deed(self) -> str:
        """What is done to them, in one word."""
        return MEND if self.whole else CUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Attempts made over and over in the background, until a step ends them and counts."""

    name: str
    attempts: tuple[LabAttempt, ...]
    clients: int = 2  # of each attempt
    pause_s: float = 0.05  # of a client between two


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficEnds:
    """Background traffic ends; some of it worked, and at most so many attempts failed."""

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
        """All of them, host by host; their names are unique in the topology."""
        return tuple(process for host in self.hosts for process in host.processes)
