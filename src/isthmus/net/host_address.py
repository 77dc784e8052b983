"""The address at which an agent accepts node traffic, reachable only from its own host.

KEP-2025: "only traffic generated from within the host will be able to target it". The address is
put on its own interface, and packets that arrive on an uplink are dropped (host_only.py). Agents
of one host share it: the last one removes it, the next agent takes over that of a killed one, and
only ``isthmus agent setup-interface --remove`` removes what setup-interface created, which lets an
agent run without capabilities. Blocking code, for a thread. Imports pyroute2, which is slow:
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
#: The most agents of one host that are counted as users of an address.
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
    """Put an address on an interface, created if missing, and keep other machines from it.

    ``uplinks``: the interfaces that lead out of this host; empty detects them, "none" creates
    no rule. ``kind`` is that of the interface; without kernel support lo is used. Without
    CAP_NET_ADMIN, setup-interface must have done all of this before. ``caller`` names the program
    in messages.

    Raises:
        ConfigError: one line that says what prevents it.
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
                with suppress(ConfigError):  # the first error says more
                    if user.alone() and place.may_change():
                        place.clear(lasting=False)
                raise
    except BaseException:
        user.close()
        raise
    if not user.counted:
        said.append(
            f"{MOST_USERS} programs of this host already claim to use {address}: the last of them"
            f" to end may leave it behind, or remove it from under this {caller.who} for a"
            " moment"
        )
    return HostAddress(place, user, said)


class HostAddress:
    """An address in use by this process, until ``take_away()`` or the end of the process."""

    def __init__(self, place: AddressPlacement, user: AddressClaim, said: list[str]) -> None:
        self._place = place
        self._user = user
        self._said = said
        self._complaint = ""
        self._away = False

    @property
    def where(self) -> str:
        """The interface that has the address."""
        return self._place.where

    @property
    def address(self) -> Address:
        return self._place.address

    @property
    def uplinks(self) -> tuple[str, ...]:
        """The interfaces on which connections to the address are dropped."""
        return tuple(sorted(self._place.uplinks))

    @property
    def trouble(self) -> str:
        """What the last ``refresh()`` could not repair; empty if nothing."""
        return self._complaint

    def refresh(self) -> list[str]:
        """Detect uplinks again, and restore what was removed; returns messages to log.

        The first call also returns the messages about the creation. Never raises: what
        cannot be repaired is a message, returned once.
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
        """The uplink on which an accepted connection arrived; empty if it is from this host.

        Never an uplink while the rule is in place. Otherwise the connection must be reset and the
        missing rule reported: an agent without CAP_NET_ADMIN has no other way to notice. Does
        not block.
        """
        index = entered_by(connection)
        return next((name for name, one in self._place.uplinks.items() if one == index != 0), "")

    def take_away(self) -> None:
        """Stop using the address; without other users it is removed, with interface and rule.

        Idempotent. Objects that setup-interface or another program created stay.

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
    """Remove what killed agents left; returns whether there was anything.

    An address in use by an agent stays, and so does one that setup-interface created.

    Raises:
        ConfigError: leftovers cannot be removed; an agent can continue.
    """
    place = AddressPlacement(address, interface=interface, uplinks=(), kind=DUMMY)
    with turn():
        if used(address):
            return False
        if not place.may_change():
            if place.left_behind():
                raise ConfigError(
                    f"{address}, left by a killed agent, was not removed: this needs CAP_NET_ADMIN"
                )
            return False
        return place.clear(lasting=False)


def set_up(
    address: Address, *, interface: str, uplinks: tuple[str, ...] = (), kind: str = DUMMY
) -> tuple[str, list[str]]:
    """Do the privileged part of ``put`` for later agents; returns the interface and messages.

    Raises:
        ConfigError: one line that says what prevents it.
    """
    place = AddressPlacement(address, interface=interface, uplinks=uplinks, kind=kind)
    if not place.may_change():
        raise ConfigError("setup-interface needs CAP_NET_ADMIN: run it as root")
    with turn():
        said = place.settle(lasting=True, alone=not used(address))
    return place.where, said


def undo_set_up(address: Address, *, interface: str) -> bool:
    """Remove what ``set_up`` or an agent created; returns whether there was anything.

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
    """One agent's use of an address; ended by ``close()`` or the end of the process.

    A count that killed agents cannot distort: an agent holds a UNIX socket with an abstract name
    while it uses the address. Such names belong to the network namespace, as addresses do,
    so agents in different containers of one host see each other without a shared directory, and
    the kernel frees them when their process ends, however it ends. Nothing is ever sent. Any
    process on this host can take such names: at worst an unused address remains, but no agent is
    prevented from starting.
    """

    def __init__(self, address: IPv4Address | IPv6Address) -> None:
        """Start using the address; not ``counted`` if too many already do."""
        self._address = address
        self._held: socket.socket | None = None
        for self._place in range(MOST_USERS):
            self._held = _hold(_name(address, self._place))
            if self._held is not None:
                return
        self._place = -1

    @property
    def counted(self) -> bool:
        """Whether others can see this use."""
        return self._held is not None

    def alone(self) -> bool:
        """Whether no other agent uses the address."""
        return not used(self._address, but=self._place)

    def close(self) -> None:
        """Stop using the address; idempotent."""
        if self._held is not None:
            self._held.close()


def used(address: IPv4Address | IPv6Address, *, but: int = -1) -> bool:
    """Whether an agent of this host uses the address, other than the one in slot ``but``."""
    for place in range(MOST_USERS):
        if place != but:
            held = _hold(_name(address, place))
            if held is None:
                return True
            held.close()
    return False


@contextmanager
def turn() -> Iterator[None]:
    """Lock the host's addresses, links and rules among all agents of the host.

    After a few seconds it continues without the lock: any process on this host can take the name,
    and none may prevent an agent from starting. The next refresh repairs the result of a race.
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
