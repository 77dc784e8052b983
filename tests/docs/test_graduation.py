"""docs/explanation/graduation.md says what the code says of every feature gate, and shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from doc_blocks import ROOT

from isthmus.settings.gates import ALPHA, BETA, GATES, FeatureGate

PAGE = ROOT / "docs" / "explanation" / "graduation.md"
TEXT = PAGE.read_text("utf-8")
#: The headings of a gate's tables, in the order in which they are reached.
STAGES = {"Alpha": ALPHA, "Beta": BETA, "GA": "GA"}
_NAMED = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")
_LINKED = re.compile(r"\[[^]]+\]\(([\w./-]+\.md)(?:#[\w-]+)?\)")


@dataclass(frozen=True)
class Criterion:
    stage: str
    text: str
    source: str
    met: str
    shown: str


def section(name: str) -> str:
    """What stands under ``## `NAME```, to the next heading of that rank."""
    found = re.search(rf"^## `{name}`\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert found, f"{PAGE.name} has no section `{name}`"
    return found[1]


def criteria(name: str) -> Iterator[Criterion]:
    for heading, stage in STAGES.items():
        part = section(name).partition(f"### {heading}\n")[2].partition("\n### ")[0]
        lines = [line for line in part.splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert rows[0] == ["criterion", "of", "met", "shown by"], heading
        assert len(rows) > 2, heading
        for row in rows[2:]:
            yield Criterion(stage, *row)


def not_there(text: str) -> list[str]:
    """Tests and pages that a text names and that do not exist."""
    tests = [
        named[0]
        for named in _NAMED.finditer(text)
        if not (path := ROOT / named[1]).exists()
        or (named[2] and f"def {named[2]}(" not in path.read_text("utf-8"))
    ]
    pages = [page for page in _LINKED.findall(text) if not (PAGE.parent / page).is_file()]
    return tests + pages


def test_there_is_a_section_for_each_gate_and_no_other() -> None:
    assert re.findall(r"^## `(\w+)`$", TEXT, re.M) == list(GATES)


@pytest.mark.parametrize("gate", GATES.values(), ids=lambda gate: gate.name)
def test_its_stage_is_the_one_of_the_code_and_was_earned(gate: FeatureGate) -> None:
    said = f"**Stage: {gate.stage.lower()}, {'on' if gate.default else 'off'} by default.**"
    assert said in section(gate.name)
    reached = list(STAGES.values())
    reached = reached[: reached.index(gate.stage) + 1]
    missing = [
        each.text for each in criteria(gate.name) if each.stage in reached and each.met != "yes"
    ]
    assert missing == []


@pytest.mark.parametrize("name", GATES)
def test_what_is_met_is_shown_and_what_is_not_says_why(name: str) -> None:
    for each in criteria(name):
        assert each.met in ("yes", "no") and each.source in ("KEP", "ours"), each
        named = _NAMED.search(each.shown) or _LINKED.search(each.shown)
        assert named if each.met == "yes" else each.shown, each


def test_everything_named_is_there() -> None:
    assert not_there(TEXT) == []
    assert not_there("`tests/docs/test_nothing.py` [a](nothing.md) `tests/docs`") == [
        "`tests/docs/test_nothing.py`",
        "nothing.md",
    ]


def test_versions_of_the_matrix_are_those_that_are_built() -> None:
    build = (ROOT / "src" / "isthmus" / "lab" / "kubernetes" / "programs.py").read_text("utf-8")
    client = (ROOT / "tests" / "interop" / "konnclient" / "go.mod").read_text("utf-8")
    kubernetes = set(re.findall(r"kube-(?:apiserver|proxy) (v[\d.]+\d)", TEXT))
    assert kubernetes == set(re.findall(r'KUBERNETES = "(v[\d.]+)"', build))
    assert set(re.findall(r"konnectivity-client (v[\d.]+\d)", TEXT)) == set(
        re.findall(r"konnectivity-client (v\S+)", client)
    )
