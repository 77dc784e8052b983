"""Looks run side by side; one that breaks or hangs is a finding, and the others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from doctor_bed import patient

from isthmus.errors import ConfigError
from isthmus.frame.finding import Asked, CheckId, CheckState, Finding
from isthmus.frame.patient import Look, Patient, Running, Shared
from isthmus.tools.doctor.examine import Progress, examine

ANY = frozenset({"agent"})
LIMIT_S = 20.0


def found(check: CheckId) -> Finding:
    return Asked(check, "it", "looked").ok("well")


def look(check: CheckId, see: object, **more: object) -> Look:
    return Look(checks=(check,), programs=ANY, see=see, **more)  # type: ignore[arg-type]


def test_findings_come_in_the_order_of_the_checks_whoever_was_first() -> None:
    second_is_done = threading.Event()

    def first(_: Patient) -> Iterator[Finding]:
        assert second_is_done.wait(LIMIT_S)
        yield found(CheckId.CONFIGURATION)

    def second(_: Patient) -> Iterator[Finding]:
        yield found(CheckId.PORTS)
        second_is_done.set()

    looks = [look(CheckId.CONFIGURATION, first), look(CheckId.PORTS, second)]
    findings = examine([patient("agent", None)], looks, limit_s=LIMIT_S)
    assert [one.check for one in findings] == [CheckId.CONFIGURATION, CheckId.PORTS]
    assert {one.program for one in findings} == {"agent"}


def test_a_look_that_breaks_costs_nobody_else_anything() -> None:
    def broken(_: Patient) -> Iterator[Finding]:
        yield found(CheckId.FILES)
        raise ZeroDivisionError("by zero")

    def unfit(_: Patient) -> list[Finding]:
        raise ConfigError("--listen: no port")

    looks = [
        look(CheckId.FILES, broken),
        look(CheckId.DNS, unfit),
        look(CheckId.PORTS, lambda _: [found(CheckId.PORTS)]),
    ]
    findings = examine([patient("agent", None)], looks, limit_s=LIMIT_S)
    got = {(one.check, one.state): one.seen for one in findings}
    assert got[CheckId.FILES, CheckState.OK] == "well"
    assert "ZeroDivisionError" in got[CheckId.FILES, CheckState.FAILED]
    assert "--listen: no port" in got[CheckId.DNS, CheckState.SKIPPED]
    assert got[CheckId.PORTS, CheckState.OK] == "well"


def test_a_look_that_hangs_is_left_behind_and_said() -> None:
    release = threading.Event()

    def hangs(_: Patient) -> Iterator[Finding]:
        yield found(CheckId.CONNECT)
        release.wait(LIMIT_S)

    hanging = Look(checks=(CheckId.CONNECT, CheckId.TLS), programs=ANY, see=hangs)
    looks = [hanging, look(CheckId.PORTS, lambda _: [found(CheckId.PORTS)])]
    told: list[Progress] = []
    try:
        findings = examine([patient("agent", None)], looks, limit_s=0.3, told=told.append)
    finally:
        release.set()
    assert [(one.check, one.state) for one in findings] == [
        (CheckId.PORTS, CheckState.OK),
        (CheckId.CONNECT, CheckState.OK),
        (CheckId.TLS, CheckState.FAILED),
    ]
    assert "not finished within" in findings[-1].seen
    assert told[-1].waits_for == ("connect",)
    assert told[-1].of == 2


def test_only_what_concerns_a_patient_is_looked_at() -> None:
    looks = [
        Look(
            checks=(CheckId.PORTS,),
            programs=frozenset({"server"}),
            see=lambda _: [found(CheckId.PORTS)],
        ),
        look(CheckId.LINKS, lambda _: [found(CheckId.LINKS)], running=True),
    ]
    assert examine([patient("agent", None)], looks, limit_s=LIMIT_S) == []


def test_of_a_program_elsewhere_only_what_it_says_is_looked_at() -> None:
    far = Running(url="https://10.0.0.7:8095", program="agent", here=False)
    looks = [
        look(CheckId.PORTS, lambda _: [found(CheckId.PORTS)]),
        look(CheckId.LINKS, lambda _: [found(CheckId.LINKS)], running=True),
    ]
    findings = examine([patient("agent", None, running=far)], looks, limit_s=LIMIT_S)
    assert [one.check for one in findings] == [CheckId.LINKS]


def test_what_is_shared_is_found_out_once_and_its_error_is_everybodys() -> None:
    shared, calls = Shared(), []

    def make() -> int:
        calls.append(1)
        return 7

    assert [shared.get("a", make), shared.get("a", make)] == [7, 7]
    assert len(calls) == 1

    def fail() -> int:
        raise ConfigError("no")

    for _ in range(2):
        try:
            shared.get("b", fail)
        except ConfigError as error:
            assert str(error) == "no"
        else:
            raise AssertionError
