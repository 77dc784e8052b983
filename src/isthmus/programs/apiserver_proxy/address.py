"""The addresses that an apiserver proxy listens at, put on ``lo`` and taken away in the end.

What keeps other machines from them, and how several programs of a host share one, is
net/host_address.py. HyperShift's scripts put the address there without any of that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.part import LongTask, Part
from isthmus.logs import OncePer, log
from isthmus.net.host_placement import AddressUser
from isthmus.programs.apiserver_proxy.plan import ProxyPlan

if TYPE_CHECKING:
    from isthmus.net.host_address import HostAddress

INTERFACE = "lo"
REFRESH_S = 10.0
#: How long an address may take to be taken away, before the program leaves without that.
TAKE_AWAY_S = 5.0
_SAY_AGAIN_S = 60.0
_CALLER = AddressUser(who="apiserver proxy", address_flag="--listen")
_log = logging.getLogger("isthmus.apiserver_proxy")


class Addresses(Part):
    """What a plan wants on ``lo``; nothing when it wants nothing.

    A worker has none of its own: with ``put`` False they are its parent's.
    """

    def __init__(self, plan: ProxyPlan, once: OncePer, *, put: bool = True) -> None:
        self._wanted = plan.managed if put else ()
        self._uplinks = plan.uplinks
        self._once = once
        self._held: list[HostAddress] = []
        self._refreshing: asyncio.Future[list[str]] | None = None

    @property
    def held(self) -> tuple[str, ...]:
        """The addresses that are in place."""
        return tuple(str(one.address) for one in self._held)

    @override
    async def open(self) -> None:
        for address in self._wanted:
            held = await asyncio.to_thread(self._put, address)
            self._held.append(held)
            log(
                _log, logging.INFO, "has an address for this host", address=str(address),
                interface=held.where, uplinks=",".join(held.uplinks) or "none",
            )  # fmt: skip

    def _put(self, address: IPv4Address | IPv6Address) -> HostAddress:
        from isthmus.net.host_address import put  # pyroute2 is slow to import

        try:
            return put(address, interface=INTERFACE, uplinks=self._uplinks, caller=_CALLER)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; --manage-address=false leaves the address to you"
            ) from error

    def uplink_of(self, sock: socket.socket) -> str:
        """The uplink that a connection came in by, which the rule should have kept away."""
        for one in self._held:
            name = one.uplink_of(sock)
            if name:
                return name
        return ""

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "address", self._watch()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"addresses": self.held}

    async def _watch(self) -> None:
        """See for ever that they are there."""
        while True:
            for one in self._held:
                await self._refresh(one)
            await asyncio.sleep(REFRESH_S)

    async def _refresh(self, one: HostAddress) -> None:
        loop = asyncio.get_running_loop()
        self._refreshing = loop.run_in_executor(None, one.refresh)
        try:
            said = await asyncio.shield(self._refreshing)
        except Exception as exc:  # the connections that are open need none of it
            said = [f"cannot look after the address {one.address}: {exc!r}"]
        for sentence in said:
            self._once.log(("address", sentence), _SAY_AGAIN_S, _log, logging.WARNING, sentence)

    @override
    async def wait_closed(self) -> None:
        # Taken from lo, if that does not take for ever.
        held, self._held = self._held, []
        for one in held:
            try:
                async with asyncio.timeout(TAKE_AWAY_S):
                    if self._refreshing is not None:  # or it would put back what we take
                        await asyncio.wait([self._refreshing])
                    await asyncio.to_thread(one.take_away)
            except Exception as exc:  # whoever starts next takes it over
                log(
                    _log, logging.ERROR, "cannot take the address away", address=str(one.address),
                    reason=str(exc) or type(exc).__name__,
                )  # fmt: skip
