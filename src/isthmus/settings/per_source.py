"""The bound of connections for one source, as the programs declare it that serve their own machine.

A server and the SNI router serve other machines, and count everybody; each declares its own.
"""

from __future__ import annotations

from isthmus.settings.options import OURS, option


def per_source_option(group: str) -> int:
    """Declare ``--max-connections-per-source``."""
    return option(
        0,
        help="Carry so many of these for one address or /64 of IPv6; those of this machine, by"
        " loopback or by an address of its own, are not bounded so: they share one address",
        group=group,
        metavar="N",
        shown_default="three quarters of --max-connections",
        go=OURS,
    )
