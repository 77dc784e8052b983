"""Looking at the address that an agent accepts node traffic at, without changing anything.

Putting it there is host_address.py. Imports pyroute2, which takes its time: import this module only
where it is used.
"""

from __future__ import annotations

from isthmus.net import host_links
from isthmus.net.host_links import Address, kernel_of_this_host
from isthmus.net.host_only import has_guard
from isthmus.tools.bootstrap.rules import AddressSeen


def look_at(address: Address) -> AddressSeen | None:
    """Where this host has the address, and how it is kept from others; None if it has it not.

    Raises:
        ConfigError: the kernel cannot be asked.
    """
    with kernel_of_this_host() as kernel:
        held = host_links.addresses(kernel, address.version)
        able = host_links.allowed(kernel)
    one = next((each for each in held if each.address == address), None)
    if one is None:
        return None
    return AddressSeen(
        interface=one.interface,
        ours=one.ours,
        ruled=one.ruled,
        guarded=has_guard(address) if able else None,
    )
