"""What the doctor examines: a program's settings and, if it runs, the answers of its admin port.

A look is a function that checks them. isthmus.tools.doctor runs the looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from isthmus.frame.finding import CheckId, Finding
from isthmus.values import HostPort

T = TypeVar("T")
#: The path of readiness, as ``missing`` has it.
READINESS = "/readyz?verbose"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running program, as its admin port shows it.

    What could not be read is empty, and ``missing`` has the reason by path. ``pid`` is the process
    id on this machine, 0 if unknown; ``here`` is False for a program on another machine.
    """

    url: str
    program: str
    pid: int = 0
    here: bool = True
    configuration: Mapping[str, Any] = field(default_factory=dict)
    snapshot: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    metrics: str = ""
    readiness: str = ""
    ready: bool = True
    missing: Mapping[str, str] = field(default_factory=dict)


class Shared:
    """What several looks need, computed once by the first of them; the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, Future[Any]] = {}

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the value of the key, or raise what computing it raised."""
        with self._lock:
            mine = key not in self._made
            future = self._made.setdefault(key, Future())
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)
        made: T = future.result()
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """One program to examine.

    ``settings`` are the declared ones of its command. ``given`` are the flags that were typed.
    ``target`` is what to dial through the tunnel, if anything. ``timeout_s`` bounds each wait.
    """

    program: str
    settings: Any
    label: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    running: Running | None = None
    target: HostPort | None = None
    timeout_s: float = 5.0
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    shared: Shared = field(default_factory=Shared)

    @property
    def name(self) -> str:
        """Its name in findings: the program, with its address if several are examined."""
        return self.label or self.program


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A function that does one or several checks of a patient, and yields findings.

    ``programs`` are the programs it applies to; ``running`` ones apply only to a running program,
    on any machine. All others examine this machine, and so no program of another one.
    """

    checks: tuple[CheckId, ...]
    programs: frozenset[str]
    see: Callable[[Patient], Iterable[Finding]]
    running: bool = False

    def concerns(self, patient: Patient) -> bool:
        """Whether there is anything to check."""
        if patient.program not in self.programs:
            return False
        if patient.running is None:
            return not self.running
        return self.running or patient.running.here
