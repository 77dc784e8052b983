"""Cutting the cables of a host, and mending them, at the wall's side: the host sees nothing of it.

Nothing is said to anybody, as when a fibre breaks somewhere far away: links stay up, routes stay,
and frames do not come.
"""

from __future__ import annotations

import subprocess

from isthmus.errors import ConfigError
from isthmus.lab.plan import Names
from isthmus.lab.topology import Cable

#: Of iproute2, as ip: a port's state can be set by no other.
PROGRAM = "bridge"
_TOOL_TIMEOUT_S = 15.0
# linux/if_bridge.h: BR_STATE_DISABLED and BR_STATE_FORWARDING.
_STATES = {False: "0", True: "3"}


def put(names: Names, cable: Cable) -> None:
    """Cut the cables of a host, or mend them; what is so already stays so.

    Raises:
        ConfigError: the lab's wall is not there, or does not have them.
    """
    for network in cable.networks:
        port = names.port(cable.host, network)
        argv = [PROGRAM, "-n", names.wall, "link", "set", "dev", port]
        done = subprocess.run(
            [*argv, "state", _STATES[cable.whole]],
            text=True,
            capture_output=True,
            timeout=_TOOL_TIMEOUT_S,
            start_new_session=True,
            check=False,
        )
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise ConfigError(f"cannot reach the cable of {cable.host} to {network}: {said}")
