"""The tables of the doctor are complete: checks, advice, steps, and the page that lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import DialFailure, LinkStage
from isthmus.frame.finding import DIAL_ADVICE, FINDS, LINK_ADVICE, CheckId
from isthmus.tools.doctor import reference
from isthmus.tools.doctor.layout import ALL
from isthmus.tools.doctor.looks import LOOKS, programs_of
from isthmus.tools.doctor.target import STEPS

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "doctor.md"


def test_every_check_says_what_it_finds() -> None:
    assert list(FINDS) == list(CheckId), "groups have the order of the checks, and each once"
    assert all(not text.endswith(".") for text in FINDS.values())


def test_every_check_is_somebodys() -> None:
    """Whether a program runs is asked before there is anybody to look at."""
    seen = {check for look in LOOKS for check in look.checks}
    assert set(CheckId) - seen == {CheckId.RUNNING}
    assert all(programs_of(check) for check in seen)
    assert all(look.programs <= ALL for look in LOOKS)


def test_every_way_to_fail_has_its_advice() -> None:
    assert DIAL_ADVICE.keys() == set(DialFailure)
    assert LINK_ADVICE.keys() == set(LinkStage)
    assert STEPS.keys() == set(DialFailure)
    assert all(DIAL_ADVICE.values()) and all(LINK_ADVICE.values()) and all(STEPS.values())
    assert len({*DIAL_ADVICE.values(), *LINK_ADVICE.values()}) == len(DialFailure) + len(LinkStage)


@pytest.mark.parametrize("table", reference.TABLES)
def test_the_page_has_the_tables(table: str) -> None:
    wanted = reference.TABLES[table]()
    assert wanted in PAGE.read_text(), (
        "run: python -m isthmus.tools.doctor.reference docs/how-to/doctor.md"
    )
