"""The page about the two versions says what their models do, and shows what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.hosting.comparison import comparison_lines
from isthmus.hosting.convert import convert
from isthmus.hosting.document import read
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    Platform,
    Strategy,
    StrategyVerdict,
)
from isthmus.hosting.models import V1ALPHA1, V1BETA1
from isthmus.hosting.plan import table
from isthmus.hosting.rules_v1alpha1 import RULES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "publishing-versions.md").read_text()
PRIVATE = (ROOT / "examples" / "publishing" / "v1alpha1" / "private.yaml").read_text()
WORDS = {
    StrategyVerdict.PUBLISHED: "yes",
    StrategyVerdict.REFUSED: "no",
    StrategyVerdict.IGNORED: "no effect",
    StrategyVerdict.HIDDEN: "not published",
}


def between(name: str) -> str:
    return PAGE.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]


def rows(name: str) -> list[list[str]]:
    lines = between(name).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_matrix() -> None:
    found = rows("matrix of v1alpha1")
    assert [row[0] for row in found] == [each.value for each in ControlPlaneService]
    for service, row in zip(ControlPlaneService, found, strict=True):
        for strategy, said in zip(Strategy, row[1:], strict=True):
            aws, other = (
                WORDS[V1ALPHA1.verdict(service, strategy, platform)]
                for platform in (Platform.AWS, Platform.AGENT)
            )
            assert said == (aws if aws == other else "on AWS"), (service, strategy)


def test_the_topologies() -> None:
    found = {row[0]: [set(filter(None, cell.split(", "))) for cell in row[1:]]
             for row in rows("topologies of v1alpha1")}  # fmt: skip
    assert found == {
        access.value: [{each.value for each in side} for side in (shown.public, shown.private)]
        for access, shown in V1ALPHA1.shown.items()
    }
    assert list(found) == [each.value for each in EndpointAccess]


def test_the_rules() -> None:
    """As python -c "from isthmus.hosting.plan import ..." prints them, without the last column."""
    assert between("rules of v1alpha1") == re.sub(r"[^|]*\|$", "", table(RULES), flags=re.M)


def test_what_the_commands_print() -> None:
    cluster = read(PRIVATE, "private.yaml")
    assert "".join(f"{line}\n" for line in comparison_lines(cluster)) in PAGE
    done = convert(PRIVATE, "private.yaml", V1BETA1)
    assert "".join(f"isthmus: {line}\n" for line in (*done.edits, *done.sight)) in PAGE


def test_the_example_of_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PRIVATE.replace("  networking:\n", "      roles: []\n  networking:\n")
    Path("private.yaml").write_text(text)
    assert main(["publish", "convert", "private.yaml"]) == 2
    assert capsys.readouterr().err in PAGE
