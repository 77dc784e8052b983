"""The address that an agent accepts node traffic at, which only its own host can reach.

KEP-2025: "only traffic generated from within the host will be able to target it". The address is
put on an interface of its own, and what enters by an uplink is dropped (host_only.py). Agents of
one host share it: the last that leaves takes it away, a killed one's is taken over by the next, and
what ``isthmus agent setup-interface`` made is taken away by nobody but itself, and lets an agent do
without any capability. Plain blocking code, for a thread. Imports pyroute2, which takes its time:
import this module only where it is used.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from time import monotonic, sleep

from isthmus.errors import ConfigError
from isthmus.net.host_links import Address, entered_by
from isthmus.net.host_placement import AGENT, AddressPlacement, AddressUser

DUMMY = "dummy"
#: How many agents of one host that use an address are counted.
MOST_USERS = 64
_WAIT_S = 4.0
_LOOK_AGAIN_S = 0.02
_PREFIX = "\0isthmus/host-address/"


def put(
    address: Address,
    *,
    interface: str,
    uplinks: tuple[str, ...] = (),
    kind: str = DUMMY,
    caller: AddressUser = AGENT,
) -> HostAddress:
    """Put an address on an interface, made if it is missing, and keep other machines from it.

    ``uplinks``: the interfaces that lead out of this host; none of them finds them, "none" makes
    no rule. ``kind`` is that of the interface; where the kernel has no such kind it is lo. Without
    CAP_NET_ADMIN, setup-interface must have done it all before. ``caller`` is who wants it, for
    sentences.

    Raises:
        ConfigError: one sentence that says what is in the way or missing.
    """
    user = AddressClaim(address)
    place = AddressPlacement(
        address, interface=interface, uplinks=uplinks, kind=kind, caller=caller
    )
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

    def __init__(self, place: AddressPlacement, user: AddressClaim, said: list[str]) -> None:
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
    place = AddressPlacement(address, interface=interface, uplinks=(), kind=DUMMY)
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
    place = AddressPlacement(address, interface=interface, uplinks=uplinks, kind=kind)
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
    place = AddressPlacement(address, interface=interface, uplinks=(), kind=DUMMY)
    if not place.may_change():
        raise ConfigError("setup-interface --remove needs CAP_NET_ADMIN: run it as root")
    with turn():
        if used(address):
            raise ConfigError(f"an agent of this host uses {address}: stop it first")
        return place.clear(lasting=True)


class AddressClaim:
    """One agent's use of an address; ``close()`` ends it, and so does the end of the process.

    A count that a killed agent cannot get wrong: an agent holds a UNIX socket with an abstract name
    for as long as it uses the address. Such names belong to the network namespace, as addresses do,
    so agents in different containers of one host see each other without sharing a directory; and
    the kernel forgets them when their process ends, however it ends. Nothing is ever sent. Anybody
    on this host can take such names: that may leave an address where nobody needs it, and never
    keeps an agent from starting.
    """

    def __init__(self, address: IPv4Address | IPv6Address) -> None:
        """Begin to use the address; not ``counted`` if too many say that they use it."""
        self._address = address
        self._held: socket.socket | None = None
        for self._place in range(MOST_USERS):
            self._held = _hold(_name(address, self._place))
            if self._held is not None:
                return
        self._place = -1

    @property
    def counted(self) -> bool:
        """Whether others can see this one."""
        return self._held is not None

    def alone(self) -> bool:
        """Tell whether nobody else uses the address."""
        return not used(self._address, but=self._place)

    def close(self) -> None:
        """Use the address no longer; idempotent."""
        if self._held is not None:
            self._held.close()


def used(address: IPv4Address | IPv6Address, *, but: int = -1) -> bool:
    """Tell whether an agent of this host uses the address, other than the one in that place."""
    for place in range(MOST_USERS):
        if place != but:
            held = _hold(_name(address, place))
            if held is None:
                return True
            held.close()
    return False


@contextmanager
def turn() -> Iterator[None]:
    """Have the host's addresses, links and rules to oneself, among all agents of the host.

    After a few seconds it goes on without: anybody on this host can take the name, and nobody may
    keep an agent from starting. What two do at once then is put right by the next refresh.
    """
    deadline = monotonic() + _WAIT_S
    held = _hold(f"{_PREFIX}turn")
    while held is None and monotonic() < deadline:
        sleep(_LOOK_AGAIN_S)
        held = _hold(f"{_PREFIX}turn")
    try:
        yield
    finally:
        if held is not None:
            held.close()


def _name(address: IPv4Address | IPv6Address, place: int) -> str:
    return f"{_PREFIX}{address}/{place}"


def _hold(name: str) -> socket.socket | None:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(name)
    except OSError as error:
        held.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return held
