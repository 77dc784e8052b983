"""The chart as tests use it: rendered by Helm, and by Python for the same values."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from kube.api import Api
from kube.build import KUBERNETES
from kube.programs import environment

from isthmus.manifests.chart_values import defaults, put
from isthmus.manifests.installation import VALUES, installation

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "isthmus"
NAMESPACE = "tunnels"  # not one that a page of the documents makes
RELEASE = "tunnel"
LIMIT_S = 60.0
Changes = Mapping[str, Any]
Object = dict[str, Any]
Key = tuple[str, str, str]
# What Helm adds to every object, and nobody else knows.
_HELMS_OWN = (
    "helm.sh/chart", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
)  # fmt: skip


class HelmError(Exception):
    """Helm said no; the text is what it said."""


class Helm:
    """The program, with a home of its own; ``api`` is whom it talks to, if it has to."""

    def __init__(self, program: Path, home: Path, api: Api | None = None) -> None:
        self._program = program
        self._home = home
        self._api = api

    def run(self, *args: str) -> str:
        """Run it to its end; its output.

        Raises:
            HelmError: it failed.
        """
        known = [f"--kubeconfig={self._api.kubeconfig}"] if self._api is not None else []
        done = subprocess.run(
            [str(self._program), *args, *known],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env=environment(
                HOME=str(self._home), XDG_CACHE_HOME=str(self._home / "cache"),
                XDG_CONFIG_HOME=str(self._home / "config"), XDG_DATA_HOME=str(self._home / "data"),
            ),
        )  # fmt: skip
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def values(self, changes: Changes) -> str:
        """A file of values with these changes, by their paths."""
        tree: Object = {}
        for path, what in changes.items():
            put(tree, tuple(path.split(".")), what)
        file = self._home / "values.json"  # which is YAML too
        file.write_text(json.dumps(tree))
        return f"--values={file}"

    def template(self, changes: Changes) -> dict[Key, Object]:
        """What the chart makes of these values."""
        flags = (f"--namespace={NAMESPACE}", f"--kube-version={KUBERNETES}", self.values(changes))
        text = self.run("template", RELEASE, str(CHART), *flags)
        return by_key(each for each in yaml.safe_load_all(text) if each)


def by_python(changes: Changes) -> dict[Key, Object]:
    """What Python makes of the same values."""
    values = defaults(VALUES)
    for path, what in changes.items():
        put(values, tuple(path.split(".")), what)
    return by_key(installation(values, NAMESPACE))


def by_key(objects: Iterable[Object]) -> dict[Key, Object]:
    """Objects by kind, namespace and name, each once, without what is Helm's own."""
    found: dict[Key, Object] = {}
    for each in objects:
        metadata = dict(each["metadata"])
        labels = metadata["labels"]
        metadata["labels"] = {key: text for key, text in labels.items() if key not in _HELMS_OWN}
        key = each["kind"], metadata.get("namespace", ""), metadata["name"]
        assert key not in found, key
        found[key] = {**each, "metadata": metadata}
        if each["kind"] == "ConfigMap":
            # Texts may be written otherwise and mean the same.
            data = {name: yaml.safe_load(text) for name, text in each["data"].items()}
            found[key]["data"] = data
    return found
