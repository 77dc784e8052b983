"""The declaration of a program: its name, its texts, and where its settings and parts are.

Each program's room declares one, ``PROGRAM``, in its ``__init__``; ``isthmus.programs`` lists the
rooms. Everything that shows programs (the command line, reference pages, the doctor, manifests,
the dashboard) walks that list. Modules are named, not imported: ``isthmus --help`` reads every
declaration and runs no program. lifecycle.py runs programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFlags:
    """A program with health and admin ports, whose flags are those of its AdminSettings.

    The agent's admin port redirects to the metrics of the health port, as konnectivity's does.
    """

    as_agent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A declared program.

    Some fields name an object as ``module:name`` below ``room``, imported on first use:

    - ``settings``: the class of its settings;
    - ``parts``: a function that takes a Ground and returns the parts, foundations first;
    - ``metrics``: the class of its metrics, a ProgramMetrics;
    - ``view``: the class of its snapshot, empty if it has none;
    - ``workers``: a function that takes the settings and returns a WorkerPlan; empty if the
      program is always one process;
    - ``layout``: its SettingsLayout, which the doctor uses;
    - ``manifest``: its command below ``isthmus manifest``, which two programs may share;
    - ``chart``: its ChartPart; empty if the Helm chart does not install it.
    """

    name: str
    #: For headings, and for sentences: "an SNI router".
    title: str
    called: str
    #: The command's help, in one line.
    help: str
    #: Example flags, for the help of commands that take the program's flags.
    example: str = ""
    room: str
    command: str = "command"
    settings: str
    parts: str
    metrics: str
    view: str = ""
    workers: str = ""
    layout: str
    manifest: str = ""
    chart: str = ""
    #: The introduction of the reference page of its flags.
    flag_rules: str = ""
    #: The program its flags come from, if that is not konnectivity's.
    flags_of: str = ""
    #: The name of its logger below ``isthmus``.
    log: str
    #: The setting with the program's id, and the field of snapshots and log lines; empty for none.
    id_field: str = ""
    #: The ``kind`` of its snapshots.
    snapshot_kind: str = ""
    #: Whether its clients reach targets through a server, which counts the same dials.
    before_a_server: bool = False
    #: The default admin port, which settings use.
    admin_port: int = 0
    #: None for a program that opens its own ports.
    operator_flags: OperatorFlags | None = OperatorFlags()

    def found(self, where: str) -> Any:
        """The object at ``module:name`` below its room, or below ``isthmus``."""
        whole = where if where.startswith("isthmus.") else f"{self.room}.{where}"
        return resolve_name(whole)

    @property
    def command_module(self) -> str:
        """The module that has its ``command``."""
        return f"{self.room}.{self.command}"

    @property
    def settings_class(self) -> type[Any]:
        """The class of its settings."""
        kind: type[Any] = self.found(self.settings)
        return kind

    @property
    def view_class(self) -> type[Any]:
        """The class of its snapshots."""
        kind: type[Any] = self.found(self.view)
        return kind

    def has_workers(self, settings: Any) -> bool:
        """Whether these settings require more than one process."""
        return bool(self.workers) and settings.workers != 1

    def id_of(self, settings: Any) -> str:
        """The id that the settings give; empty for any."""
        return str(getattr(settings, self.id_field, "")) if self.id_field else ""
