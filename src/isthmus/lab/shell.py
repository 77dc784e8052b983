"""A shell, or any command, on a host of a lab."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.lab.plan import WALL, Names
from isthmus.lab.processes import environment
from isthmus.lab.state import Lab
from isthmus.lab.topology import Topology
from isthmus.net.namespaces import in_namespace
from isthmus.settings.checks import nearest


def command(
    lab: Lab, topology: Topology, host: str, words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Write the command that runs words on a host, a shell if there are none; its environment.

    Raises:
        ConfigError: there is no such host.
    """
    hosts = [*(one.name for one in topology.hosts), WALL]
    if host not in hosts:
        raise ConfigError(f"{host}: no such host in lab {lab.token}{nearest(host, hosts)}")
    names = Names(lab.token)
    namespace = names.wall if host == WALL else names.host(host)
    variables = environment(lab.token)
    own = Path(sys.executable).parent  # where isthmus is, if it was installed with this Python
    variables |= {
        "LAB": str(lab.directory),
        "PATH": f"{own}{os.pathsep}{variables.get('PATH', os.defpath)}",
        "debian_chroot": host,  # bash shows it in the prompt
    }
    return in_namespace(namespace, words or [os.environ.get("SHELL", "/bin/sh")]), variables
