"""The terminal tools' view of programs: snapshots from their admin ports, and errors.

Any field of an answer may be missing: the program may be older or newer than the tool.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from isthmus.client.admin import AdminError, Trouble
from isthmus.programs import kind_names

if TYPE_CHECKING:
    import click

    from isthmus.client.admin import AdminClient
    from isthmus.tools.watching.admin_flags import AdminFlags

T = TypeVar("T")
R = TypeVar("R")
MOST_TUNNELS = 100_000
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The last answer of a program; ``error`` is why there is none."""

    client: AdminClient
    snapshot: dict[str, Any]
    error: AdminError | None = None

    @property
    def program(self) -> str:
        """The program's name on the command line."""
        kind = str(self.snapshot.get("kind", ""))
        named = str(self.snapshot.get("program", ""))
        return kind_names().get(kind) or named or kind.removesuffix("Snapshot").lower() or "unknown"

    @property
    def id(self) -> str:
        """The program's ID, or else its address."""
        given = self.snapshot.get("serverId") or self.snapshot.get("agentId")
        return str(given or self.client.address)


def at_once(work: Callable[[T], R], things: Iterable[T]) -> list[R]:
    """Call a function for all items at once, in threads; the results are in order.

    The process does not wait for the threads: Ctrl-C ends it while a program is slow to answer.
    """
    things = list(things)
    if len(things) < 2:
        return [work(thing) for thing in things]
    todo: SimpleQueue[tuple[int, T]] = SimpleQueue()
    done: SimpleQueue[tuple[int, R] | BaseException] = SimpleQueue()
    for each in enumerate(things):
        todo.put(each)

    def do() -> None:
        with contextlib.suppress(Empty):
            while True:
                at, thing = todo.get_nowait()
                try:
                    done.put((at, work(thing)))
                except BaseException as error:  # for the waiting thread
                    done.put(error)

    for _ in range(min(len(things), _AT_ONCE)):
        threading.Thread(target=do, name="looks", daemon=True).start()
    results: dict[int, R] = {}
    for _ in things:
        match done.get():
            case (at, result):
                results[at] = result
            case BaseException() as error:
                raise error
    return [results[at] for at in range(len(things))]


def look(client: AdminClient, tunnels: int = MOST_TUNNELS) -> Seen:
    """Query a program's snapshot; a failure is in ``error``."""
    try:
        snapshot = client.get(f"/snapshot?limit={tunnels}")
        if not str(snapshot.get("kind", "")).endswith("Snapshot"):
            raise AdminError(
                f"{client.url}/snapshot is not a snapshot; is it the admin port of an Isthmus"
                f" program?",
                Trouble.NOT_JSON,
            )
    except AdminError as error:
        return Seen(client=client, snapshot={}, error=error)
    return Seen(client=client, snapshot=snapshot)


def look_at_all(admin: AdminFlags, tunnels: int = MOST_TUNNELS) -> list[Seen]:
    """Query every program that was named, or all that run here.

    Raises:
        ConfigError: a flag is wrong, or there is nothing.
    """
    return at_once(lambda client: look(client, tunnels), admin.clients())


#: The shell and its user wait for a completion.
_QUICK_S = 0.5


def look_quickly(ctx: click.Context) -> list[Seen]:
    """Query the programs of an unfinished command line, for shell completion.

    Raises:
        ConfigError: a flag is wrong, or there is nothing.
    """
    from isthmus.tools.watching.admin_flags import AdminFlags

    if ctx.find_root().info_name != "isthmus":  # the kubectl plugin would have to connect first
        return []
    given: dict[str, Any] = {}
    at: click.Context | None = ctx
    while at is not None:
        given = {name: value for name, value in at.params.items() if value} | given
        at = at.parent
    admin = AdminFlags(**{each.name: given[each.name] for each in fields(AdminFlags)
                          if each.name in given})  # fmt: skip
    return at_once(lambda client: look(client), admin.clients(timeout_s=_QUICK_S))


def names_of(programs: Sequence[Seen]) -> dict[str, str]:
    """A name for each program by its URL: its ID, with its address if the ID is not unique."""
    ids = [seen.id for seen in programs]
    return {
        seen.client.url: seen.id if ids.count(seen.id) == 1 else f"{seen.id}@{seen.client.address}"
        for seen in programs
    }


def items(snapshot: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects in a snapshot; empty if it is missing."""
    found = snapshot.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def number(thing: dict[str, Any], key: str) -> float:
    """A number; 0 if it is missing."""
    found = thing.get(key)
    return found if isinstance(found, int | float) else 0


def text(thing: dict[str, Any], key: str) -> str:
    """A text; empty if it is missing."""
    found = thing.get(key)
    return found if isinstance(found, str) else ""
