"""The address that an agent accepts node traffic at, which only its own host can reach.

KEP-2025: "only traffic generated from within the host will be able to target it". The address is
put on an interface of its own, and what enters by an uplink is dropped (host_only.py). Agents of
one host share it: the last that leaves takes it away, a killed one's is taken over by the next, and
what ``isthmus agent setup-interface`` made is taken away by nobody but itself, and lets an agent do
without any capability. Plain blocking code, for a thread. Imports pyroute2, which takes its time:
import this module only where it is used.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from isthmus.errors import ConfigError
from isthmus.net.host_callers import AGENT, Caller
from isthmus.net.host_links import Address
from isthmus.net.host_place import Place
from isthmus.net.host_users import MOST_USERS, User, turn, used
from isthmus.net.uplinks import entered_by

DUMMY = "dummy"


def put(
    address: Address,
    *,
    interface: str,
    uplinks: tuple[str, ...] = (),
    kind: str = DUMMY,
    caller: Caller = AGENT,
) -> HostAddress:
    """Put an address on an interface, made if it is missing, and keep other machines from it.

    ``uplinks``: the interfaces that lead out of this host; none of them finds them, "none" makes
    no rule. ``kind`` is that of the interface; where the kernel has no such kind it is lo. Without
    CAP_NET_ADMIN, setup-interface must have done it all before. ``caller`` is who wants it, for
    sentences.

    Raises:
        ConfigError: one sentence that says what is in the way or missing.
    """
    user = User(address)
    place = Place(address, interface=interface, uplinks=uplinks, kind=kind, caller=caller)
    try:
        with turn():
            try:
                said = place.settle(lasting=False, alone=user.alone())
            except ConfigError:
                with suppress(ConfigError):  # what was in the way of the first says more
                    if user.alone() and place.may_change():
                        place.clear(lasting=False)
                raise
    except BaseException:
        user.close()
        raise
    if not user.counted:
        said.append(
            f"{MOST_USERS} programs of this host say that they use {address} already: whoever of"
            f" them ends last may leave it behind, or take it away from this {caller.who} for a"
            " moment"
        )
    return HostAddress(place, user, said)


class HostAddress:
    """An address in its place, and our use of it, until ``take_away()`` or the process ends."""

    def __init__(self, place: Place, user: User, said: list[str]) -> None:
        self._place = place
        self._user = user
        self._said = said
        self._complaint = ""
        self._away = False

    @property
    def where(self) -> str:
        """The interface that the address is on."""
        return self._place.where

    @property
    def address(self) -> Address:
        """The address itself."""
        return self._place.address

    @property
    def uplinks(self) -> tuple[str, ...]:
        """The interfaces that connections to the address may not enter by."""
        return tuple(sorted(self._place.uplinks))

    @property
    def trouble(self) -> str:
        """What the last ``refresh()`` could not put right; empty when all is well."""
        return self._complaint

    def refresh(self) -> list[str]:
        """Look for uplinks again, put back what somebody took away; gives sentences to log.

        The first call gives what there is to say about putting it there, too. Never raises: what
        cannot be put right is a sentence, said once.
        """
        said, self._said = self._said, []
        if self._away:
            return said
        try:
            with turn():
                news = self._place.settle(lasting=False, alone=self._user.alone())
        except ConfigError as error:
            complaint, self._complaint = self._complaint, str(error)
            return said if complaint == self._complaint else [*said, self._complaint]
        self._complaint = ""
        return said + news

    def uplink_of(self, connection: socket.socket) -> str:
        """The uplink that an accepted connection came in by; empty when it is of this host.

        None is ever seen while the rule is in place, so such a connection is to be reset and the
        missing rule to be told: an agent without CAP_NET_ADMIN has no other way to notice. Does
        not block.
        """
        index = entered_by(connection)
        return next((name for name, one in self._place.uplinks.items() if one == index != 0), "")

    def take_away(self) -> None:
        """Use the address no longer; if nobody else does, it goes, with interface and rule.

        Idempotent. What setup-interface or somebody else made stays.

        Raises:
            ConfigError: the kernel or the firewall refuses.
        """
        if self._away:
            return
        self._away = True
        with turn():
            self._user.close()
            if not used(self.address) and self._place.may_change():
                self._place.clear(lasting=False)


def remove_leftovers(address: Address, *, interface: str) -> bool:
    """Remove what killed agents left; tells whether there was anything.

    What an agent uses stays, and so does what setup-interface made.

    Raises:
        ConfigError: something was left and cannot be removed; an agent can do without.
    """
    place = Place(address, interface=interface, uplinks=(), kind=DUMMY)
    with turn():
        if used(address):
            return False
        if not place.may_change():
            if place.left_behind():
                raise ConfigError(
                    f"{address}, left by an agent that was killed, stays: removing it needs"
                    " CAP_NET_ADMIN"
                )
            return False
        return place.clear(lasting=False)


def set_up(
    address: Address, *, interface: str, uplinks: tuple[str, ...] = (), kind: str = DUMMY
) -> tuple[str, list[str]]:
    """Do the privileged part of ``put`` for agents to come; gives the interface, and sentences.

    Raises:
        ConfigError: one sentence that says what is in the way.
    """
    place = Place(address, interface=interface, uplinks=uplinks, kind=kind)
    if not place.may_change():
        raise ConfigError("setup-interface needs CAP_NET_ADMIN: run it as root")
    with turn():
        said = place.settle(lasting=True, alone=not used(address))
    return place.where, said


def undo_set_up(address: Address, *, interface: str) -> bool:
    """Remove what ``set_up`` made, or an agent left; tells whether there was anything.

    Raises:
        ConfigError: an agent uses it, or it cannot be removed.
    """
    place = Place(address, interface=interface, uplinks=(), kind=DUMMY)
    if not place.may_change():
        raise ConfigError("setup-interface --remove needs CAP_NET_ADMIN: run it as root")
    with turn():
        if used(address):
            raise ConfigError(f"an agent of this host uses {address}: stop it first")
        return place.clear(lasting=True)
