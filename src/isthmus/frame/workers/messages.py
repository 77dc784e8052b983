"""What a parent and a worker say to each other, as values; channel.py carries them.

Both are always of one version: a worker is the executable that its parent runs.
"""

from __future__ import annotations

from msgspec import Struct

from isthmus.frame.model.history import Tally


class Begin(Struct, frozen=True, kw_only=True, tag=True):
    """The first word to a worker: which one it is, and of how many."""

    index: int
    count: int
    program_id: str


class Bound(Struct, frozen=True, kw_only=True, tag=True):
    """Where the parent listens, by flag."""

    where: dict[str, list[tuple[str, int]]]


class Ask(Struct, frozen=True, kw_only=True, tag=True):
    """A question, which is answered under its number."""

    number: int
    what: str
    given: dict[str, str] = {}


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """Let what is open finish, at most so long, and end then."""

    timeout_s: float


class Stop(Struct, frozen=True, kw_only=True, tag=True):
    """End now."""


class Hangup(Struct, frozen=True, kw_only=True, tag=True):
    """The parent was told to read its files again."""


class Audit(Struct, frozen=True, kw_only=True, tag=True):
    """Whether the parent fails to write the audit records of workers."""

    failing: bool


class Started(Struct, frozen=True, kw_only=True, tag=True):
    """The worker can be handed connections."""


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    """It cannot start; one sentence says why."""

    sentence: str


class Report(Struct, frozen=True, kw_only=True, tag=True):
    """How a worker is doing, said by itself about once a second.

    ``taken`` is how many connections it was handed so far, ``load`` how many sockets and gRPC
    calls it has open. Checks are names and failures, which are empty when all is well. ``lines``
    are those that it logged since the last report. ``has_peers``: it knows of other servers, which
    are none of its parent's workers. ``metrics`` and ``view``, a snapshot without tunnels, come
    less often, and in the last report: they are what is left of it when it dies.
    """

    taken: int = 0
    load: int = 0
    live: list[tuple[str, str]] = []
    ready: list[tuple[str, str]] = []
    status: str = ""
    has_peers: bool = False
    cpu_s: float = 0.0
    tally: Tally = Tally()
    lines: list[bytes] = []
    metrics: bytes = b""
    view: bytes = b""


class Answer(Struct, frozen=True, kw_only=True, tag=True):
    """The answer to a question; a status as HTTP has it, and headers where they matter."""

    number: int
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}


ToWorker = Begin | Bound | Ask | Drain | Stop | Hangup | Audit
ToParent = Started | Failed | Report | Answer
