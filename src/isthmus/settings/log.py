"""Settings that every program has: how much it logs and how, and klog's flags, which are ignored.

Manifests written for konnectivity set klog's flags; Isthmus logs to standard error and leaves
files, rotation and headers to whoever runs it, so these are taken and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isthmus.settings.options import OURS, option

#: What --v means, for every program and for isthmus up.
V_HELP = "Log at this level: 0 warnings and errors, 1 to 4 normal, 5 and above each tunnel"
_GROUP = "Logging"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Logging; the base of the settings of every program.

    ``flags_given`` are the attributes whose flags were typed, or set by the environment.
    """

    flags_given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    v: int = option(
        2,
        help=V_HELP,
        group=_GROUP,
        go="4",
    )
    log_format: str = option(
        "text",
        help="Write log lines as text or as JSON objects",
        choices=("text", "json"),
        metavar="text|json",
        group=_GROUP,
        go=OURS,
    )
    logtostderr: bool = option(True, help="Log to standard error", group=_GROUP, ignored=True)
    alsologtostderr: bool = option(
        False, help="Log to standard error as well as to files", group=_GROUP, ignored=True
    )
    alsologtostderrthreshold: str = option(
        "0", help="Log such lines as well from this severity on", group=_GROUP, ignored=True
    )
    stderrthreshold: str = option(
        "2", help="Log lines from this severity on to standard error", group=_GROUP, ignored=True
    )
    legacy_stderr_threshold_behavior: bool = option(
        True, help="Do not look at --stderrthreshold", group=_GROUP, ignored=True
    )
    log_file: str = option("", help="Log to this file", group=_GROUP, ignored=True)
    log_file_max_size: int = option(
        1800, help="Limit the log file to this many megabytes", group=_GROUP, ignored=True
    )
    log_dir: str = option("", help="Log to files in this directory", group=_GROUP, ignored=True)
    log_backtrace_at: str = option(
        ":0", help="Log a stack trace at this line", group=_GROUP, ignored=True
    )
    log_flush_frequency_s: float = option(
        5.0, help="Flush the log this often", unit="seconds", group=_GROUP, ignored=True
    )
    vmodule: str = option("", help="Set the level by module", group=_GROUP, ignored=True)
    add_dir_header: bool = option(
        False, help="Add the directory to the header of log lines", group=_GROUP, ignored=True
    )
    one_output: bool = option(
        False, help="Write each line to one severity only", group=_GROUP, ignored=True
    )
    skip_headers: bool = option(
        False, help="Leave out the header of log lines", group=_GROUP, ignored=True
    )
    skip_log_headers: bool = option(
        False, help="Leave out the header of log files", group=_GROUP, ignored=True
    )
