"""Patients, and picking findings out of what a look saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isthmus.frame.finding import CheckId, CheckState, Finding
from isthmus.frame.patient import Patient, Running
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import compose
from isthmus.tools.pki.making import PkiFiles

LIMIT_S = 20.0


def agent(files: PkiFiles, **more: Any) -> AgentSettings:
    """The settings of an agent with these certificates."""
    given: dict[str, Any] = {
        "ca_cert": str(files.ca_cert),
        "agent_cert": str(files.agent_cert),
        "agent_key": str(files.agent_key),
    }
    return compose(AgentSettings, **{**given, **more})


def server(files: PkiFiles, **more: Any) -> ServerSettings:
    """The settings of a server with these certificates."""
    given: dict[str, Any] = {
        "uds_name": "/run/isthmus/server.sock",
        "cluster_ca_cert": str(files.ca_cert),
        "cluster_cert": str(files.server_cert),
        "cluster_key": str(files.server_key),
    }
    return compose(ServerSettings, **{**given, **more})


def patient(program: str, settings: Any, **more: Any) -> Patient:
    """A patient that does not run."""
    return Patient(program=program, settings=settings, **{"timeout_s": LIMIT_S, **more})


def running(program: str, settings: Any, **said: Any) -> Patient:
    """A patient that runs, and says so much at its admin port."""
    alive = Running(url="http://127.0.0.1:1", program=program, **said)
    return patient(program, settings, running=alive)


def by_check(findings: Iterable[Finding]) -> Mapping[CheckId, list[Finding]]:
    """The findings of each check."""
    found: dict[CheckId, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.check, []).append(finding)
    return found


def states(findings: Iterable[Finding], check: CheckId) -> list[CheckState]:
    """How the findings of one check came out."""
    return [finding.state for finding in findings if finding.check is check]


def only(findings: Iterable[Finding], check: CheckId) -> Finding:
    """The one finding of a check."""
    (found,) = (finding for finding in findings if finding.check is check)
    return found
