"""The settings of the audit log, named as kube-apiserver's."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.settings.checks import check_at_least
from isthmus.settings.gates import GateSettings
from isthmus.settings.options import OURS, option

_GROUP = "Audit log"
STDOUT = "-"
CONTINUE, DENY = "continue", "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(GateSettings):
    """Where the audit log goes and how it is rotated; ``check_audit()`` says whether it can."""

    audit_log_path: str = option(
        "",
        help="Write who asked for what to this file, a JSON object per line; - is standard output, "
        "empty writes none",
        group=_GROUP,
        metavar="FILE|-",
        go=OURS,
    )
    audit_log_maxsize: int = option(
        100,
        help="Rotate the audit log before it has more than this many megabytes; 0 leaves that to "
        "others",
        group=_GROUP,
        metavar="MB",
        go=OURS,
    )
    audit_log_maxbackup: int = option(
        10, help="Keep this many rotated audit logs; 0 keeps all", group=_GROUP, go=OURS
    )
    audit_log_maxage: int = option(
        0,
        help="Delete rotated audit logs after this many days; 0 keeps them",
        group=_GROUP,
        metavar="DAYS",
        go=OURS,
    )

    audit_on_failure: str = option(
        CONTINUE,
        help="While audit records cannot be written, because the disk is full for instance: "
        f"{CONTINUE} keeps them in memory and then drops them, {DENY} refuses new connections",
        choices=(CONTINUE, DENY),
        group=_GROUP,
        metavar=f"{CONTINUE}|{DENY}",
        go=OURS,
    )

    @property
    def audit_max_bytes(self) -> int:
        """How large the audit log may become; 0 is without end."""
        return self.audit_log_maxsize * 1024 * 1024

    def check_audit(self) -> None:
        """Hold the audit log's settings against each other.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        check_at_least("audit-log-maxsize", self.audit_log_maxsize, 0)
        check_at_least("audit-log-maxbackup", self.audit_log_maxbackup, 0)
        check_at_least("audit-log-maxage", self.audit_log_maxage, 0)
        if self.audit_on_failure == DENY and not self.audit_log_path:
            raise ConfigError(
                f"--audit-on-failure={DENY} needs --audit-log-path: there are no records to write"
            )
        if "\0" in self.audit_log_path or self.audit_log_path.endswith("/"):
            raise ConfigError("--audit-log-path must name a file, or be - for standard output")
