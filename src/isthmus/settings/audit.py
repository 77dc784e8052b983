"""The settings of the audit log, named as in kube-apiserver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.parsing import check_at_least

_GROUP = "Audit log"
STDOUT = "-"
CONTINUE, DENY = "continue", "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(SettingsBlock):
    """Where the audit log goes and how it is rotated; ``check()`` validates it."""

    PREFIX: ClassVar = "audit"
    GO: ClassVar = OURS

    log_path: str = option(
        "",
        help="File for audit records, a JSON object per line; - is standard output, empty writes "
        "none",
        group=_GROUP,
        metavar="FILE|-",
    )
    log_maxsize: int = option(
        100,
        help="Maximum size of the audit log in megabytes before it is rotated; 0 leaves rotation "
        "to other tools",
        group=_GROUP,
        metavar="MB",
    )
    log_maxbackup: int = option(
        10, help="Number of rotated audit logs to keep; 0 keeps all", group=_GROUP
    )
    log_maxage: int = option(
        0,
        help="Number of days to keep rotated audit logs; 0 keeps them for ever",
        group=_GROUP,
        metavar="DAYS",
    )

    on_failure: str = option(
        CONTINUE,
        help="Action while audit records cannot be written, for instance because the disk is full: "
        f"{CONTINUE} keeps them in memory and then drops them, {DENY} refuses new connections",
        choices=(CONTINUE, DENY),
        group=_GROUP,
        metavar=f"{CONTINUE}|{DENY}",
    )

    @property
    def max_bytes(self) -> int:
        """The maximum size of the audit log; 0 means no limit."""
        return self.log_maxsize * 1024 * 1024

    def check(self) -> None:
        """Check that the settings of the audit log fit together.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_at_least("audit-log-maxsize", self.log_maxsize, 0)
        check_at_least("audit-log-maxbackup", self.log_maxbackup, 0)
        check_at_least("audit-log-maxage", self.log_maxage, 0)
        if self.on_failure == DENY and not self.log_path:
            raise ConfigError(
                f"--audit-on-failure={DENY} needs --audit-log-path: there are no records to write"
            )
        if "\0" in self.log_path or self.log_path.endswith("/"):
            raise ConfigError("--audit-log-path must name a file, or be - for standard output")
