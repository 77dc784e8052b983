"""The chart's files that are written from declarations, and reading values.

ISTHMUS_REGENERATE=1 writes the files anew.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus import __version__
from isthmus.cli.main import main
from isthmus.errors import ConfigError
from isthmus.manifests.chart import chart_files, chart_yaml, readme, reference_page, templates
from isthmus.manifests.chart_parts import image_of, image_values
from isthmus.manifests.chart_values import Value, ValueShape, defaults, merged, read
from isthmus.manifests.installation import SECTIONS, VALUES

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "isthmus"
PAGE = ROOT / "docs" / "reference" / "helm-values.md"


def files() -> dict[Path, str]:
    return {PAGE: reference_page(), **{CHART / path: text for path, text in chart_files().items()}}


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_a_file_is_what_would_be_written(path: Path) -> None:
    if os.environ.get("ISTHMUS_REGENERATE"):
        path.write_text(files()[path])
    assert path.read_text() == files()[path]


def test_the_chart_has_the_version_of_the_programs() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


@pytest.mark.parametrize(
    ("version", "chart"),
    [("1.2.3", "1.2.3"), ("1.2.3rc1", "1.2.3-rc.1"), ("10.0.0rc12", "10.0.0-rc.12")],
)
def test_helm_reads_every_version_that_set_version_takes(version: str, chart: str) -> None:
    found = yaml.safe_load(chart_yaml(version))
    assert (found["version"], found["appVersion"]) == (chart, version)


def test_what_the_readme_sets_are_values() -> None:
    said = re.findall(r"--set ([\w.]+)=", readme())
    assert said and set(said) <= {value.path for value in VALUES}
    for name in re.findall(r"(?:Secret|ConfigMap)\s+`([\w-]+)`", readme()):
        assert name in {value.default for value in VALUES if value.shape is ValueShape.TEXT}


def test_values_are_the_defaults() -> None:
    assert yaml.safe_load((CHART / "values.yaml").read_text()) == defaults(VALUES)
    assert read((CHART / "values.yaml").read_text(), "values.yaml", VALUES) == defaults(VALUES)


def test_every_section_is_one() -> None:
    paths = {value.path for value in VALUES}
    assert len(paths) == len(VALUES)
    for section in SECTIONS:
        assert any(path.startswith(f"{section}.") for path in paths), section


def strict(schema: dict[str, Any], path: str = "") -> None:
    if schema.get("type") != "object" or "properties" not in schema:
        return
    assert schema["additionalProperties"] is False, path
    for key, below in schema["properties"].items():
        strict(below, f"{path}.{key}")


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    strict(schema)
    for value in VALUES:
        node = schema
        for part in value.path.split("."):
            node = node["properties"][part]
        assert node["description"] == value.help
        for pattern in (value.pattern, value.refusal):
            re.compile(pattern)


def test_templates_read_every_value_and_no_other() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    read = set(re.findall(r"\.Values\.((?:\w+\.)*\w+)", text)) - {"server", "agent", "monitoring"}
    assert read == {value.path for value in VALUES}


def test_no_template_is_left_over() -> None:
    names = {path.name for path in (CHART / "templates").iterdir()}
    assert names == {*templates(), "NOTES.txt"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "v.yaml: is empty"),
        ("[]", "v.yaml:1:1: must be a mapping, not a list"),
        ("servr: {}", "v.yaml:1:1: unknown key 'servr', did you mean server?"),
        ("server: {replicas: many}", "v.yaml:1:20: server.replicas: must be a whole number"),
        ("server: {kind: Daemonset}", "server.kind: must be 'daemonset' or 'deployment'"),
        ("server: {enabled: yes}", "server.enabled: must be true or false"),
        ("server: {strategies: [best]}", "server.strategies[0]: must be 'default' or"),
        ("agent: {name: 'a\n\n'}", "agent.name: 'a\\n' does not match"),
        ("agent: {extraArgs: [--target=1:a:1]}", "--target is not for here: Further flags of the"),
        ("agent: {podLabels: {a: 1}}", "agent.podLabels.a: must be text"),
        ("agent: {tolerations: {}}", "agent.tolerations: must be a list"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, "v.yaml", VALUES)
    assert said in str(caught.value)


def test_files_of_values_go_over_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("image: {tag: '1'}\nserver: {name: gate}\nglobal: {any: thing}\n")
    two.write_text("image: {tag: '2'}\n")
    assert main(["manifest", "all", f"--values={one}", f"--values={two}"]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    spec = named["DaemonSet", "gate"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "isthmus:2"


def test_one_tree_over_another() -> None:
    assert merged({"a": {"b": 1, "c": [1]}}, {"a": {"c": [2]}}) == {"a": {"b": 1, "c": [2]}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("server: {enabled: false}", "agent.servers.hosts is empty"),
        ("server: {extraArgs: [--no-such=1]}", "server.extraArgs: unknown flag --no-such"),
        ("server: {extraArgs: [--policy-file]}", "server.extraArgs: --policy-file needs a value"),
        ("agent: {extraArgs: [--dial-timeout=-1s]}", "--dial-timeout must not be negative"),
        ("server: {extraArgs: [--insecure-agents]}", "--insecure-agents and --agent-namespace"),
        ("server: {networkPolicy: {allowCidrs: [10.0.0.1/8]}}", "--allow-cidr 10.0.0.1/8 has"),
        ("server: {frontend: {socket: /run/server.sock}}", "--uds-name /run/server.sock: /run"),
    ],
)
def test_values_that_do_not_go_together_are_one_sentence(
    values: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(values)
    assert main(["manifest", "all", f"--values={file}"]) == 2
    found = capsys.readouterr()
    assert found.err.removeprefix("isthmus: ").startswith(said) and found.out == ""


def test_a_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", "all", "--values=/no/such"]) == 2
    assert "cannot read --values /no/such" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert main(["manifest", "all", f"--values={tmp_path}/binary"]) == 2
    assert "is not text in UTF-8" in capsys.readouterr().err


def test_a_value_can_be_wrong_in_every_shape() -> None:
    for shape in ValueShape:
        value = Value(path="a", default=None, help="Say", shape=shape)
        wrong = "a: {b: [c]}" if shape not in (ValueShape.OBJECT, ValueShape.WORDS) else "a: [c]"
        with pytest.raises(ConfigError, match="v:1:"):
            read(wrong, "v", [value])


@pytest.mark.parametrize(
    "image",
    ["i", "a.example:5000/b/i", "a.example/i:1", "a.example:5000/i:1@sha256:2", "i@sha256:2"],
)
def test_an_image_is_taken_apart_and_put_together(image: str) -> None:
    values = image_values(image)
    whole = image_of({**values, "tag": values["tag"] or "MINE"})
    assert whole.replace(":MINE", "") == image


def test_the_whole_installation_has_the_image_of_the_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["manifest", "all", "--image=a.example:5000/i:7"]) == 0
    found = capsys.readouterr()
    assert found.out.count("image: a.example:5000/i:7\n") == found.out.count("image: ") > 1
    assert "make image" not in found.err
    assert main(["manifest", "all"]) == 0
    assert "no registry has the image isthmus:" in capsys.readouterr().err
