"""The measured figures: their sources, and their goals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Against(Enum):
    """What a goal is compared with."""

    BASELINE = "the baseline of the table, usually the haproxy pair"
    ITSELF = "absolute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on a ratio to the baseline, or on the figure itself."""

    bound: float
    at_least: bool
    against: Against = Against.BASELINE

    def reached(self, value: float) -> bool:
        """Whether the value satisfies the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        times = "×" if self.against is Against.BASELINE else ""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{times}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table: a field of a load command's output."""

    load: str
    field: str
    title: str
    unit: str
    goal: Goal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One measurement: a command of a load program, the number of connections, and value sizes."""

    group: str
    command: str
    conns: int
    size: int = 0

    @property
    def name(self) -> str:
        """Its key in the samples."""
        return f"{self.command}{self.conns}{f'-{self.size}' if self.size else ''}"


#: The group of loads that curl measures, not the load program.
CURL = "curl"
SERVICES = "services"
GROUPS = ("down", "up", "rr", "dial", "stall", "mem", "hold", CURL, SERVICES)
#: Groups that take minutes and run only if named.
SLOW_READER = "slow-reader"
ETCD = "etcd"
ALL_GROUPS = (*GROUPS, SLOW_READER, ETCD)
SLOW_LOAD = Load(group=SLOW_READER, command="slow", conns=16)
LOADS = (
    Load(group="down", command="down", conns=1),
    Load(group="down", command="down", conns=8),
    Load(group="up", command="up", conns=1),
    Load(group="up", command="up", conns=8),
    Load(group="rr", command="rr", conns=1),
    Load(group="rr", command="rr", conns=16),
    Load(group="rr", command="rr", conns=64),
    Load(group="dial", command="dial", conns=1),
    Load(group="dial", command="dial", conns=8),
    Load(group="stall", command="stall", conns=16),
    Load(group=CURL, command="fetch", conns=1),
    Load(group=CURL, command="download", conns=1),
)
IDLE_TUNNELS = 2_000
PASSED_BYTES = 1 << 20

_WORDS = {"down": "download", "up": "upload", "rr": "64-byte RR", "dial": "dials"}
_GOALS = {
    ("down", "mb_per_s"): Goal(bound=0.7, at_least=True),
    ("up", "mb_per_s"): Goal(bound=0.7, at_least=True),
    ("rr16", "per_s"): Goal(bound=0.8, at_least=True),
    ("rr1", "p50_us"): Goal(bound=1.5, at_least=False),
    ("dial8", "per_s"): Goal(bound=3.5, at_least=True),
    ("down", "cpu_s_per_gb"): Goal(bound=1.7, at_least=False),
    ("up", "cpu_s_per_gb"): Goal(bound=1.7, at_least=False),
}
# The client of the gRPC frontend is Go's own, which causes most of the cost there.
_GRPC_GOALS = {
    ("down", "mb_per_s"): Goal(bound=0.35, at_least=True),
    ("up", "mb_per_s"): Goal(bound=0.5, at_least=True),
    ("rr16", "per_s"): Goal(bound=0.5, at_least=True),
    ("dial8", "per_s"): Goal(bound=1.7, at_least=True),
}
# A gRPC link to the agent, against the mux link.
_GRPC_LINK_GOALS = {
    ("down", "mb_per_s"): Goal(bound=0.6, at_least=True),
    ("up", "mb_per_s"): Goal(bound=0.6, at_least=True),
}
# Plain forwarding by isthmus apiserver-proxy, compared with one haproxy.
_FORWARD_GOALS = {
    ("down", "mb_per_s"): Goal(bound=0.5, at_least=True),
    ("up", "mb_per_s"): Goal(bound=0.5, at_least=True),
    ("rr16", "per_s"): Goal(bound=0.5, at_least=True),
}
FORWARD_LOADS = frozenset({"down1", "down8", "up1", "up8", "rr1", "rr16", "dial8"})
GRPC_LOADS = frozenset({"down1", "down8", "up1", "up8", "rr1", "rr16", "dial8"})
GRPC_LINK_LOADS = frozenset({"down1", "down8", "up1", "up8"})
_BULK = (("mb_per_s", "", "MB/s"), ("cpu_s_per_gb", "CPU", "s/GB"))
_TIMED = (
    ("per_s", "", "/s"),
    ("p50_us", "p50", "µs"),
    ("p99_us", "p99", "µs"),
    ("cpu_us_each", "CPU each", "µs"),
)
_FIELDS = {"down": _BULK, "up": _BULK, "rr": _TIMED, "dial": _TIMED}


_Goals = dict[tuple[str, str], Goal]


def _of_loads(goals: _Goals, names: frozenset[str] | None = None) -> list[Figure]:
    rows = []
    for load in LOADS:
        if names is not None and load.name not in names:
            continue
        for field, what, unit in _FIELDS.get(load.command, ()):
            goal = goals.get((load.name, field)) or goals.get((load.command, field))
            title = " ".join(filter(None, (_WORDS[load.command], f"c={load.conns}", what)))
            rows.append(Figure(load=load.name, field=field, title=title, unit=unit, goal=goal))
    return rows


def _own(bound: float) -> Goal:
    return Goal(bound=bound, at_least=False, against=Against.ITSELF)


def _stall(field: str, title: str, unit: str, goal: Goal | None) -> Figure:
    return Figure(load="stall16", field=field, title=title, unit=unit, goal=goal)


def _memory(field: str, title: str) -> Figure:
    return Figure(load="mem", field=field, title=title, unit="kB", goal=_own(10.0))


def _slow(field: str, title: str, unit: str, goal: Goal | None = None) -> Figure:
    title = f"slow reader: {title}"
    return Figure(load=SLOW_LOAD.name, field=field, title=title, unit=unit, goal=goal)


# A reader of 1 MB/s on a gRPC link. Its first second is within any share; the time after its share
# is used up is reported, without a goal.
SLOW_FIGURES = (
    _slow("alone_p99_us", "others' p99 alone", "µs"),
    _slow("early_p99_ratio", "others' p99, first second", "× alone", _own(3.0)),
    _slow("rest_p99_ratio", "others' p99, afterwards", "× alone"),
    _slow("rest_p50_us", "others' p50, afterwards", "µs"),
    _slow("rest_p99_us", "others' p99, afterwards", "µs"),
    _slow("read_mb_per_s", "what it read", "MB/s"),
    _slow("slow_grown_mb", "memory grown", "MB"),
)
FIGURES = (
    *_of_loads(_GOALS),
    _stall("p50_ratio", "stalled reader: others' p50", "× alone", _own(1.5)),
    _stall("p99_ratio", "stalled reader: others' p99", "× alone", _own(3.0)),
    _stall("taken_mb", "stalled reader: taken in", "MB", None),
    # The limit of received and unsent bytes before stalled streams get no more credit.
    _stall("grown_mb", "stalled reader: memory grown", "MB", _own(64.0)),
    _memory("idle_kb", "memory per idle tunnel"),
    _memory("used_kb", "the same after 1 MiB each way"),
    Figure(
        load="hold",
        field="answered",
        title="idle tunnels held",
        unit="",
        goal=Goal(bound=10_000, at_least=True, against=Against.ITSELF),
    ),
    *SLOW_FIGURES,
)
GRPC_FIGURES = (
    *_of_loads(_GRPC_GOALS, GRPC_LOADS),
    _memory("idle_kb", "memory per idle tunnel"),
)
GRPC_LINK_FIGURES = (*_of_loads(_GRPC_LINK_GOALS, GRPC_LINK_LOADS), *SLOW_FIGURES)
FORWARD_FIGURES = tuple(_of_loads(_FORWARD_GOALS, FORWARD_LOADS))
# The SOCKS5 sidecar, compared with curl's own CONNECT to the server behind it.
CURL_FIGURES = (
    Figure(
        load="fetch1",
        field="p50_ms",
        title="small fetch p50",
        unit="ms",
        goal=Goal(bound=1.2, at_least=False),
    ),
    Figure(load="fetch1", field="p90_ms", title="small fetch p90", unit="ms"),
    Figure(
        load="download1",
        field="mb_per_s",
        title="large fetch",
        unit="MB/s",
        goal=Goal(bound=0.8, at_least=True),
    ),
)
