"""The proxy of a node as a systemd unit.

It puts the address on ``lo`` and takes it away itself, so there is no script and no second unit; a
dynamic user has the one capability for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.manifests.agent_unit import check_seen, protect_home
from isthmus.manifests.systemd import SUPERVISION, Lines, command_line, hardening, unit
from isthmus.manifests.volumes import File

#: What ends and restarts the unit; 40 % of it are for what peers make the proxy keep.
_MOST_MEMORY = "512M"
_COMMENTS = (
    "The address of kube-apiserver on this node, which leads to a control plane elsewhere.",
    "",
    "    groupadd --system {group}",
    "    chgrp {group} FILES && chmod 0640 FILES      # {names}",
    "    systemctl enable --now UNIT",
)


def proxy_unit(
    *,
    executable: str,
    group: str,
    args: Sequence[str],
    capabilities: Sequence[str],
    files: Sequence[File],
    grace_s: int,
    max_files: int,
) -> str:
    """Write the unit; ``capabilities`` are without their prefix.

    Raises:
        ConfigError: a file is where a unit cannot see it.
    """
    check_seen(files)
    names = " ".join(sorted({str(file.path) for file in files})) or "none"
    return unit(
        {
            "Unit": _ORDERING,
            "Service": [
                *SUPERVISION,
                ("ExecStart", command_line([executable, *args])),
                # A changed --config is noticed by itself; this is for who cannot wait.
                ("ExecReload", "/bin/kill -HUP $MAINPID"),
                ("Restart", "always"),
                ("RestartSec", "1s"),
                ("TimeoutStopSec", f"{grace_s}s"),
                ("LimitNOFILE", str(max_files)),
                ("OOMScoreAdjust", "-999"),
                ("MemoryMax", _MOST_MEMORY),
                ("DynamicUser", "yes"),
                ("SupplementaryGroups", group),
                *hardening(capabilities),
                ("ProtectHome", protect_home(files)),
                ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"),
            ],
            "Install": [("WantedBy", "multi-user.target")],
        },
        comments=[line.format(group=group, names=names) for line in _COMMENTS],
    )


# The rule that keeps other machines out names the uplinks, which have to be there by then.
_ORDERING: Lines = [
    ("Description", "Isthmus apiserver proxy"),
    ("Wants", "network-online.target"),
    ("After", "network-online.target"),
    ("Before", "kubelet.service"),
    ("StartLimitIntervalSec", "0"),
]
