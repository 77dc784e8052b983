"""Numbers as every screen writes them; tests/browser holds the dashboard to the same vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.text import units

VECTORS = json.loads(Path(__file__).with_name("units.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("function", "number", "written"),
    [(name, *pair) for name, pairs in VECTORS.items() for pair in pairs],
)
def test_numbers_are_written_as_kubectl_writes_them(
    function: str, number: float | None, written: str
) -> None:
    assert getattr(units, function)(number) == written


def test_an_unknown_age_is_a_dash() -> None:
    assert units.age(None) == "-"
