"""What a program is, as a value: its name, its words, and where its settings and parts are.

Each program's room declares one, ``PROGRAM``, in its ``__init__``; ``isthmus.programs`` lists the
rooms. Everything that shows programs (the command line, reference pages, the doctor, manifests,
the dashboard) walks that list. Modules are named and not imported here: ``isthmus --help`` reads
every declaration and runs no program. Who runs one is lifecycle.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFlags:
    """A program has health and admin ports, whose flags are those of its AdminSettings.

    The agent's admin port redirects to the metrics of the health port, as konnectivity's does.
    """

    as_agent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A declared program.

    Some fields name what is found at ``module:name`` below ``room``, imported when somebody asks:

    - ``settings``: the class of its settings;
    - ``parts``: a function that takes a Ground and gives the parts, foundations first;
    - ``metrics``: the class of its metrics, a ProgramMetrics;
    - ``view``: the class of its snapshot, empty for one that has none;
    - ``workers``: a function that takes the settings and gives a WorkerPlan; empty for one that is
      always one process;
    - ``layout``: its SettingsLayout, which the doctor looks at;
    - ``manifest``: its command below ``isthmus manifest``, which two programs may share;
    - ``chart``: its ChartPart; empty for one that the Helm chart does not install.
    """

    name: str
    #: As a heading has it, and as a sentence has it: "an SNI router".
    title: str
    called: str
    #: What its command does, in one line.
    help: str
    #: Flags with which it could be run, for the help of commands that take its flags.
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
    #: What the reference page of its flags says before the tables.
    flag_rules: str = ""
    #: The program that its flags come from, where that is not konnectivity's.
    flags_of: str = ""
    #: The name of its logger below ``isthmus``.
    log: str
    #: The setting that names one of them, and the field of snapshots and log lines; none has any.
    id_field: str = ""
    #: The ``kind`` of its snapshots.
    snapshot_kind: str = ""
    #: Whether its clients reach targets through a server, whose dials are then the same ones.
    before_a_server: bool = False
    #: The admin port unless it is told otherwise: settings take their default from here.
    admin_port: int = 0
    #: None for a program that opens its own.
    operator_flags: OperatorFlags | None = OperatorFlags()

    def found(self, where: str) -> Any:
        """What is at ``module:name`` below its room, or below ``isthmus``."""
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
        """Whether these settings ask for more processes than one."""
        return bool(self.workers) and settings.workers != 1

    def id_of(self, settings: Any) -> str:
        """The id that the settings give; empty for any."""
        return str(getattr(settings, self.id_field, "")) if self.id_field else ""
