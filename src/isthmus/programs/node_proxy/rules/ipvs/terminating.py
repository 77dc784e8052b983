"""Destinations that take no new connections and wait for their last ones to end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isthmus.programs.node_proxy.rules.ipvs.servers import (
    AddDestination,
    DestinationState,
    IpvsCommand,
    IpvsDestination,
    RemoveDestination,
    RemoveServer,
    ServerKey,
    WeighDestination,
    removal,
)


class TerminatingDestinations:
    """Remembers which destinations wait, from the commands that were carried out."""

    def __init__(self) -> None:
        self._waiting: dict[ServerKey, set[IpvsDestination]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def keys(self) -> list[ServerKey]:
        """The virtual servers with destinations that wait."""
        return list(self._waiting)

    def done(self, commands: Iterable[IpvsCommand]) -> None:
        """Take note of what was done."""
        for command in commands:
            match command:
                case WeighDestination(weight=0):
                    self._waiting.setdefault(command.key, set()).add(command.destination)
                case AddDestination() | WeighDestination() | RemoveDestination():
                    self._forget(command.key, command.destination)
                case RemoveServer():
                    self._waiting.pop(command.key, None)
                case _:
                    pass

    def ended(
        self, key: ServerKey, present: Mapping[IpvsDestination, DestinationState]
    ) -> list[IpvsCommand]:
        """Give the removals of those whose connections have ended, as the kernel has them now.

        What the kernel does not have any more is forgotten.
        """
        commands: list[IpvsCommand] = []
        for each in sorted(self._waiting.get(key, ())):
            state = present.get(each)
            if state is None:
                self._forget(key, each)
                continue
            command = removal(key, each, state)
            if command is not None:
                commands.append(command)
        return commands

    def _forget(self, key: ServerKey, destination: IpvsDestination) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.discard(destination)
            if not waiting:
                del self._waiting[key]
