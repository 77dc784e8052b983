"""The settings that every program has: logging, memory, tracing, workers and ports.

Manifests written for konnectivity set klog's flags; Isthmus logs to standard error and leaves
files, rotation and headers to the service manager, so it accepts these flags and ignores them.

frame/resources.py has the default of the memory budget, which tunnel/budget.py divides. The parent
of workers is in isthmus.frame.workers; a single worker has no parent.
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

#: The meaning of --v, for every program and for isthmus up.
V_HELP = "Log level: 0 is warnings and errors, 1 to 4 normal, 5 and above every tunnel"
_LOGGING = "Logging"

_QUANTITY = re.compile(r"([0-9]{1,15})(k|M|G|Ki|Mi|Gi)?", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
#: Less would not hold the windows of a single client.
LEAST_BYTES = 8 * 2**20

#: More than any machine needs; two digits of a tunnel's number are for the worker.
MOST_WORKERS = 64

WORKERS = shared(
    1,
    help="Number of worker processes, each with its own event loop; 0 takes one per available CPU",
    group="Workers",
    metavar="N",
    go=OURS,
)
GRACEFUL_SHUTDOWN = shared(
    25.0,
    help="Time for open connections to finish after SIGTERM",
    unit="seconds",
)
MAX_CONNECTIONS = shared(
    0,
    help="Maximum number of connections, of two file descriptors each; more are reset",
    go=OURS,
)
# The help is for the programs that serve their own machine. A server and the SNI router serve other
# machines, and count every client.
MAX_CONNECTIONS_PER_SOURCE = shared(
    0,
    help="Maximum number of connections from one address or IPv6 /64; connections from this "
    "machine, by loopback or by its own address, are exempt because they share one address",
    metavar="N",
    shown_default="three quarters of --max-connections",
    go=OURS,
)
KUBECONFIG = shared(
    "",
    help="Kubeconfig for the Kubernetes API; empty means in-cluster",
    metavar="FILE",
)
CONFIG = shared("", once=True, metavar="FILE")
# The settings of both ends of links.
LINK = shared(
    "auto",
    choices=("auto", "mux", "grpc"),
    metavar="auto|mux|grpc",
    go=OURS,
)
KEEPALIVE_TIME = shared(3600.0, unit="seconds", go="1h, no upper bound")
LEASE_NAMESPACE = shared("kube-system")
COMPAT = shared("", choices=("", KONNECTIVITY), metavar=KONNECTIVITY, go=OURS)
XFR_CHANNEL_SIZE = shared(0, help="Number of packets to queue per connection", inert=True)
WARN_ON_CHANNEL_LIMIT = shared(False, help="Warn when a queue is full", ignored=True)
KUBE_API_CONTENT_TYPE = shared(
    "application/vnd.kubernetes.protobuf",
    help="Content type to ask the Kubernetes API for",
    inert=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(SettingsBlock):
    """Log level and format, and klog's flags, which are ignored."""

    v: int = option(
        2,
        help=V_HELP,
        group=_LOGGING,
        go="4",
    )
    log_format: str = option(
        "text",
        help="Format of log lines: text, or JSON objects",
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
        "0",
        help="Minimum severity of the lines that --alsologtostderr logs",
        group=_LOGGING,
        ignored=True,
    )
    stderrthreshold: str = option(
        "2",
        help="Minimum severity of the lines logged to standard error",
        group=_LOGGING,
        ignored=True,
    )
    legacy_stderr_threshold_behavior: bool = option(
        True, help="Ignore --stderrthreshold", group=_LOGGING, ignored=True
    )
    log_file: str = option("", help="File to log to", group=_LOGGING, ignored=True)
    log_file_max_size: int = option(
        1800, help="Maximum size of the log file in megabytes", group=_LOGGING, ignored=True
    )
    log_dir: str = option("", help="Directory for log files", group=_LOGGING, ignored=True)
    log_backtrace_at: str = option(
        ":0", help="Line of code at which to log a stack trace", group=_LOGGING, ignored=True
    )
    log_flush_frequency_s: float = option(
        5.0, help="How often to flush the log", unit="seconds", group=_LOGGING, ignored=True
    )
    vmodule: str = option("", help="Log level by module", group=_LOGGING, ignored=True)
    add_dir_header: bool = option(
        False,
        help="Add the source directory to the header of log lines",
        group=_LOGGING,
        ignored=True,
    )
    one_output: bool = option(
        False,
        help="Write each line to the log of its own severity only",
        group=_LOGGING,
        ignored=True,
    )
    skip_headers: bool = option(
        False, help="Omit the header of log lines", group=_LOGGING, ignored=True
    )
    skip_log_headers: bool = option(
        False, help="Omit the header of log files", group=_LOGGING, ignored=True
    )


def quantity(text: str) -> int:
    """Read a number of bytes as Kubernetes writes it: 500k, 10Mi.

    Raises:
        ValueError: it is invalid; the message is a clause that follows the text.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError("is not a number of bytes such as 500k or 10Mi")
    return int(found[1]) * _UNITS[found[2] or ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(SettingsBlock):
    """The memory that a program keeps for its peers; ``check()`` validates it."""

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
        """The budget in bytes, for all workers together; None if it was not set.

        Raises:
            ConfigError: it is not a number of bytes, or too small.
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
        """Check the value.

        Raises:
            ConfigError: the value is invalid.
        """
        _ = self.budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings(SettingsBlock):
    """Where spans go; ``check()`` validates it."""

    PREFIX: ClassVar = "tracing"
    GO: ClassVar = OURS

    endpoint: str = option(
        "",
        help="Address to send a span of each dial to, by OTLP over HTTP; without it the OTEL_ "
        "environment variables decide",
        group="Tracing",
        metavar="URL",
    )

    def check(self) -> None:
        """Check the address.

        Raises:
            ConfigError: it is not a URL.
        """
        if not self.endpoint:
            return
        try:
            url = urlsplit(self.endpoint)
            _ = url.port  # raises if it is invalid
        except ValueError:
            url = urlsplit("")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(
                "--tracing-endpoint takes a URL such as http://127.0.0.1:4318/v1/traces, not"
                f" {self.endpoint!r}"
            )


def check_workers(count: int) -> None:
    """Check the value of --workers.

    Raises:
        ConfigError: it is out of range.
    """
    if not 0 <= count <= MOST_WORKERS:
        raise ConfigError(f"--workers must be from 0 to {MOST_WORKERS}, not {count}")


def worker_id(program_id: str, index: int) -> str:
    """The id of a worker: the id of its program and the worker's number."""
    return f"{program_id}-w{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings(SettingsBlock):
    """The settings of any program.

    ``flags_given`` are the attributes whose flags were given or set by the environment.
    """

    flags_given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    log: LogSettings = block(LogSettings())


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierSettings(ProgramSettings):
    """The settings of a program that carries connections, without its ports and workers."""

    admin: AdminSettings
    workers: int
    tracing: TracingSettings = block(TracingSettings())
    memory: MemorySettings = block(MemorySettings())

    def check_carrier(self) -> None:
        """Check that the settings of each block here fit together.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        self.admin.check()
        self.tracing.check()
        self.memory.check()
