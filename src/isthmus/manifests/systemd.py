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
