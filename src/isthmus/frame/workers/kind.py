"""What the programs that can have workers differ in: what they bind, and what runs in a worker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from isthmus.frame.handed import Handed
from isthmus.frame.lifetime import Program
from isthmus.frame.model.snapshot import ProgramView
from isthmus.frame.observe.counters import Family
from isthmus.frame.operator_ports import Door
from isthmus.net.poller import Poller
from isthmus.settings.admin import AdminSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which worker one is, of how many, and the id of their program.

    ``audit`` is the path that it writes audit records to, for its parent.
    """

    index: int
    count: int
    program_id: str
    audit: str = ""

    def share(self, total: int) -> int:
        """Its part of what all of them may have, rounded up."""
        return -(-total // self.count)


class BoundSocket(NamedTuple):
    """A socket that the parent listens with, the flag of its door, and who comes there."""

    flag: str
    sock: socket.socket
    for_agents: bool = False


class WorkerProgram(Program, Protocol):
    """A program that runs in a worker."""

    @property
    def poller(self) -> Poller:
        """What watches its sockets."""

    @property
    def calls(self) -> int:
        """How many requests share sockets with others."""

    @property
    def has_peers(self) -> bool:
        """It knows of others that agents may go to, besides its parent's workers."""


class Kind(Protocol):
    """One of the programs."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def view(self) -> type[ProgramView]:
        """The kind of its snapshots."""

    def families(self) -> Iterable[Family]:
        """Give the metric families of a worker; each says how it is merged over them."""

    @property
    def settings(self) -> AdminSettings:
        """What it was told."""

    @property
    def workers(self) -> int:
        """How many workers it is to have; 0 is as many as there are CPUs."""

    @property
    def drain_s(self) -> float:
        """How long what is open may go on after SIGTERM."""

    @property
    def program_id(self) -> str:
        """The id that it was given; empty for any."""

    @property
    def audit_path(self) -> str:
        """Where its audit records go; empty for nowhere."""

    @property
    def tls_min_version(self) -> str:
        """The oldest TLS that its admin port speaks; empty for the usual."""

    @property
    def cipher_suites(self) -> tuple[str, ...]:
        """The cipher suites of its admin port; empty for the usual."""

    @property
    def reloads(self) -> bool:
        """SIGHUP has it read its files again."""

    @property
    def health(self) -> Door:
        """Where its health port is to be."""

    @property
    def admin_port(self) -> int:
        """Where its admin port is to be."""

    def allow(self) -> None:
        """Raise the limits of this process as far as it wants."""

    def named(self, program_id: str) -> dict[str, str]:
        """Give the name and value of its id where it is shown."""

    def same(self) -> dict[str, Any]:
        """Give the fields of its snapshot that the parent knows better than any worker."""

    async def before(self) -> None:
        """Do what has to be done before anything is bound.

        Raises:
            ConfigError: it cannot be done.
        """

    def bind(self) -> Iterable[BoundSocket]:
        """Bind everything, one after the other.

        Raises:
            ConfigError: one cannot be bound.
        """

    def refuses(self, sock: socket.socket) -> bool:
        """Tell whether a connection is not to be served at all."""

    async def watch(self) -> None:
        """Look after what was done before, for ever."""

    async def after(self) -> None:
        """Undo what was done before."""

    def make(self, place: Place, handed: Handed) -> WorkerProgram:
        """Make the program of a worker, in its loop.

        Raises:
            ConfigError: a setting or a file is wrong.
        """


class BaseKind:
    """What most of them do alike."""

    audit_path = ""
    program_id = ""
    reloads = False
    tls_min_version = ""
    cipher_suites: tuple[str, ...] = ()

    def named(self, program_id: str) -> dict[str, str]:
        """Nowhere."""
        return {}

    async def before(self) -> None:
        """Nothing."""

    def refuses(self, sock: socket.socket) -> bool:
        """Nobody."""
        return False

    async def watch(self) -> None:
        """Nothing, for ever."""
        await asyncio.Event().wait()

    async def after(self) -> None:
        """Nothing."""

    def same(self) -> dict[str, Any]:
        """Nothing."""
        return {}
