"""The setting of the memory budget, for every program that keeps bytes for others.

tunnel/budget.py divides the budget; frame/memory.py has the default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.settings.log import LogSettings
from isthmus.settings.options import OURS, option

_QUANTITY = re.compile(r"([0-9]{1,15})(k|M|G|Ki|Mi|Gi)?", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
#: With less not even one client's windows would fit.
LEAST_BYTES = 8 * 2**20


def quantity(text: str) -> int:
    """Read a number of bytes, as Kubernetes writes them: 500k, 10Mi.

    Raises:
        ValueError: it is none; a clause that goes behind the text.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError("is not a number of bytes such as 500k or 10Mi")
    return int(found[1]) * _UNITS[found[2] or ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(LogSettings):
    """How much a program keeps for its peers; ``check_memory()`` says whether that makes sense."""

    memory_budget: str = option(
        "",
        help="Memory for everything that is kept on behalf of peers, divided fairly between them, "
        "such as 200Mi; a peer that holds more than its share is slowed down",
        group="Limits",
        metavar="QUANTITY",
        shown_default="40 % of the cgroup's memory limit, or of the machine's memory and at most "
        "2Gi",
        go=OURS,
    )

    @property
    def memory_budget_bytes(self) -> int | None:
        """What was said, in bytes, for all workers together; None: nothing was.

        Raises:
            ConfigError: it is no number of bytes, or too small.
        """
        text = self.memory_budget
        if not text:
            return None
        try:
            size = quantity(text)
        except ValueError as exc:
            message = f"--memory-budget takes a quantity such as 200Mi, not {text!r}"
            raise ConfigError(message) from exc
        if size < LEAST_BYTES:
            raise ConfigError(f"--memory-budget must be 8Mi or more, not {text}")
        return size

    def check_memory(self) -> None:
        """Look at what was said.

        Raises:
            ConfigError: it makes no sense.
        """
        _ = self.memory_budget_bytes
