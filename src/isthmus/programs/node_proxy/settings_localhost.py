"""Settings of node ports on localhost: whether there are any, and what their connections may take.

They are the only connections that a node proxy carries itself; everything else is the kernel's.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, block, option
from isthmus.settings.program import (
    GRACEFUL_SHUTDOWN,
    MAX_CONNECTIONS,
    MemorySettings,
    ProgramSettings,
)

_LOCALHOST = "Node ports on localhost, with nftables"
#: More than one address has ports for.
_MOST_CONNECTIONS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalhostSettings(ProgramSettings):
    """What node ports on localhost may take; a base of NodeProxySettings."""

    memory: MemorySettings = block(MemorySettings(), budget={"group": _LOCALHOST})
    nftables_localhost_nodeports: bool = option(
        False,
        help="Let this node reach TCP node ports by 127.0.0.1 and ::1, with nftables: connections"
        " go through this process",
        group=_LOCALHOST,
        go=OURS,
    )
    max_connections: int = MAX_CONNECTIONS(4096, group=_LOCALHOST)
    max_connections_per_source: int = option(
        0,
        help="Carry so many of these for one user of this machine",
        metavar="N",
        shown_default="three quarters of --max-connections",
        group=_LOCALHOST,
        go=OURS,
    )
    graceful_shutdown_timeout_s: float = GRACEFUL_SHUTDOWN(group=_LOCALHOST, go=OURS)

    def check_localhost(self) -> None:
        """Hold the bounds against what there can be.

        Raises:
            ConfigError: one sentence that names the flag.
        """
        for flag, count, least in (
            ("max-connections", self.max_connections, 1),
            ("max-connections-per-source", self.max_connections_per_source, 0),
        ):
            if not least <= count <= _MOST_CONNECTIONS:
                raise ConfigError(
                    f"--{flag} must be from {least} to {_MOST_CONNECTIONS}, not {count}"
                )
        self.memory.check()
