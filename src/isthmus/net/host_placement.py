"""An address on its interface with its rule, for any program that needs one.

host_address.py counts the users of an address and explains the purpose.
Every method blocks for a short time and raises ConfigError with one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyroute2 import IPRoute

from isthmus.errors import ConfigError
from isthmus.net import host_links
from isthmus.net.host_links import (
    LOOPBACK,
    Address,
    AddressMark,
    InterfaceAddress,
    find_uplinks,
    kernel_of_this_host,
)
from isthmus.net.host_only import UplinkGuard, guard, remove_guards
from isthmus.net.settings_bind import NO_UPLINK

SETUP = "isthmus agent setup-interface"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressUser:
    """The program that needs an address, as named in messages, and the user's flags.

    ``interface_flag`` is empty if the interface cannot be chosen, ``setup`` if no command
    does the privileged part beforehand.
    """

    who: str
    address_flag: str
    interface_flag: str = ""
    setup: str = ""

    @property
    def remedy(self) -> str:
        """The remedy for a missing capability."""
        given = f"give the {self.who} that capability"
        return f"run {self.setup} as root before, or {given}" if self.setup else given

    @property
    def remedy_again(self) -> str:
        """The same, after it worked before."""
        return f"run {self.setup} again" if self.setup else self.remedy

    def elsewhere(self, interface: str) -> str:
        """The remedy for an address on another interface."""
        if self.interface_flag:
            return f"use {self.interface_flag}={interface} as well"
        return "remove it there first"


#: An agent that accepts connections from its node.
AGENT = AddressUser(
    who="agent",
    address_flag="--bind-address",
    interface_flag="--bind-interface",
    setup=SETUP,
)


class AddressPlacement:
    """The placement of an address; ``where`` is its interface."""

    def __init__(
        self,
        address: Address,
        *,
        interface: str,
        uplinks: tuple[str, ...],
        kind: str,
        caller: AddressUser = AGENT,
    ) -> None:
        self.address = address
        self.where = interface
        #: By name, the index of each interface on which connections are dropped.
        self.uplinks: Mapping[str, int] = {}
        self._interface = interface
        self._named = uplinks
        self._kind = kind
        self._caller = caller
        self._guard: UplinkGuard | None = None
        self._settled = False
        self._was_lasting = False

    @property
    def _unguarded(self) -> bool:
        return NO_UPLINK in self._named

    def settle(self, *, lasting: bool, alone: bool) -> list[str]:
        """Make sure that the address and its rule exist; returns messages about it.

        Without CAP_NET_ADMIN this only checks. ``lasting``
        marks the address so that no agent removes it. ``alone``: no other agent uses the address.
        """
        with kernel_of_this_host() as kernel:
            held = host_links.addresses(kernel, self.address.version)
            before, self.uplinks = self.uplinks, self._find_uplinks(kernel)
            able = host_links.allowed(kernel)
            spot = self._spot(kernel, held, leave=not (able and alone))
            self._was_lasting |= spot is not None and spot.lasting
            # An agent only adds to what is shared, or what setup-interface created.
            exact = alone and (lasting or not self._was_lasting)
            if not able:
                self._check_done(spot)
                said = self._unfollowed(before) if self._settled else []
            else:
                said = self._keep_rule(spot, before, exact=exact)
                said += self._keep_address(kernel, spot, lasting=lasting, exact=exact)
            if not self._settled:
                said += self._doubts(held)
        self._settled = True
        return said

    def clear(self, *, lasting: bool) -> bool:
        """Remove our objects; returns whether there were any.

        Lasting ones stay, with their rule, unless ``lasting`` is set.
        """
        with kernel_of_this_host() as kernel:
            homes, kept = {self._interface: False}, False
            for one in self._ours(kernel):
                if one.lasting and not lasting:
                    kept = True
                    continue
                host_links.remove_address(kernel, one)
                homes[one.interface] = True
            removed = [host_links.remove_link(kernel, name) or gone for name, gone in homes.items()]
        if not kept:
            # The firewall that a killed agent used is unknown.
            removed.append(self._guard.remove() if self._guard else remove_guards(self.address))
        return any(removed)

    def left_behind(self) -> bool:
        """Whether an agent left its own address, not a lasting one; needs no privilege."""
        with kernel_of_this_host() as kernel:
            return any(not one.lasting for one in self._ours(kernel))

    def may_change(self) -> bool:
        """Whether this process may add and remove addresses."""
        with kernel_of_this_host() as kernel:
            return host_links.allowed(kernel)

    def _ours(self, kernel: IPRoute) -> list[InterfaceAddress]:
        return [
            one
            for one in host_links.addresses(kernel, self.address.version)
            if one.address == self.address and one.ours
        ]

    def _find_uplinks(self, kernel: IPRoute) -> Mapping[str, int]:
        if self._unguarded:
            return {}
        if self._named:
            # The rule accepts names of interfaces that do not exist yet.
            return {name: (kernel.link_lookup(ifname=name) or [0])[0] for name in self._named}
        return find_uplinks(kernel)

    def _spot(
        self, kernel: IPRoute, held: list[InterfaceAddress], *, leave: bool
    ) -> InterfaceAddress | None:
        """The existing address if it may be used; leftovers elsewhere are removed.

        Raises:
            ConfigError: the address belongs to another program.
        """
        spot = None
        for one in held:
            if one.address != self.address:
                continue
            if not one.ours:
                self._check_adoptable(kernel, one)
                spot = one
            elif one.interface in (self._interface, LOOPBACK):
                spot = one
            elif leave or one.lasting:
                raise ConfigError(
                    f"{self.address} is on {one.interface}, where an agent of this host or {SETUP}"
                    f" put it; {self._caller.elsewhere(one.interface)}"
                )
            else:
                host_links.remove_address(kernel, one)
                host_links.remove_link(kernel, one.interface)
        return spot

    def _check_adoptable(self, kernel: IPRoute, one: InterfaceAddress) -> None:
        """Check that an address created by another program has exactly our form.

        A node's own address never has: with our rule the node would become unreachable.
        """
        scoped = one.host_scope or one.address.version == 6
        shaped = one.whole and scoped and one.interface not in find_uplinks(kernel)
        if one.interface != self._interface or not shaped:
            flag = self._caller.address_flag
            raise ConfigError(
                f"{flag} {one.address} is already an address of {one.interface} that Isthmus did"
                " not put there: choose an unused one"
            )

    def _check_done(self, spot: InterfaceAddress | None) -> None:
        if spot is None:
            raise ConfigError(
                f"{self.address} is on no interface of this host, and adding it needs"
                f" CAP_NET_ADMIN: {self._caller.remedy}"
            )
        if not self._unguarded and not spot.ruled:
            raise ConfigError(
                f"{self.address} is on {spot.interface}, but no rule keeps other machines from it,"
                f" and creating one needs CAP_NET_ADMIN: {self._caller.remedy}, or filter yourself"
                " and set --uplink-interface=none"
            )
        self.where = spot.interface

    def _unfollowed(self, before: Mapping[str, int]) -> list[str]:
        new = self.uplinks.keys() - before.keys()
        if not new:
            return []
        return [
            f"{', '.join(sorted(new))}: new uplink that the rule for {self.address} may lack;"
            f" changing the rule needs CAP_NET_ADMIN: {self._caller.remedy_again}"
        ]

    def _keep_rule(
        self, spot: InterfaceAddress | None, before: Mapping[str, int], *, exact: bool
    ) -> list[str]:
        if self._unguarded:
            if spot and spot.ruled and exact:
                remove_guards(self.address)
            return []
        if self._guard is None:
            try:
                self._guard = guard(self.address, self.uplinks, exact=exact)
            except ConfigError as error:
                # An agent that may not run nft itself relies on setup-interface.
                if not (spot and spot.ruled and spot.lasting):
                    raise
                return [] if self._settled else [f"using the rule that {SETUP} created: {error}"]
            return []
        missed = self._guard.keep(self.uplinks, exact=exact)
        if before.keys() != self.uplinks.keys():
            return [f"uplinks on which {self.address} is unreachable: {_named(self.uplinks)}"]
        gone = f"the rule that keeps other machines from {self.address} was changed: restored"
        return [gone] if missed else []

    def _keep_address(
        self, kernel: IPRoute, spot: InterfaceAddress | None, *, lasting: bool, exact: bool
    ) -> list[str]:
        mark = AddressMark.LASTING if lasting or self._was_lasting else AddressMark(0)
        if not self._unguarded:
            mark |= AddressMark.RULED
        if spot is None:
            index, said = self._make_home(kernel)
            host_links.add_address(kernel, index, self.where, self.address, mark)
            if self._settled:
                said.append(f"{self.address} was missing on {self.where}: restored")
            return said
        self.where = spot.interface
        if spot.mark is None:
            return []
        if not exact:
            mark |= spot.mark
        if mark != spot.mark:
            host_links.add_address(kernel, spot.index, self.where, self.address, mark)
        down = self.where != LOOPBACK and host_links.bring_up(kernel, spot.index)
        return [f"{self.where} was down: brought up"] if down else []

    def _make_home(self, kernel: IPRoute) -> tuple[int, list[str]]:
        """The index of the interface for the address, created if it is missing.

        Raises:
            ConfigError: another program's interface has the name.
        """
        said = []
        self.where = self._interface
        if self._interface != LOOPBACK:
            link = host_links.find_link(kernel, self._interface)
            if link is None and not host_links.make_link(kernel, self._interface, self._kind):
                said = [f"this kernel has no {self._kind} interfaces: using lo for {self.address}"]
                self.where = LOOPBACK
            elif link is not None and not link[1]:
                raise ConfigError(
                    f"{self._caller.interface_flag} {self._interface} already exists, and Isthmus"
                    " did not create it: choose another name"
                )
        link = host_links.find_link(kernel, self.where)
        assert link is not None, self.where
        if self.where != LOOPBACK:
            host_links.bring_up(kernel, link[0])
        return link[0], said

    def _doubts(self, held: list[InterfaceAddress]) -> list[str]:
        said = []
        subnet = host_links.neighbours_subnet(held, self.address)
        if subnet is not None:
            said.append(
                f"{self.address} is in the subnet {subnet.address}/{subnet.prefix} of"
                f" {subnet.interface}: another machine there with this address is unreachable"
            )
        if not self.uplinks and not self._unguarded:
            said.append("this host has no uplink yet: no packets are dropped")
        missing = {name for name, index in self.uplinks.items() if not index}
        if missing:
            names = ", ".join(sorted(missing))
            said.append(f"--uplink-interface {names}: no such interface yet")
        return said


def _named(uplinks: Mapping[str, int]) -> str:
    return ", ".join(sorted(uplinks)) or "none"
