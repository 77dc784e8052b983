"""What every program can be told whatever it does: logging, memory, tracing, workers, its ports.

Manifests written for konnectivity set klog's flags; Isthmus logs to standard error and leaves
files, rotation and headers to whoever runs it, so these are taken and change nothing.

frame/resources.py has the default of the memory budget, which tunnel/budget.py divides. What a
parent of workers does is isthmus.frame.workers; with one worker there is no parent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from isthmus.errors import ConfigError
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import OURS, SettingsBlock, block, option, shared
from isthmus.settings.parsing import KONNECTIVITY

#: What --v means, for every program and for isthmus up.
V_HELP = "Log at this level: 0 warnings and errors, 1 to 4 normal, 5 and above each tunnel"
_LOGGING = "Logging"

_QUANTITY = re.compile(r"([0-9]{1,15})(k|M|G|Ki|Mi|Gi)?", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
#: With less not even one client's windows would fit.
LEAST_BYTES = 8 * 2**20

#: More than any machine needs; a tunnel's number has two digits for its worker's.
MOST_WORKERS = 64

WORKERS = shared(
    1,
    help="Share the work between so many processes, each with an event loop of its own; 0 "
    "takes as many as there are CPUs to use",
    group="Workers",
    metavar="N",
    go=OURS,
)
GRACEFUL_SHUTDOWN = shared(
    25.0,
    help="Wait this long for open connections after SIGTERM",
    unit="seconds",
)
MAX_CONNECTIONS = shared(
    0,
    help="Carry so many connections, each with two descriptors, and reset what comes besides",
    go=OURS,
)
# The help is of the programs that serve their own machine. A server and the SNI router serve other
# machines, and count everybody.
MAX_CONNECTIONS_PER_SOURCE = shared(
    0,
    help="Carry so many of these for one address or /64 of IPv6; those of this machine, by"
    " loopback or by an address of its own, are not bounded so: they share one address",
    metavar="N",
    shown_default="three quarters of --max-connections",
    go=OURS,
)
KUBECONFIG = shared(
    "",
    help="Reach the Kubernetes API as this file says; empty means in-cluster",
    metavar="FILE",
)
CONFIG = shared("", once=True, metavar="FILE")
# What both ends of links have.
LINK = shared(
    "auto",
    choices=("auto", "mux", "grpc"),
    metavar="auto|mux|grpc",
    go=OURS,
)
KEEPALIVE_TIME = shared(3600.0, unit="seconds", go="1h, no upper bound")
LEASE_NAMESPACE = shared("kube-system")
COMPAT = shared("", choices=("", KONNECTIVITY), metavar=KONNECTIVITY, go=OURS)
XFR_CHANNEL_SIZE = shared(0, help="Queue this many packets per connection", inert=True)
WARN_ON_CHANNEL_LIMIT = shared(False, help="Warn when a queue is full", ignored=True)
KUBE_API_CONTENT_TYPE = shared(
    "application/vnd.kubernetes.protobuf", help="Ask the Kubernetes API for this format", inert=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(SettingsBlock):
    """How much a program logs and how, and klog's flags, which are ignored."""

    v: int = option(
        2,
        help=V_HELP,
        group=_LOGGING,
        go="4",
    )
    log_format: str = option(
        "text",
        help="Write log lines as text or as JSON objects",
        choices=("text", "json"),
        metavar="text|json",
        group=_LOGGING,
        go=OURS,
    )
    logtostderr: bool = option(True, help="Log to standard error", group=_LOGGING, ignored=True)
    alsologtostderr: bool = option(
        False, help="Log to standard error as well as to files", group=_LOGGING, ignored=True
    )
    alsologtostderrthreshold: str = option(
        "0", help="Log such lines as well from this severity on", group=_LOGGING, ignored=True
    )
    stderrthreshold: str = option(
        "2", help="Log lines from this severity on to standard error", group=_LOGGING, ignored=True
    )
    legacy_stderr_threshold_behavior: bool = option(
        True, help="Do not look at --stderrthreshold", group=_LOGGING, ignored=True
    )
    log_file: str = option("", help="Log to this file", group=_LOGGING, ignored=True)
    log_file_max_size: int = option(
        1800, help="Limit the log file to this many megabytes", group=_LOGGING, ignored=True
    )
    log_dir: str = option("", help="Log to files in this directory", group=_LOGGING, ignored=True)
    log_backtrace_at: str = option(
        ":0", help="Log a stack trace at this line", group=_LOGGING, ignored=True
    )
    log_flush_frequency_s: float = option(
        5.0, help="Flush the log this often", unit="seconds", group=_LOGGING, ignored=True
    )
    vmodule: str = option("", help="Set the level by module", group=_LOGGING, ignored=True)
    add_dir_header: bool = option(
        False, help="Add the directory to the header of log lines", group=_LOGGING, ignored=True
    )
    one_output: bool = option(
        False, help="Write each line to one severity only", group=_LOGGING, ignored=True
    )
    skip_headers: bool = option(
        False, help="Leave out the header of log lines", group=_LOGGING, ignored=True
    )
    skip_log_headers: bool = option(
        False, help="Leave out the header of log files", group=_LOGGING, ignored=True
    )


def quantity(text: str) -> int:
    """Read a number of bytes, as Kubernetes writes them: 500k, 10Mi.

    Raises:
        ValueError: it is none; a clause that goes behind the text.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError("is not a number of bytes such as 500k or 10Mi")
    return int(found[1]) * _UNITS[found[2] or ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(SettingsBlock):
    """How much a program keeps for its peers; ``check()`` says whether that makes sense."""

    PREFIX: ClassVar = "memory"
    GO: ClassVar = OURS

    budget: str = option(
        "",
        help="Memory for everything that is kept on behalf of peers, divided fairly between them, "
        "such as 200Mi; a peer that holds more than its share is slowed down",
        group="Limits",
        metavar="QUANTITY",
        shown_default="40 % of the cgroup's memory limit, or of the machine's memory and at most "
        "2Gi",
    )

    @property
    def budget_bytes(self) -> int | None:
        """What was said, in bytes, for all workers together; None: nothing was.

        Raises:
            ConfigError: it is no number of bytes, or too small.
        """
        text = self.budget
        if not text:
            return None
        try:
            size = quantity(text)
        except ValueError as exc:
            message = f"--memory-budget takes a quantity such as 200Mi, not {text!r}"
            raise ConfigError(message) from exc
        if size < LEAST_BYTES:
            raise ConfigError(f"--memory-budget must be 8Mi or more, not {text}")
        return size

    def check(self) -> None:
        """Look at what was said.

        Raises:
            ConfigError: it makes no sense.
        """
        _ = self.budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings(SettingsBlock):
    """Where spans go; ``check()`` says whether that makes sense."""

    PREFIX: ClassVar = "tracing"
    GO: ClassVar = OURS

    endpoint: str = option(
        "",
        help="Send a span of each dial to this address by OTLP over HTTP; without it the OTEL_ "
        "variables of the environment decide",
        group="Tracing",
        metavar="URL",
    )

    def check(self) -> None:
        """Look at the address.

        Raises:
            ConfigError: it is no URL.
        """
        if not self.endpoint:
            return
        try:
            url = urlsplit(self.endpoint)
            _ = url.port  # raises if it is none
        except ValueError:
            url = urlsplit("")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(
                "--tracing-endpoint takes a URL such as http://127.0.0.1:4318/v1/traces, not"
                f" {self.endpoint!r}"
            )


def check_workers(count: int) -> None:
    """Hold --workers against what there can be.

    Raises:
        ConfigError: it is no number of workers.
    """
    if not 0 <= count <= MOST_WORKERS:
        raise ConfigError(f"--workers must be from 0 to {MOST_WORKERS}, not {count}")


def worker_id(program_id: str, index: int) -> str:
    """Name a worker: its id is that of its program and its number."""
    return f"{program_id}-w{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings(SettingsBlock):
    """The settings of any program.

    ``flags_given`` are the attributes whose flags were typed, or set by the environment.
    """

    flags_given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    log: LogSettings = block(LogSettings())


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierSettings(ProgramSettings):
    """The settings of a program that carries connections; each declares its ports and workers."""

    admin: AdminSettings
    workers: int
    tracing: TracingSettings = block(TracingSettings())
    memory: MemorySettings = block(MemorySettings())

    def check_carrier(self) -> None:
        """Hold the settings of each block here against each other.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        self.admin.check()
        self.tracing.check()
        self.memory.check()
