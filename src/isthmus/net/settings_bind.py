"""The settings of the address at which an agent accepts node traffic.

Who puts the address on an interface, and keeps strangers away from it, is host_address.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.gates import NODE_TRAFFIC
from isthmus.settings.options import OURS, SettingsBlock, SharedOption, option, shared
from isthmus.values import is_address

#: The default interface of the address.
INTERFACE = "isthmus0"
#: The value of --uplink-interface for users with their own firewall.
NO_UPLINK = "none"

UPLINK_INTERFACE: SharedOption[tuple[str, ...]] = shared(
    (),
    help="Interface on which incoming connections to the address are dropped; empty finds the "
    "uplinks, none drops nothing, if you filter them yourself",
    repeat=True,
    metavar="NAME",
    go=OURS,
)

# linux/if.h: IFNAMSIZ is 16 with its end; dev_valid_name() wants no slash, colon or space. The rest
# is left out because firewalls give it a meaning: "+" and "*" are patterns, quotes end a text.
_INTERFACE = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,15}", re.ASCII)
_THIS_NETWORK = IPv4Address("0.255.255.255")
_BROADCAST = IPv4Address("255.255.255.255")


@dataclass(frozen=True, slots=True, kw_only=True)
class BindSettings(SettingsBlock):
    """Where local connections are accepted; ``check()`` says whether it makes sense."""

    PREFIX: ClassVar = "bind"
    GO: ClassVar = OURS

    address: tuple[str, ...] = option(
        (),
        help="Address at which this node and its pods connect, owned by this node alone, or one "
        "of each family, as 10.0.0.1,fd00::1; needs --target as well",
        repeat=True,
        group=NODE_TRAFFIC,
        metavar="ADDRESS",
    )
    interface: str = option(
        INTERFACE,
        help="Interface for the address, created if it is missing; lo puts it on the loopback",
        group=NODE_TRAFFIC,
        metavar="NAME",
    )
    uplink_interface: tuple[str, ...] = UPLINK_INTERFACE(
        flag="uplink-interface", group=NODE_TRAFFIC
    )

    @property
    def bound_addresses(self) -> tuple[IPv4Address | IPv6Address, ...]:
        """The addresses for local connections, at most one of each family; often none.

        Raises:
            ConfigError: a text is not an address, or one that cannot be used for this.
        """
        return parse_bind_addresses(self.address)

    def check(self) -> list[str]:
        """Check these settings; returns warnings.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_interface("bind-interface", self.interface)
        for name in self.uplink_interface:
            check_interface("uplink-interface", name)
        if NO_UPLINK in self.uplink_interface and len(self.uplink_interface) > 1:
            raise ConfigError(
                f"--uplink-interface={NO_UPLINK} cannot be combined with an interface"
            )
        if self.interface in self.uplink_interface:
            raise ConfigError(f"--uplink-interface {self.interface} is also the --bind-interface")
        if "lo" in self.uplink_interface:
            raise ConfigError("--uplink-interface lo would drop the connections of this node")
        addresses = self.bound_addresses
        if not addresses:
            return ["--uplink-interface has no effect without --bind-address"] * bool(
                self.uplink_interface
            )
        return [
            f"--bind-address {address} is a public address: its owner in the internet"
            " cannot be reached from this node; a private one is better"
            for address in addresses
            if address.is_global
        ]


def parse_bind_addresses(texts: Iterable[str]) -> tuple[IPv4Address | IPv6Address, ...]:
    """Read the addresses that can be configured on a node: one, or one of each family.

    The same one twice is one. The first is the one that kube-apiserver advertises.

    Raises:
        ConfigError: names --bind-address and the problem.
    """
    found = dict.fromkeys(parse_bind_address(text) for text in texts)
    by_family: dict[int, IPv4Address | IPv6Address] = {}
    for address in found:
        other = by_family.setdefault(address.version, address)
        if other is not address:
            raise ConfigError(
                f"--bind-address takes one address of each family, and {other} and {address} are"
                f" both IPv{address.version}"
            )
    return tuple(found)


def parse_bind_address(text: str) -> IPv4Address | IPv6Address:
    """Read an address that can be configured on a node.

    Raises:
        ConfigError: names --bind-address and the problem.
    """
    if not is_address(text):
        raise ConfigError(
            f"--bind-address takes an IPv4 or IPv6 address, such as 10.0.0.1 or fd00::1, not"
            f" {text!r}"
        )
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        raise ConfigError(f"--bind-address {text} is an IPv4 address: write {address.ipv4_mapped}")
    kind = _unusable(address)
    if kind:
        # The kubernetes Service rejects them as endpoints, too.
        raise ConfigError(
            f"--bind-address {text} is {kind}; use an address that is free in your networks, such"
            " as one of 10.0.0.0/8 or fd00::/8"
        )
    return address


def _unusable(address: IPv4Address | IPv6Address) -> str:
    if address.is_unspecified:
        return "the unspecified address"
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if address == _BROADCAST:
        return "the broadcast address"
    if isinstance(address, IPv4Address) and address <= _THIS_NETWORK:
        return 'an address of "this network", 0.0.0.0/8'
    return ""


def check_interface(flag: str, name: str) -> None:
    """Check that the kernel and the firewalls accept an interface's name unchanged.

    Raises:
        ConfigError: it is not; the sentence names the flag.
    """
    if not _INTERFACE.fullmatch(name):
        raise ConfigError(
            f"--{flag} requires an interface name of at most 15 letters, digits, dots, dashes"
            f" and underscores, not {name!r}"
        )
