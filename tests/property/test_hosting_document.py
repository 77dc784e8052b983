"""Any text is read as a HostedCluster or refused with its place; what is read can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.hosting.document import TREES, read
from isthmus.hosting.document_fields import Tree
from isthmus.hosting.model import ControlPlaneService, EndpointAccess, Platform, Strategy
from isthmus.hosting.plan import RULES_OF, check

EXAMPLES = Path(__file__).parents[2] / "examples" / "publishing"
TEXTS = [path.read_text() for path in sorted(EXAMPLES.rglob("*.yaml"))]
WORDS = [
    *(
        str(each.value)
        for kind in (Platform, EndpointAccess, ControlPlaneService, Strategy)
        for each in kind
    ),
    *("10.0.0.0/8", "172.20.0.0/16", "fd00::/8", "0.0.0.0/0", "172.20.0.1", "::1", "999.0.0.1/9"),
    *("api.example.com", "*.example.com", "a..b", "-", "http://me:p@x:1", "https://x", "1-2"),
    *("PrivateLink", "Swift", "WorkloadIdentities", "ManagedIdentities"),
]
SCALARS = st.sampled_from(WORDS) | st.integers(-1, 70000) | st.booleans() | st.none() | st.text()
ANYTHING = st.recursive(
    SCALARS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(), inside, max_size=3),
    max_leaves=5,
)


def shaped(tree: Tree) -> st.SearchStrategy[Any]:
    """Values as HyperShift has them, with something else here and there."""
    if tree is None:
        return st.sampled_from(WORDS) | st.lists(st.sampled_from(WORDS), max_size=3) | ANYTHING
    if isinstance(tree, list):
        return st.lists(shaped(tree[0]), max_size=6) | ANYTHING
    names = sorted(tree)
    return st.lists(st.sampled_from(names), max_size=5, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: shaped(tree[name]) for name in chosen})
    )


def documents(version: str) -> st.SearchStrategy[dict[str, Any]]:
    spec: Any = TREES[version]["spec"]
    parts = {name: shaped(spec[name]) for name in ("services", "networking", "configuration")}
    platform = st.fixed_dictionaries(
        {"type": st.sampled_from([each.value for each in Platform])},
        optional={name: shaped(tree) for name, tree in spec["platform"].items() if name != "type"},
    )
    return st.fixed_dictionaries(
        {
            "apiVersion": st.just(version),
            "kind": st.just("HostedCluster"),
            "metadata": st.just({"name": "a"}),
            "spec": st.fixed_dictionaries({"platform": platform}, optional=parts),
        }
    )


def read_or_refused(text: str) -> None:
    try:
        cluster = read(text, "c.yaml")
    except ConfigError as error:
        lines = str(error).splitlines()
        assert lines
        assert all(line.startswith("c.yaml:") for line in lines)
        return
    names = {rule.name for rule in RULES_OF[cluster.model.api_version]}
    lines = text.splitlines()
    for finding in check(cluster):
        assert finding.rule in names
        assert 1 <= finding.place.line <= max(1, len(lines))
        assert finding.place.field


@given(st.sampled_from(sorted(TREES)).flatmap(documents))
def test_a_document_of_any_values(document: dict[str, Any]) -> None:
    read_or_refused(yaml.safe_dump(document, sort_keys=False))


@given(ANYTHING)
def test_any_yaml(value: Any) -> None:
    read_or_refused(yaml.safe_dump(value))


@given(st.text())
def test_any_text(text: str) -> None:
    read_or_refused(text)


@given(st.data())
def test_an_example_with_something_else_in_it(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(TEXTS)).splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    key, colon, _ = lines[number].partition(":")
    said = data.draw(st.sampled_from(WORDS) | st.text(max_size=20))
    choices = [f"{key}{colon} {said}", said, "", lines[number] + said]
    lines[number : number + data.draw(st.integers(1, 3))] = [data.draw(st.sampled_from(choices))]
    read_or_refused("\n".join(lines))
