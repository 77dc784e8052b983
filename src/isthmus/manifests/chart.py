"""The files of the Helm chart: Chart.yaml, values, schema, reference, and the templates.

Everything is generated from declarations: the values and the trees of installation.py, which has
those of every program. The files are in deploy/helm/isthmus, and a test fails when they differ from
the generated text. Only NOTES.txt is written by hand.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from isthmus import __version__
from isthmus.manifests.alerts import rules_text
from isthmus.manifests.chart_values import Value, ValueShape, leaves
from isthmus.manifests.installation import (
    FILES,
    NEEDED,
    PARTS,
    REFUSALS,
    RULES_FILE,
    SECTIONS,
    VALUES,
)
from isthmus.manifests.installation import TEMPLATE as INSTALLATION
from isthmus.manifests.template import MISSING, Computed, Node, Template, Tree, When, hole

NAME = "isthmus"
#: The templates use a preStop that sleeps, which exists since 1.30.
KUBERNETES = ">=1.30.0-0"
_WIDTH = 100
_TOP = """\
# The values of the chart. Every one is listed in docs/reference/helm-values.md; whatever is not is
# refused. `isthmus manifest all --values=FILE` reads the same files.
"""
_PAGE = """\
# Values of the Helm chart

Every value of `deploy/helm/isthmus`, which [installs server and agents](../how-to/helm.md). They
are also what `isthmus manifest all --values=FILE` reads, which writes the same objects without
Helm. A value that is not in this list is refused, by either. *As in Kubernetes* means that the
field of the pod takes it as it is.
"""
_README = """\
# Isthmus

Joins a Kubernetes control plane and its cluster across a boundary: a server beside kube-apiserver,
agents in the cluster that dial out to it. The chart makes no keys: it wants the Secret
`isthmus-server` (`tls.crt`, `tls.key`) and the ConfigMap `isthmus-ca` (`ca.crt`) in its namespace,
and an image of yours.

```sh
helm install isthmus . --namespace isthmus-system \\
  --set image.repository=registry.example.com/isthmus
helm status isthmus --namespace isthmus-system    # what is left to do for kube-apiserver
```

Step by step it is docs/how-to/helm.md in the repository. Every value is here; whatever is not is
refused.
"""
_WRITTEN = "{{- /* Written by isthmus.manifests.chart, not by hand. */}}\n"
_NO_RULES = Computed(
    lambda _: False,
    f"and $.Values.monitoring.prometheusRule.enabled (not ($.Files.Get {json.dumps(RULES_FILE)}))",
)
_HELMS_OWN = {
    "helm.sh/chart": hole("chart"),
    "app.kubernetes.io/instance": hole("release"),
    "app.kubernetes.io/managed-by": hole("service"),
    "app.kubernetes.io/version": hole("version"),
}
TEMPLATE = Template(
    numbers=INSTALLATION.numbers,
    computed={
        **INSTALLATION.computed,
        "chart": Computed(lambda _: "", 'printf "%s-%s" $.Chart.Name $.Chart.Version'),
        "release": Computed(lambda _: "", "$.Release.Name"),
        "service": Computed(lambda _: "", "$.Release.Service"),
        "version": Computed(lambda _: "", "$.Chart.AppVersion"),
    },
)
_TITLES = {"": "Both programs", **{it.name: it.title for it in PARTS}, "monitoring": "Monitoring"}


def chart_yaml(version: str = __version__) -> str:
    """Chart.yaml: the version is that of the programs, in the form that Helm reads."""
    lines = {
        "apiVersion": "v2",
        "name": NAME,
        "description": "Joins a Kubernetes control plane and its cluster across a boundary",
        "type": "application",
        # Python's 1.2.3rc1 is not a semantic version, and Helm would refuse the chart.
        "version": re.sub(r"rc(\d+)$", r"-rc.\1", version),
        "appVersion": json.dumps(version),
        "kubeVersion": json.dumps(KUBERNETES),
        "keywords": "[konnectivity, apiserver-network-proxy, tunnel, egress]",
    }
    return "".join(f"{key}: {value}\n" for key, value in lines.items())


def values_yaml() -> str:
    """values.yaml: every default and its purpose."""
    return _TOP + "\n".join(_values(dict(leaves(VALUES)), (), 0)) + "\n"


def _values(
    known: dict[tuple[str, ...], Value], above: tuple[str, ...], depth: int
) -> Iterator[str]:
    indent = "  " * depth
    for head in dict.fromkeys(path[0] for path in known):
        below = {path[1:]: value for path, value in known.items() if path[0] == head}
        here = (*above, head)
        leaf = below.get(())
        if depth == 0:
            yield ""
        if leaf is not None:
            yield from _comment(_sentence(leaf), indent)
            yield f"{indent}{head}: {json.dumps(leaf.default)}"
            continue
        about = SECTIONS.get(".".join(here), "")
        yield from _comment(about, indent) if about else ()
        yield f"{indent}{head}:"
        yield from _values(below, here, depth + 1)


def _sentence(value: Value) -> str:
    words = [word or '""' for word in value.choices]
    listed = " or ".join(words)
    return f"{value.help} ({listed})" if listed else value.help


def _comment(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(text, _WIDTH - len(indent) - 2, break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]


def values_schema() -> str:
    """values.schema.json: undeclared values are refused."""
    root: Tree = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart isthmus",
        **_mapping(),
    }
    for path, value in leaves(VALUES):
        node = root
        for part in path[:-1]:
            node = node["properties"].setdefault(part, _mapping())
        node["properties"][path[-1]] = value.schema()
    # Helm sets this for every chart that is part of another.
    root["properties"]["global"] = {"type": "object"}
    return json.dumps(root, indent=2) + "\n"


def _mapping() -> Tree:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def reference_page() -> str:
    """docs/reference/helm-values.md."""
    groups: dict[str, list[Value]] = {key: [] for key in _TITLES}
    for (head, *_), value in leaves(VALUES):
        groups[head if head in groups else ""].append(value)
    parts = [_PAGE]
    for key, title in _TITLES.items():
        rows = "".join(map(_row, groups[key]))
        parts.append(f"## {title}\n\n| Value | Default | What it is |\n|---|---|---|\n{rows}")
    return "\n".join(parts)


def readme() -> str:
    """README.md of the chart, which `helm show readme` prints: how to install it, every value."""
    _, _, tables = reference_page().partition("\n## ")
    return f"{_README}\n## {tables}"


def _row(value: Value) -> str:
    takes = (
        ""
        if value.shape in (ValueShape.TEXT, ValueShape.WHOLE, ValueShape.YES_NO)
        else f" ({value.shape.value})"
    )
    words = "; one of " + ", ".join(f"`{word or '(empty)'}`" for word in value.choices)
    text = f"{value.help}{words if value.choices else ''}{takes}".replace("|", "\\|")
    shown = "" if value.default in ("", [], {}) else f"`{_shown(value.default)}`"
    return f"| `{value.path}` | {shown} | {text} |\n"


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "true" if default else "false"
    return ", ".join(default) if isinstance(default, list) else str(default)


def templates() -> dict[str, str]:
    """The templates, by their names."""
    checks = [(holds, why) for holds, why in REFUSALS]
    checks.append((_NO_RULES, f"monitoring.prometheusRule.enabled: this chart has no {RULES_FILE}"))
    refused = "".join(
        f"{{{{- if {holds.helm} }}}}\n{{{{- fail {json.dumps(why)} }}}}\n{{{{- end }}}}\n"
        for holds, why in checks
    )
    found = {
        name: TEMPLATE.to_helm([_labelled(each) for each in nodes]) for name, nodes in FILES.items()
    }
    return {
        name: _WRITTEN + text
        for name, text in {"checks.yaml": refused, "_notes.tpl": _for_notes(), **found}.items()
    }


def _labelled(node: Node) -> Node:
    """An object with Helm's labels."""
    if isinstance(node, When):
        other = node.otherwise
        return When(
            node.holds, _labelled(node.then), other if other is MISSING else _labelled(other)
        )
    if isinstance(node, list):
        return [_labelled(each) for each in node]
    metadata = node["metadata"]
    return {**node, "metadata": {**metadata, "labels": {**metadata["labels"], **_HELMS_OWN}}}


def _for_notes() -> str:
    """The parts that NOTES.txt includes: notes for users, and the objects that must be created
    first."""
    lines: list[str] = []
    for name, document in ((name, each) for it in PARTS for name, each in it.notes.items()):
        lines += [f'{{{{- define "isthmus.{name}" -}}}}', *TEMPLATE.lines(document), "{{- end -}}"]
    lines.append('{{- define "isthmus.needed" -}}')
    for each in NEEDED:
        remark = ""
        if each.remark is not None:
            text = TEMPLATE.plain(each.remark.then)
            remark = f"{{{{ if {each.remark.holds.helm} }}}}{text}{{{{ end }}}}"
        lines += [
            f"{{{{- if {each.holds.helm} }}}}",
            f"  {each.kind} {TEMPLATE.plain(each.name)} ({', '.join(each.keys)}){remark}",
            "{{- end }}",
        ]
    return "".join(f"{line}\n" for line in [*lines, "{{- end -}}"])


def chart_files() -> dict[str, str]:
    """The generated files of the chart, by their paths in it."""
    return {
        **{f"templates/{name}": text for name, text in templates().items()},
        "Chart.yaml": chart_yaml(),
        "README.md": readme(),
        "values.yaml": values_yaml(),
        "values.schema.json": values_schema(),
        "files/isthmus-rules.yaml": rules_text(),
    }
