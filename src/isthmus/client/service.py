"""The connectivity service: the networks of a configuration, and dialers for them.

The configuration is read once; its certificate files are reloaded when they change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from isthmus.client.context import NetworkContext
from isthmus.client.dialer import Dialer
from isthmus.client.ways import DialResources, ServiceRoute, describe
from isthmus.dial.rules_connectivity import ConnectivityConfig, NetworkConfig
from isthmus.errors import ConfigError, DialFailure, IsthmusError, unreadable
from isthmus.net.files import TooLargeError, read_bytes
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.tunnel.end import BaseEnd, End, Ending
from isthmus.values import HostPort

_MOST_FILE_BYTES = 4 * 1024 * 1024


class ConnectivityService:
    """Connections to destinations in named networks; an async context manager.

    It belongs to the event loop that entered it. Leaving it waits up to ``grace_s`` until closed
    connections have sent their data, and resets those that are left.
    """

    def __init__(self, config: ConnectivityConfig, *, grace_s: float = 1.0) -> None:
        self.config = config
        self.grace_s = grace_s
        self._ground: DialResources | None = None
        self._ways: dict[str, ServiceRoute] = {}
        self._ends: set[BaseEnd] = set()
        self._emptied: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<ConnectivityService {', '.join(self.networks)}; {len(self._ends)} open>"

    @classmethod
    def from_config(cls, config: ConnectivityConfig) -> Self:
        """Make a service of the given networks."""
        return cls(config)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a ConnectivityServiceConfiguration or an EgressSelectorConfiguration.

        Raises:
            ConfigError: the file cannot be read or has errors, each with its line and column.
        """
        return cls(read_file(path))

    # Opening and closing.

    async def __aenter__(self) -> Self:
        if self._ground is not None:
            raise RuntimeError("the service is open already")
        loop = asyncio.get_running_loop()
        self._ground = DialResources(loop=loop, poller=Poller(loop), resolver=Resolver(loop))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give connections a moment to finish, then reset them; dialers stop working."""
        ground = self._ground
        if ground is None:
            return
        try:
            if self._ends:
                self._emptied = asyncio.Event()
                async with asyncio.timeout(self.grace_s):
                    await self._emptied.wait()
        except TimeoutError:
            pass
        finally:
            self._shut_down(ground)

    def _shut_down(self, ground: DialResources) -> None:
        self._ground = None
        ground.closed = True
        for give_up in tuple(ground.under_way):
            give_up(DialFailure.INTERNAL, "the service was closed")
        for end in tuple(self._ends):
            end.abort(Ending.CANCELLED)
        for way in self._ways.values():
            way.close()
        self._ways.clear()
        ground.resolver.close()
        ground.poller.shut_down()

    # Networks.

    @property
    def networks(self) -> tuple[str, ...]:
        """The names of the networks, in order."""
        return tuple(sorted(self.config.networks))

    def how(self, name: str) -> str:
        """How a network is reached, for people.

        Raises:
            UnknownNetworkError: the configuration has no such network.
        """
        return describe(self._network(name).connection)

    def dialer(self, context: NetworkContext | str) -> Dialer:
        """The dialer of a context, or of a network by its name.

        Raises:
            UnknownNetworkError: the configuration has no such network.
            ConfigError: its custom dialer is not installed, or cannot be loaded.
        """
        if isinstance(context, str):
            context = NetworkContext(context)
        network = self._network(context.name)
        if self._ground is None:
            raise RuntimeError("the service is not open: use it with 'async with'")
        way = self._ways.get(network.name)
        if way is None:
            way = self._ways[network.name] = ServiceRoute(network, self._ground)
        return Dialer(context, way, self._ground, self._opened)

    def context_for(
        self,
        address: str | HostPort,
        *,
        user: str = "",
        groups: Iterable[str] = (),
        tenant: str = "",
        object: str = "",
    ) -> NetworkContext:
        """Derive the context of a destination by the configured rules; the narrowest match wins.

        Raises:
            UnknownNetworkError: no network lists the destination.
            ValueError: the address is invalid.
        """
        target = address if isinstance(address, HostPort) else HostPort.parse(address)
        network = self.config.network_of(target)
        if network is None:
            raise UnknownNetworkError("", self.networks, destination=str(target))
        return NetworkContext(network.name, user, tuple(groups), tenant, object)

    def _network(self, name: str) -> NetworkConfig:
        network = self.config.network(name)
        if network is None:
            raise UnknownNetworkError(name, self.networks)
        return network

    # Connections.

    def _opened(self, end: BaseEnd) -> None:
        """Track an end until it is done, so that none outlives the service."""
        if self._ground is None:
            end.abort(Ending.CANCELLED)
        elif end.ending is None:
            self._ends.add(end)
            end.on_done = self._done

    def _done(self, end: End, ending: Ending) -> None:
        self._ends.discard(end)
        if self._emptied is not None and not self._ends:
            self._emptied.set()


def read_file(path: str | Path) -> ConnectivityConfig:
    """Read a configuration of either kind.

    Raises:
        ConfigError: see ConnectivityService.from_file.
    """
    from isthmus.dial.settings_connectivity import read

    try:
        data = read_bytes(path, most_bytes=_MOST_FILE_BYTES)
        return read(data.decode("utf-8"), name=str(path))
    except TooLargeError as exc:
        raise ConfigError(f"{path}: too large for a configuration") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise unreadable(str(path), exc) from exc


class UnknownNetworkError(IsthmusError):
    """The configuration has no such network; ``name`` is the requested one."""

    def __init__(self, name: str, known: Iterable[str], *, destination: str = "") -> None:
        there = ", ".join(sorted(known)) or "none"
        if destination:
            text = f"Unknown network of {destination}: no network of the configuration names it"
        else:
            text = f"Unknown network {name!r}: the configuration has {there}"
        super().__init__(text)
        self.name = name
