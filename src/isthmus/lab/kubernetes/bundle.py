"""All that a cluster of the lab is built of: what has to be there, and building what is not."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.lab.kubernetes import cgroups, images, layers, machine, programs
from isthmus.lab.kubernetes.programs import IN_PODS, PROGRAMS, GoTarget, Say

_MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True)
class Built:
    """Where programs are, and a containerd's folder with images; none where none are needed."""

    directories: Sequence[Path]
    images: Path | None


NOTHING = Built((), None)


def check() -> None:
    """See whether this machine can have a cluster.

    Raises:
        ConfigError: it cannot, in one sentence.
    """
    if os.geteuid() != 0:
        raise ConfigError("a cluster needs root, for namespaces, mounts and cgroups; use sudo")
    if platform.machine() not in _MACHINES:
        raise ConfigError(f"a cluster cannot be built on {platform.machine()}")
    if missing := [name for name in machine.NEEDS if shutil.which(name) is None]:
        raise ConfigError(f"a cluster needs {', '.join(missing)}, not found in the PATH")
    cgroups.check()
    if reason := layers.why_not():
        raise ConfigError(f"a cluster has images of its own, and {reason}")


def build(say: Say, *, more: Sequence[GoTarget] = ()) -> Built:
    """Build what is missing; what is there already costs nothing.

    Raises:
        NotBuiltError: it cannot be built here.
    """
    programs.build([*PROGRAMS, *IN_PODS, *more], say)
    made = images.prepare(say)
    directories = dict.fromkeys(target.directory for target in (*PROGRAMS, *more))
    return Built(tuple(directories), made)


def built_values() -> dict[str, str]:
    """What is filled in for the placeholders of commands.BUILT."""
    return {"cni_bin": str(programs.CNI.directory), "own_image": images.OWN_IMAGE}
