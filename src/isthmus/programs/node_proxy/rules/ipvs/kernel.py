"""What the kernel has to be set to for ipvs mode: names below /proc/sys and their values."""

from __future__ import annotations

from isthmus.programs.node_proxy.rules.ipvs.plan import IpvsOptions

#: Reusing a connection's port lost packets between these, unless conn_reuse_mode is 0.
_REUSE_KNOWN = (4, 1)
_REUSE_FIXED = (5, 9)


def sysctls(options: IpvsOptions, kernel: tuple[int, int]) -> list[tuple[str, int]]:
    """Give what has to be set, in order, on a kernel of this version."""
    wanted = [("net/ipv4/vs/conntrack", 1)]
    if _REUSE_KNOWN <= kernel < _REUSE_FIXED:
        wanted.append(("net/ipv4/vs/conn_reuse_mode", 0))
    wanted += [
        ("net/ipv4/vs/expire_nodest_conn", 1),
        ("net/ipv4/vs/expire_quiescent_template", 1),
        ("net/ipv4/ip_forward", 1),
    ]
    if options.strict_arp:
        # Answer for an address only on the interface that has it: none of Services' has.
        wanted += [("net/ipv4/conf/all/arp_ignore", 1), ("net/ipv4/conf/all/arp_announce", 2)]
    return wanted


def kernel_version(release: str) -> tuple[int, int]:
    """Read the first two numbers of a kernel's release, as uname gives it."""
    numbers = [part for part in release.replace("-", ".").split(".")[:2] if part.isdigit()]
    major, minor = (int(part) for part in (*numbers, "0", "0")[:2])
    return major, minor
