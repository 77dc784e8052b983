"""Whether the settings make sense, by themselves and together."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.settings.options import given_in_vain
from isthmus.tools.doctor.finding import Asked, Check, Finding
from isthmus.tools.doctor.patient import Patient


def see_configuration(patient: Patient) -> Iterator[Finding]:
    """Hold the settings against each other, as the program does when it starts."""
    settings = patient.settings
    where = "the flags of /configz" if patient.running is not None else "the flags"
    asked = Asked(Check.CONFIGURATION, "flags", f"held {where} against each other")
    try:
        settings.validate()
    except ConfigError as error:
        yield asked.fail(str(error), "change it as the sentence says; the program would not start")
        return
    sentences = [*_warnings(settings), *_vain(patient)]
    for sentence in sentences:
        yield asked.warn(sentence, "change it, if it is not meant")
    if not sentences:
        yield asked.ok("they make sense together")


def _warnings(settings: object) -> list[str]:
    if isinstance(settings, NodeProxySettings):
        return settings.notes()
    find = getattr(settings, "warnings", None)
    return list(find()) if find is not None else []


def _vain(patient: Patient) -> list[str]:
    found = given_in_vain(type(patient.settings), patient.given)
    return [f"these flags have no effect here: {', '.join(found)}"] if found else []
