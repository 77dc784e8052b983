"""Find the running programs: flags from /configz, state from the other paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from isthmus.client.admin import AdminClient, AdminError
from isthmus.errors import ConfigError
from isthmus.frame.finding import Asked, CheckId, CheckState, Finding
from isthmus.frame.patient import READINESS, Patient, Running
from isthmus.programs import kind_names
from isthmus.settings.options import BLANK, options_of
from isthmus.settings.parsing import load
from isthmus.text.addresses import is_loopback
from isthmus.tools.doctor.layout import SETTINGS
from isthmus.tools.doctor.ports import holder_of, holders
from isthmus.tools.watching.looking import at_once
from isthmus.values import HostPort

_TUNNELS = 100
_NOBODY = "redacted"
_DONE = "asked its admin port for /configz and /snapshot"
_TODO = "start the program; if it runs, check its address, and the credentials it requires"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The values that all patients share, in addition to their settings."""

    environ: Mapping[str, str]
    timeout_s: float
    target: HostPort | None = None


def ask(client: AdminClient) -> Running:
    """Query all paths.

    Raises:
        AdminError: the program does not answer at all, or refuses the request.
    """
    snapshot = client.get(f"/snapshot?limit={_TUNNELS}")
    missing: dict[str, str] = {}

    def tried(path: str, get: Callable[[str], Any], empty: Any) -> Any:
        try:
            return get(path)
        except AdminError as error:
            missing[path] = str(error)
            return empty

    configuration = tried("/configz", client.get, {})
    claimed = configuration.get("pid")
    readiness = tried(READINESS, client.ask, None)
    return Running(
        url=client.url,
        program=str(configuration.get("program") or _program_of(snapshot)),
        pid=local_pid(client.url, claimed if isinstance(claimed, int) else 0),
        here=_is_here(client.url),
        configuration=configuration,
        snapshot=snapshot,
        history=tried("/history", client.get, {}),
        metrics=tried("/metrics", client.text, ""),
        readiness=readiness.text if readiness is not None else "",
        ready=readiness is None or readiness.status == 200,
        missing=missing,
    )


def _is_here(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def local_pid(url: str, claimed: int) -> int:
    """The process behind an admin port, by this machine's numbers; 0 if unknown.

    A container numbers its processes itself, from 1.
    """
    if not _is_here(url):
        return 0
    who = holders(urlsplit(url).port or 0)
    if who:
        return claimed if claimed in {one.pid for one in who} else who[0].pid
    # Another user's process, whose sockets we may not see: accept it if it looks like Isthmus.
    return claimed if claimed and holder_of(claimed).is_ours else 0


# By the kind of the snapshot; older programs have no /configz.
def _program_of(snapshot: Mapping[str, Any]) -> str:
    return kind_names().get(str(snapshot.get("kind")), "unknown")


def settings_of(configuration: Mapping[str, Any]) -> Any:
    """The settings of a running program, from its /configz.

    Raises:
        ConfigError: it is not an Isthmus program, or its flags cannot be read.
    """
    program = str(configuration.get("program", ""))
    settings = SETTINGS.get(program)
    flags = configuration.get("flags")
    if settings is None or not isinstance(flags, Mapping):
        raise ConfigError(f"/configz is of an unknown program: {program!r}")
    given: dict[str, list[str]] = {}
    for declared in options_of(settings):
        shown = flags.get(declared.flag)
        value = shown.get("value") if isinstance(shown, Mapping) else None
        values = value if isinstance(value, list) else [value or ""]
        # Replace a blanked user by a placeholder, so that the rest of the URL can be parsed.
        texts = [str(text).replace(f"{BLANK}@", f"{_NOBODY}@") for text in values]
        if any(texts):
            given[declared.attribute] = texts
    return load(settings, given, {})


def patients_of(
    clients: Sequence[AdminClient], asking: Asking
) -> tuple[list[Patient], list[Finding]]:
    """A patient for each program that reports its flags, and findings about all of them."""
    patients: list[Patient] = []
    findings: list[Finding] = []
    for client, running in zip(clients, at_once(_asked, clients), strict=True):
        asked = Asked(CheckId.RUNNING, client.url, _DONE)
        if isinstance(running, AdminError):
            findings.append(asked.fail(str(running), _TODO))
            continue
        patient, finding = _patient(running, asked, asking)
        findings.append(finding)
        if patient is not None:
            patients.append(patient)
    return patients, findings


def _asked(client: AdminClient) -> Running | AdminError:
    try:
        return ask(client)
    except AdminError as error:
        return error


def _patient(running: Running, asked: Asked, asking: Asking) -> tuple[Patient | None, Finding]:
    version = running.snapshot.get("version", "of unknown version")
    try:
        settings = settings_of(running.configuration)
    except ConfigError as error:
        why = running.missing.get("/configz", str(error))
        return None, asked.warn(
            f"a program of isthmus {version}, but its flags are not available: {why}",
            "give its flags instead, as in isthmus doctor agent --proxy-server-host=…",
        )
    patient = Patient(
        program=running.program,
        settings=settings,
        label=f"{running.program} {running.url.partition('://')[2]}",
        environ=asking.environ,
        running=running,
        target=asking.target,
        timeout_s=asking.timeout_s,
    )
    seen = f"{running.program} {version}"
    if running.pid:
        seen += f", process {running.pid}"
    if not running.here:
        seen += "; it runs on another machine, so only its own reports are checked"
    if running.missing:
        paths = ", ".join(running.missing)
        return patient, asked.warn(
            f"{seen}; it does not answer {paths}", "some checks are skipped; see its version"
        )
    return patient, asked.ok(seen)


def failed(findings: Sequence[Finding]) -> bool:
    """Whether anything is broken."""
    return any(finding.state is CheckState.FAILED for finding in findings)
