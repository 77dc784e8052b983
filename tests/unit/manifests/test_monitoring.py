"""``isthmus manifest monitoring`` writes what deploy/ has."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from isthmus.cli.main import main
from isthmus.manifests.command import command

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.mark.parametrize(
    ("part", "file"),
    [("rules", "prometheus/isthmus-rules.yaml"), ("grafana", "grafana/isthmus.json")],
)
def test_it_writes_the_files_of_deploy(part: str, file: str) -> None:
    ran = CliRunner().invoke(command, ["monitoring", "--part", part])
    assert ran.exit_code == 0
    assert ran.stdout == (DEPLOY / file).read_text()


def test_the_object_of_the_operator_has_the_name_asked_for() -> None:
    ran = CliRunner().invoke(
        command, ["monitoring", "--part=prometheus-rule", "--name=mine", "--namespace=watch"]
    )
    meta = yaml.safe_load(ran.stdout)["metadata"]
    assert (meta["name"], meta["namespace"]) == ("mine", "watch")


def test_a_wrong_output_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "monitoring", "--part=garfana"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "garfana" in said
