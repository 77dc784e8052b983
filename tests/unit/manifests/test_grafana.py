"""The dashboard for Grafana: PromQL over metrics of ours, and panels that do not overlap."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.manifests.grafana import grafana_text
from isthmus.tools.metrics_reference import every_name

ROOT = Path(__file__).parents[3]
FILE = "deploy/grafana/isthmus.json"
NAMES = re.compile(r"\b((?:isthmus|konnectivity_network_proxy|kubeproxy)_[a-z0-9_]+)\b")


def panels() -> Iterator[dict[str, Any]]:
    for panel in json.loads(grafana_text())["panels"]:
        yield panel
        yield from panel.get("panels", ())


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def test_the_file_is_current() -> None:
    assert (ROOT / FILE).read_text() == grafana_text(), (
        "run: isthmus manifest monitoring --part=grafana > deploy/grafana/isthmus.json"
    )


def test_every_panel_says_what_it_shows_and_has_a_number_of_its_own() -> None:
    found = list(panels())
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        assert panel["type"] == "row" or (panel["title"] and panel["description"].endswith("."))


def test_panels_lie_beside_one_another() -> None:
    for one, other in itertools.combinations(json.loads(grafana_text())["panels"], 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = (
            a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        )  # fmt: skip
        assert apart, f"{one['title']} and {other['title']} overlap"
        assert a["x"] + a["w"] <= 24


@pytest.mark.parametrize("expr", expressions())
def test_every_metric_named_is_ours(expr: str) -> None:
    ours = every_name()
    bare = re.sub(r'__name__=~"[^"]+"', "", expr)
    for name in NAMES.findall(bare):
        assert re.sub(r"_(bucket|sum|count)$", "", name) in ours or name in ours, name


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_reads_every_query(tmp_path: Path) -> None:
    # Grafana puts its variables in before Prometheus reads a query.
    queries = [expr.replace("$__rate_interval", "5m") for expr in expressions()]
    rules = [{"record": f"panel:{n}", "expr": expr} for n, expr in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    ran = subprocess.run(
        ["promtool", "check", "rules", "--lint=none", str(file)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
