"""An agent as a systemd unit.

Files are read where they are, by a group: credentials of systemd (LoadCredential=) are copies from
when the unit started, and a certificate that is replaced later would not be picked up. The user is
a dynamic one, who owns nothing and cannot change the files' modes either.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from isthmus.errors import ConfigError
from isthmus.manifests.systemd import HARDENING, SUPERVISION, Lines, command_line, unit
from isthmus.manifests.volumes import File

#: What ends and restarts the unit; 40 % of it are for what peers make the agent keep.
_MOST_MEMORY = "512M"
_UNSEEN = tuple(map(PurePosixPath, ("/tmp", "/var/tmp")))
_HOMES = tuple(map(PurePosixPath, ("/home", "/root", "/run/user")))
_COMMENTS = (
    "An agent of Isthmus, which has to run before the kubelet can reach kube-apiserver.",
    "",
    "    groupadd --system {group}",
    "    chgrp {group} FILES && chmod 0640 FILES      {names}",
    "    systemctl enable --now UNIT",
    "",
    "The agent reads its files again when they change: no restart, no credentials of systemd,",
    "which are copies from when a unit was started. It has no capability; what needs one is done",
    "before it starts and after it ends.",
)


def agent_unit(
    *,
    executable: str,
    group: str,
    args: Sequence[str],
    setup: Sequence[str],
    takes_node_traffic: bool,
    files: Sequence[File],
    grace_s: int,
) -> str:
    """Write the unit; ``setup`` is what root does before, empty for nothing.

    Raises:
        ConfigError: a file is where a unit cannot see it.
    """
    check_seen(files)
    names = " ".join(sorted({str(file.path) for file in files}))
    comments = [line.format(group=group, names=f"# {names}") for line in _COMMENTS]
    return unit(
        {
            "Unit": _ordering(takes_node_traffic),
            "Service": [
                *_running(executable, args, setup, takes_node_traffic, grace_s),
                ("DynamicUser", "yes"),
                ("SupplementaryGroups", group),
                *HARDENING,
                ("ProtectHome", protect_home(files)),
                ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"),
            ],
            "Install": [("WantedBy", "multi-user.target")],
        },
        comments=comments,
    )


def _ordering(takes_node_traffic: bool) -> Lines:
    # The rule that keeps other machines out names the uplinks, which have to be there by then.
    return [
        ("Description", "Isthmus agent"),
        ("Wants", "network-online.target"),
        ("After", "network-online.target"),
        *([("Before", "kubelet.service")] if takes_node_traffic else []),
        ("StartLimitIntervalSec", "0"),
    ]


def _running(
    executable: str,
    args: Sequence[str],
    setup: Sequence[str],
    takes_node_traffic: bool,
    grace_s: int,
) -> Lines:
    lines = list(SUPERVISION)
    if setup and takes_node_traffic:
        lines.append(("ExecStartPre", command_line([executable, *setup], prefix="+")))
    elif setup:
        lines.append(("ExecStartPre", command_line([executable, *setup], prefix="+-")))
    lines.append(("ExecStart", command_line([executable, *args])))
    if takes_node_traffic:
        # Another agent of the node may share the address: then it stays, and that is no failure.
        remove = [each for each in setup if not each.startswith("--uplink-interface")]
        words = [executable, *remove, "--remove"]
        lines.append(("ExecStopPost", command_line(words, prefix="+-")))
    return [
        *lines,
        ("Restart", "always"),
        ("RestartSec", "1s"),
        ("TimeoutStopSec", f"{grace_s}s"),
        ("LimitNOFILE", "65536"),
        ("OOMScoreAdjust", "-999"),
        ("MemoryMax", _MOST_MEMORY),
    ]


def check_seen(files: Sequence[File]) -> None:
    """See that a unit finds its files.

    Raises:
        ConfigError: one is where it has a directory of its own.
    """
    for file in files:
        if any(each in file.path.parents for each in _UNSEEN):
            raise ConfigError(
                f"{file.flag} {file.path}: a unit has a temporary directory of its own; put the"
                " file elsewhere, such as into /etc/isthmus"
            )


def protect_home(files: Sequence[File]) -> str:
    """What ProtectHome= may be, so that a unit finds its files."""
    seen = any(each in file.path.parents for file in files for each in _HOMES)
    return "read-only" if seen else "yes"
