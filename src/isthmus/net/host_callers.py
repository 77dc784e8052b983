"""Who wants an address of its host, and what sentences about it say to people who run that.

The address is host_place.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

SETUP = "isthmus agent setup-interface"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who wants an address, as sentences call it, and the flags that people gave it.

    ``interface_flag`` is empty where the interface cannot be chosen, ``setup`` where no command
    does the privileged part beforehand.
    """

    who: str
    address_flag: str
    interface_flag: str = ""
    setup: str = ""

    @property
    def remedy(self) -> str:
        """What to do about a capability that is missing."""
        given = f"give the {self.who} that capability"
        return f"run {self.setup} as root before, or {given}" if self.setup else given

    @property
    def remedy_again(self) -> str:
        """The same, when all was well before."""
        return f"run {self.setup} again" if self.setup else self.remedy

    def elsewhere(self, interface: str) -> str:
        """What to do about an address that is on another interface."""
        if self.interface_flag:
            return f"use {self.interface_flag}={interface} as well"
        return "take it away there first"


#: An agent that takes connections of its node.
AGENT = Caller(
    who="agent",
    address_flag="--bind-address",
    interface_flag="--bind-interface",
    setup=SETUP,
)
