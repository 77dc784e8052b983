"""An address in its place: on its interface, behind its rule, whoever asks for it.

Knows nothing of how many use it; that is host_address.py, which also says what all of this is for.
Every method blocks for a short time and raises ConfigError with one sentence.
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
AGENT = AddressUser(
    who="agent",
    address_flag="--bind-address",
    interface_flag="--bind-interface",
    setup=SETUP,
)


class AddressPlacement:
    """Where an address belongs; ``where`` is the interface that it is on."""

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
        #: By name, the index of each interface that connections may not enter by.
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
        """See to it that the address and its rule are there; what is worth saying about it.

        Without CAP_NET_ADMIN this only looks whether somebody else has seen to it. ``lasting``
        marks it so that no agent takes it away. ``alone``: nobody else uses the address.
        """
        with kernel_of_this_host() as kernel:
            held = host_links.addresses(kernel, self.address.version)
            before, self.uplinks = self.uplinks, self._find_uplinks(kernel)
            able = host_links.allowed(kernel)
            spot = self._spot(kernel, held, leave=not (able and alone))
            self._was_lasting |= spot is not None and spot.lasting
            # What several use, or setup-interface made, an agent adds to and takes nothing from.
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
        """Remove what is ours; tells whether there was anything.

        What is marked as lasting stays, with its rule, unless ``lasting`` says otherwise.
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
            # Which firewall a killed agent used is not known.
            removed.append(self._guard.remove() if self._guard else remove_guards(self.address))
        return any(removed)

    def left_behind(self) -> bool:
        """Tell whether an agent's own address, not a lasting one, is there; needs no privilege."""
        with kernel_of_this_host() as kernel:
            return any(not one.lasting for one in self._ours(kernel))

    def may_change(self) -> bool:
        """Tell whether this process may put addresses anywhere and take them away."""
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
            # The rule takes names of interfaces that are not there yet.
            return {name: (kernel.link_lookup(ifname=name) or [0])[0] for name in self._named}
        return find_uplinks(kernel)

    def _spot(
        self, kernel: IPRoute, held: list[InterfaceAddress], *, leave: bool
    ) -> InterfaceAddress | None:
        """The address as it is already, where it may be; leftovers elsewhere are removed.

        Raises:
            ConfigError: somebody else has it.
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
                    f" put it: {self._caller.elsewhere(one.interface)}"
                )
            else:
                host_links.remove_address(kernel, one)
                host_links.remove_link(kernel, one.interface)
        return spot

    def _check_adoptable(self, kernel: IPRoute, one: InterfaceAddress) -> None:
        """An address that we did not make may only be one of exactly the shape of ours.

        A node's own address never is: with our rule the node could not be reached any more.
        """
        scoped = one.host_scope or one.address.version == 6
        shaped = one.whole and scoped and one.interface not in find_uplinks(kernel)
        if one.interface != self._interface or not shaped:
            flag = self._caller.address_flag
            raise ConfigError(
                f"{flag} {one.address} is an address of {one.interface} already, which isthmus did"
                " not put there: choose one that nobody has"
            )

    def _check_done(self, spot: InterfaceAddress | None) -> None:
        if spot is None:
            raise ConfigError(
                f"{self.address} is on no interface of this host, and putting it on one needs"
                f" CAP_NET_ADMIN: {self._caller.remedy}"
            )
        if not self._unguarded and not spot.ruled:
            raise ConfigError(
                f"{self.address} is on {spot.interface}, but no rule keeps other machines from it,"
                f" and making one needs CAP_NET_ADMIN: {self._caller.remedy}, or filter yourself"
                " and say --uplink-interface=none"
            )
        self.where = spot.interface

    def _unfollowed(self, before: Mapping[str, int]) -> list[str]:
        new = self.uplinks.keys() - before.keys()
        if not new:
            return []
        return [
            f"{', '.join(sorted(new))}: an uplink that the rule for {self.address} may not know,"
            f" which needs CAP_NET_ADMIN to change: {self._caller.remedy_again}"
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
                # An agent that may not run nft itself can live with what setup-interface did.
                if not (spot and spot.ruled and spot.lasting):
                    raise
                return [] if self._settled else [f"{SETUP} made the rule: {error}"]
            return []
        missed = self._guard.keep(self.uplinks, exact=exact)
        if before.keys() != self.uplinks.keys():
            return [f"uplinks that nobody reaches {self.address} by: {_named(self.uplinks)}"]
        gone = f"the rule that keeps other machines from {self.address} was changed: it is back"
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
                said.append(f"{self.address} was gone from {self.where}: it is back")
            return said
        self.where = spot.interface
        if spot.mark is None:
            return []
        if not exact:
            mark |= spot.mark
        if mark != spot.mark:
            host_links.add_address(kernel, spot.index, self.where, self.address, mark)
        down = self.where != LOOPBACK and host_links.bring_up(kernel, spot.index)
        return [f"{self.where} was down: it is up"] if down else []

    def _make_home(self, kernel: IPRoute) -> tuple[int, list[str]]:
        """The index of the interface for the address, made if it is missing.

        Raises:
            ConfigError: somebody else's is called so.
        """
        said = []
        self.where = self._interface
        if self._interface != LOOPBACK:
            link = host_links.find_link(kernel, self._interface)
            if link is None and not host_links.make_link(kernel, self._interface, self._kind):
                said = [f"this kernel has no {self._kind} interfaces: {self.address} is on lo"]
                self.where = LOOPBACK
            elif link is not None and not link[1]:
                raise ConfigError(
                    f"{self._caller.interface_flag} {self._interface} is there already, and isthmus"
                    " did not make it: choose another name"
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
                f"{self.address} lies in the subnet {subnet.address}/{subnet.prefix} of"
                f" {subnet.interface}: another machine there that has it cannot be reached"
            )
        if not self.uplinks and not self._unguarded:
            said.append("this host has no uplink yet: nothing is dropped")
        missing = {name for name, index in self.uplinks.items() if not index}
        if missing:
            names = ", ".join(sorted(missing))
            said.append(f"--uplink-interface {names}: there is no such interface yet")
        return said


def _named(uplinks: Mapping[str, int]) -> str:
    return ", ".join(sorted(uplinks)) or "none"
