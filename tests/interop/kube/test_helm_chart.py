"""The chart as Helm reads it: for the same values the objects that Python makes, or a refusal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from kube.build import KUBERNETES, Binaries
from kube.helm_cases import CHANGED, WRONG, documented, every_case
from kube.helm_chart import CHART, Helm, HelmError, by_python

from isthmus.cli.main import main
from isthmus.manifests.installation import VALUES

pytestmark = pytest.mark.interop

CASES = every_case()


@pytest.fixture
def helm(kube_binaries: Binaries, tmp_path: Path) -> Helm:
    return Helm(kube_binaries.helm, tmp_path)


def test_helm_finds_nothing_to_complain_about(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


def test_files_of_values_in_the_documents_are_cases() -> None:
    pages = {"helm-server.yaml", "helm-agents.yaml", "helm-production.yaml", "kubeadm-agents.yaml"}
    assert documented().keys() >= pages
    assert documented()["helm-server.yaml"]["server.kubeconfig.secret"] == "guest-kubeconfig"


def test_every_value_is_changed() -> None:
    assert {value.path for value in VALUES} == CHANGED.keys()
    assert all(CHANGED[value.path] != value.default for value in VALUES)


@pytest.mark.parametrize("name", CASES)
def test_both_make_the_same(helm: Helm, name: str) -> None:
    ours, helms = by_python(CASES[name]), helm.template(CASES[name])
    assert helms.keys() == ours.keys()
    for key, one in ours.items():
        assert helms[key] == one, key


@pytest.mark.parametrize("name", WRONG)
def test_both_refuse_the_same(
    helm: Helm, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, named = WRONG[name]
    with pytest.raises(HelmError, match=named):
        helm.template(changes)
    file = helm.values(changes)
    assert main(["manifest", "all", file]) == 2
    said = capsys.readouterr()
    assert named in said.err and said.out == ""


def test_it_can_be_part_of_another_chart(helm: Helm, tmp_path: Path) -> None:
    """Helm hands ``global`` to every part, which the schema must not take for a mistake."""
    outer = tmp_path / "outer"
    shutil.copytree(CHART, outer / "charts" / "isthmus")
    (outer / "Chart.yaml").write_text("apiVersion: v2\nname: outer\nversion: 1.0.0\n")
    (outer / "values.yaml").write_text("global: {a: 1}\nisthmus: {server: {name: gate}}\n")
    text = helm.run("template", "x", str(outer), f"--kube-version={KUBERNETES}")
    names = {each["metadata"]["name"] for each in yaml.safe_load_all(text) if each}
    assert {"gate", "isthmus-agent"} < names
