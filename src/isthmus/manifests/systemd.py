"""Writing systemd units: quoting, a hardened service, and the socket that listens for it.

Programs read files in place, by a group: credentials of systemd (LoadCredential=) are copied when
the unit starts, and a certificate that is replaced later would not be picked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from isthmus.errors import ConfigError
from isthmus.manifests.volumes import FlagFile

Lines = Sequence[tuple[str, str]]

# systemd.syntax(7), systemd.service(5) "Command lines".
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./$-]+", re.ASCII)

#: Restrictions for a program that only opens connections and reads some files. ``systemd-analyze
#: security`` checks them.
HARDENING: Lines = (
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""),
    ("ProtectSystem", "strict"),
    ("PrivateTmp", "yes"),
    ("PrivateDevices", "yes"),
    ("PrivateMounts", "yes"),
    ("ProtectClock", "yes"),
    ("ProtectControlGroups", "yes"),
    ("ProtectHostname", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectProc", "invisible"),
    ("LockPersonality", "yes"),
    ("MemoryDenyWriteExecute", "yes"),
    ("RemoveIPC", "yes"),
    ("RestrictNamespaces", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallErrorNumber", "EPERM"),
    ("SystemCallFilter", "@system-service"),
    ("SystemCallFilter", "~@privileged"),
    ("UMask", "0077"),
)

_CAPABILITIES = frozenset({"CapabilityBoundingSet", "AmbientCapabilities"})

#: How Isthmus programs and systemd communicate: a program that serves reports that it is ready; one
#: that hangs is ended and started again. Not by SIGABRT, the default: a core file would contain
#: private keys.
SUPERVISION: Lines = (
    ("Type", "notify"),
    ("NotifyAccess", "main"),
    ("WatchdogSec", "60s"),
    ("WatchdogSignal", "SIGTERM"),
)


def word(text: str) -> str:
    """Quote one word of a command line, so that systemd passes exactly this text."""
    text = text.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return text
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{text}"'


def command_line(words: Iterable[str]) -> str:
    """A command line, one flag per line."""
    return " \\\n    ".join(map(word, words))


def unit(sections: Mapping[str, Lines], *, comments: Iterable[str] = ()) -> str:
    """Write a unit, with comments at its top."""
    top = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    parts = [top] if top else []
    for name, lines in sections.items():
        parts.append(f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in lines))
    return "\n".join(parts)


def socket_unit(
    description: str, listens: Iterable[str], *, group: str, comments: Iterable[str] = ()
) -> str:
    """Write a unit that listens for a service of the same name, even while the service restarts.

    An Isthmus program finds a socket without a FileDescriptorName= by its address.
    """
    return unit(
        {
            "Unit": [("Description", description)],
            "Socket": [
                *(("ListenStream", each.replace("%", "%%")) for each in listens),
                # systemd comes first and creates the directory of a path.
                ("SocketMode", "0660"),
                ("SocketGroup", group),
                ("Backlog", "4096"),
            ],
            "Install": [("WantedBy", "sockets.target")],
        },
        comments=comments,
    )


_UNSEEN = tuple(map(PurePosixPath, ("/tmp", "/var/tmp")))
_HOMES = tuple(map(PurePosixPath, ("/home", "/root", "/run/user")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUnit:
    """A service that runs one Isthmus program under systemd's supervision, hardened.

    ``files`` are those that it reads, ``seen`` others that must be visible to it;
    ``capabilities`` are without their prefix. ``commands`` start, reload and clean up.
    """

    description: str
    comments: Sequence[str]
    commands: Lines
    files: Sequence[FlagFile]
    seen: Sequence[FlagFile] = ()
    #: Its user, and the directories that it may write to.
    user: Lines
    capabilities: Sequence[str] = ()
    #: Changes to the hardening, by key.
    loosened: Mapping[str, str] = field(default_factory=dict)
    before_kubelet: bool = False
    grace_s: int
    max_files: int = 65536
    #: Ends and restarts the unit; 40 % of it are for what peers make the program keep.
    max_memory: str = "512M"

    def to_text(self) -> str:
        """Write the unit.

        Raises:
            ConfigError: a file is in a directory that a unit cannot see.
        """
        self._check_seen()
        at_home = any(each in file.path.parents for file in self.files for each in _HOMES)
        return unit(
            {
                "Unit": [
                    ("Description", self.description),
                    # Rules that keep other machines out name uplinks, which have to exist.
                    ("Wants", "network-online.target"),
                    ("After", "network-online.target"),
                    *([("Before", "kubelet.service")] if self.before_kubelet else []),
                    ("StartLimitIntervalSec", "0"),
                ],
                "Service": [
                    *SUPERVISION,
                    *self.commands,
                    ("Restart", "always"),
                    ("RestartSec", "1s"),
                    ("TimeoutStopSec", f"{self.grace_s}s"),
                    ("LimitNOFILE", str(self.max_files)),
                    ("OOMScoreAdjust", "-999"),
                    ("MemoryMax", self.max_memory),
                    *self.user,
                    *self._hardening(),
                    ("ProtectHome", "read-only" if at_home else "yes"),
                    ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"),
                ],
                "Install": [("WantedBy", "multi-user.target")],
            },
            comments=self.comments,
        )

    def _hardening(self) -> Lines:
        allowed = " ".join(f"CAP_{each}" for each in self.capabilities)
        said = {**dict.fromkeys(_CAPABILITIES, allowed), **self.loosened}
        return [(key, said.get(key, value)) for key, value in HARDENING]

    def _check_seen(self) -> None:
        for file in (*self.files, *self.seen):
            if any(each in file.path.parents for each in _UNSEEN):
                raise ConfigError(
                    f"{file.flag} {file.path}: a unit has a temporary directory of its own; put the"
                    " file elsewhere, such as into /etc/isthmus"
                )


def file_names(files: Sequence[FlagFile]) -> str:
    """The paths of files for a comment, each once."""
    return " ".join(sorted({str(file.path) for file in files}))
