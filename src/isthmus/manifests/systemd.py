"""Writing a systemd unit: sections, quoting, and what a hardened service may not do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

Lines = Sequence[tuple[str, str]]

# systemd.syntax(7), systemd.service(5) "Command lines".
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./$-]+", re.ASCII)

#: What a program that only opens connections and reads some files does without. The check is
#: ``systemd-analyze security``.
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

#: How our programs and systemd speak: ready is who serves, and who is not well any more is told to
#: leave and started again. Not by SIGABRT, the default: a core file would have private keys in it.
SUPERVISION: Lines = (
    ("Type", "notify"),
    ("NotifyAccess", "main"),
    ("WatchdogSec", "60s"),
    ("WatchdogSignal", "SIGTERM"),
)


def hardening(capabilities: Iterable[str]) -> Lines:
    """HARDENING, but for these capabilities, without their prefix."""
    allowed = " ".join(f"CAP_{each}" for each in capabilities)
    return [(key, allowed if key in _CAPABILITIES else value) for key, value in HARDENING]


def word(text: str) -> str:
    """One word of a command line, so that systemd passes on exactly this text."""
    text = text.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return text
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{text}"'


def command_line(words: Iterable[str], *, prefix: str = "") -> str:
    """A command line, a flag a line; the prefix is systemd's, such as ``+`` for "as root"."""
    return prefix + " \\\n    ".join(map(word, words))


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
    """Write a unit that listens for a service of the same name, while it is started again too.

    A program of ours finds a socket without a FileDescriptorName= by its address.
    """
    return unit(
        {
            "Unit": [("Description", description)],
            "Socket": [
                *(("ListenStream", each.replace("%", "%%")) for each in listens),
                # A directory for a path is made by whoever comes first, systemd.
                ("SocketMode", "0660"),
                ("SocketGroup", group),
                ("Backlog", "4096"),
            ],
            "Install": [("WantedBy", "sockets.target")],
        },
        comments=comments,
    )
