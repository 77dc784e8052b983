"""Detectors that somebody else wrote, found by the entry point group below.

A package offers one under the name that ``--detect-local`` takes:

    [project.entry-points."isthmus.local_traffic_detectors"]
    by-dscp = "my_detectors:by_dscp"

What it names is called with ``DetectorSettings`` and gives a ``LocalTrafficDetector``; it is called
again when the Node's pod ranges change.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.detectors import (
    MODES,
    DetectorSettings,
    LocalMatch,
    LocalTrafficDetector,
)
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.text.suggestions import nearest

GROUP = "isthmus.local_traffic_detectors"

DetectorMaker = Callable[[DetectorSettings], LocalTrafficDetector]


def installed() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=GROUP)}


def find_detector(mode: str) -> DetectorMaker:
    """What makes the detector of a mode: one of ours, or else one that is installed.

    Raises:
        ConfigError: there is none of that name, or it cannot be loaded.
    """
    if mode in MODES:
        return MODES[mode].make
    there = installed()
    if mode not in there:
        ours = [name for name in MODES if name[0].islower()]
        known = [*ours, *sorted(there)]
        raise ConfigError(
            f"--detect-local must be {', '.join(known[:-1])} or {known[-1]}, not"
            f" {mode!r}{nearest(mode, known)}"
        )
    try:
        load = there[mode].load()
    except Exception as exc:
        raise ConfigError(_broken(there[mode], f"cannot be loaded: {_said(exc)}")) from exc
    if not callable(load):
        raise ConfigError(_broken(there[mode], "cannot be called"))
    return _checked(there[mode], load)


def _checked(point: EntryPoint, load: DetectorMaker) -> DetectorMaker:
    """Hold what another package makes against the interface, each time."""

    def make(given: DetectorSettings) -> LocalTrafficDetector:
        try:
            made = load(given)
            matches = [match for family in IpFamily for match in made.matches(family)]
            _ = made.bridge_ports
        except Exception as exc:
            raise ConfigError(_broken(point, f"fails: {_said(exc)}")) from exc
        if not all(isinstance(match, LocalMatch) for match in matches):
            raise ConfigError(_broken(point, "gives something else than LocalMatch values"))
        return made

    return make


def _broken(point: EntryPoint, what: str) -> str:
    return f"the detector {point.name!r} ({point.value}) {what}"


def _said(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
