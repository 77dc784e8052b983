"""A server as a systemd unit, beside a kube-apiserver of the same machine.

As agent_unit.py, but for its UNIX socket: systemd makes the directory below /run and gives it to
the unit's user. It stays when the unit is restarted, or a kube-apiserver in a container that has
it mounted would look into the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from isthmus.manifests.agent_unit import check_seen, protect_home
from isthmus.manifests.systemd import SUPERVISION, Lines, command_line, hardening, socket_unit, unit
from isthmus.manifests.volumes import File
from isthmus.programs.server.settings import ServerSettings
from isthmus.values import HostPort

#: What ends and restarts the unit; 40 % of it are for what peers make the server keep.
_MOST_MEMORY = "2G"
_RUN = PurePosixPath("/run")
_LOGS = PurePosixPath("/var/log")
_COMMENTS = (
    "A server of Isthmus, beside kube-apiserver.",
    "",
    "    useradd --system --user-group --no-create-home --shell=/usr/sbin/nologin {group}",
    "    chgrp {group} FILES && chmod 0640 FILES      {names}",
    "    systemctl enable --now UNIT",
    "",
    "The server reads its files again when they change: no restart. Root, and who is in the group,",
    "may open its socket.",
)
_SOCKET_COMMENTS = (
    "Listens for a server of Isthmus, also while it is started again: who comes then waits.",
    "It has the name of the service, with the same addresses as the service's flags.",
    "",
    "    systemctl enable --now isthmus-server.socket isthmus-server.service",
)


def server_unit(
    *,
    executable: str,
    group: str,
    args: Sequence[str],
    files: Sequence[File],
    sockets: Sequence[PurePosixPath],
    audit_log: File | None,
    capabilities: Sequence[str],
    grace_s: int,
) -> str:
    """Write the unit; ``sockets`` are the directories of UNIX sockets.

    ``capabilities`` are without their prefix.

    Raises:
        ConfigError: a file is where a unit cannot see it.
    """
    check_seen([*files, *([audit_log] if audit_log else [])])
    names = " ".join(sorted({str(file.path) for file in files}))
    comments = [line.format(group=group, names=f"# {names}") for line in _COMMENTS]
    return unit(
        {
            "Unit": [
                ("Description", "Isthmus server"),
                ("Wants", "network-online.target"),
                ("After", "network-online.target"),
                ("StartLimitIntervalSec", "0"),
            ],
            "Service": [
                *SUPERVISION,
                ("ExecStart", command_line([executable, *args])),
                ("Restart", "always"),
                ("RestartSec", "1s"),
                ("TimeoutStopSec", f"{grace_s}s"),
                ("LimitNOFILE", "1048576"),
                ("OOMScoreAdjust", "-999"),
                ("MemoryMax", _MOST_MEMORY),
                # No dynamic user: a directory that stays would be below /run/private, where only
                # root gets to. Its own group and not only one more: it is the socket's as well.
                ("User", group),
                ("Group", group),
                *_sockets(sockets),
                *_logs(audit_log),
                *hardening(capabilities),
                ("ProtectHome", protect_home(files)),
                ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"),
            ],
            "Install": [("WantedBy", "multi-user.target")],
        },
        comments=comments,
    )


def server_socket(settings: ServerSettings, *, group: str) -> str:
    """Write the unit that listens for clients and agents, also while the server is not there."""
    found = [door.uds for door in settings.doors if door.uds]
    for door in settings.doors:
        if door.port is not None:
            found.append(_listen(settings.server_bind_address, door.port))
    found.append(_listen(settings.agent_bind_address, settings.agent_port))
    return socket_unit("Isthmus server's sockets", found, group=group, comments=_SOCKET_COMMENTS)


def _listen(host: str, port: int) -> str:
    return str(HostPort(host, port)) if host else str(port)


def _logs(file: File | None) -> Lines:
    """The directory is written to as well: the log is rotated there."""
    if file is None:
        return []
    if _LOGS in file.directory.parents:
        # systemd makes it, and gives it to the unit's user.
        name = str(file.directory.relative_to(_LOGS))
        return [("LogsDirectory", name), ("LogsDirectoryMode", "0750")]
    return [("ReadWritePaths", str(file.directory))]


def _sockets(directories: Sequence[PurePosixPath]) -> Lines:
    below = [each for each in directories if _RUN in each.parents]
    # Somebody else makes these, and gives them to the group.
    others = [each for each in directories if each not in below]
    lines: list[tuple[str, str]] = []
    if below:
        names = " ".join(str(each.relative_to(_RUN)) for each in below)
        lines += [
            ("RuntimeDirectory", names),
            ("RuntimeDirectoryMode", "0750"),
            ("RuntimeDirectoryPreserve", "yes"),
        ]
    return [*lines, *(("ReadWritePaths", str(each)) for each in others)]
