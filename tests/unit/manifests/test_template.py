"""Trees with holes: filled in by Python, and written as templates of Helm."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
import yaml

from isthmus.manifests.template import (
    ITEM,
    AsText,
    Chosen,
    Computed,
    Each,
    FromFile,
    Node,
    Spread,
    Template,
    Verbatim,
    When,
    given,
    hole,
    is_word,
    mapped,
    mentions,
    more_than,
)

TEMPLATE = Template(
    numbers=frozenset({"port"}),
    computed={
        "namespace": Computed(lambda chosen: chosen.namespace, "$.Release.Namespace"),
        "more": Computed(lambda chosen: chosen["port"] + 1, "add $.Values.port 1", is_number=True),
    },
)
VALUES: dict[str, Any] = {
    "port": 80,
    "name": "a",
    "kind": "x",
    "on": True,
    "off": False,
    "hosts": ["h1", "h2"],
    "labels": {"k": "v", "own": "other"},
    "args": ["--a=$(POD_IP)"],
    "deep": {"er": "text"},
}
ON, OFF = given("on"), given("off")


def fill(node: Node) -> Any:
    return TEMPLATE.fill(node, Chosen(values=VALUES, namespace="ns"))


@pytest.mark.parametrize(
    ("node", "filled"),
    [
        (hole("port"), 80),
        (hole("more"), 81),
        (f"--port={hole('port')}", "--port=80"),
        (f"{hole('name')}.{hole('namespace')}.svc", "a.ns.svc"),
        (hole("deep.er"), "text"),
        ({"a": When(OFF, 1)}, {}),
        ({"a": When(OFF, 1, otherwise=2)}, {"a": 2}),
        ({"a": When(ON, When(OFF, 1))}, {}),
        ({f"{hole('name')}.yaml": True}, {"a.yaml": True}),
        (["a", When(ON, ["b", "c"]), When(OFF, "d"), When(ON, "e")], ["a", "b", "c", "e"]),
        ([Each("hosts", f"--host={hole(ITEM)}")], ["--host=h1", "--host=h2"]),
        ([Each("hosts", {"cidr": hole(ITEM)})], [{"cidr": "h1"}, {"cidr": "h2"}]),
        ({"a": Verbatim("labels")}, {"a": VALUES["labels"]}),
        ({Spread("labels"): None, "own": "mine"}, {"k": "v", "own": "mine"}),
        ({"a": AsText({"b": hole("port")})}, {"a": "b: 80\n"}),
        ({"a": FromFile("f", {"b": 1})}, {"a": {"b": 1}}),
    ],
)
def test_holes_are_filled(node: Node, filled: Any) -> None:
    assert fill(node) == filled


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (ON & ON, True),
        (ON & OFF, False),
        (OFF | ON, True),
        (~ON, False),
        (is_word("kind", "x"), True),
        (more_than("port", 80), False),
        (mentions("args", "$(POD_IP)"), True),
        (mentions("name", "$(POD_IP)"), False),
    ],
)
def test_conditions_hold_or_not(condition: Computed, holds: bool) -> None:
    assert bool(condition.find(Chosen(values=VALUES, namespace="ns"))) is holds


def test_conditions_are_nested_for_helm() -> None:
    condition = (ON & ~OFF) | is_word("kind", "x")
    assert condition.helm == 'or (and $.Values.on (not $.Values.off)) (eq $.Values.kind "x")'


def test_a_template_has_a_line_for_each_line() -> None:
    node = {
        "kind": "Service",
        "on": "yes",
        "name": hole("name"),
        "port": hole("port"),
        "text": f"100% of {hole('port')}",
        Spread("labels"): None,
        "maybe": When(ON, {"a": 1}, otherwise=[]),
        "list": [{"a": 1, "b": "c"}, {"a": When(ON, 2)}, Each("hosts", hole(ITEM))],
        "whole": Verbatim("labels"),
        "yaml": AsText({"a": hole("name")}),
        "file": FromFile("f.yaml", {}),
    }
    assert TEMPLATE.to_helm([When(ON, [node])]) == dedent(
        """\
        {{- if $.Values.on }}
        ---
        kind: Service
        "on": "yes"
        name: {{ $.Values.name | quote }}
        port: {{ int64 $.Values.port }}
        text: {{ printf "100%% of %v" (int64 $.Values.port) | quote }}
        {{- with omit $.Values.labels "kind" "on" "name" "port" "text" "maybe" "list" "whole" "yaml" "file" }}
        {{- toYaml . | nindent 0 }}
        {{- end }}
        {{- if $.Values.on }}
        maybe:
          a: 1
        {{- else }}
        maybe: []
        {{- end }}
        list:
          - a: 1
            b: c
          -
            {{- if $.Values.on }}
            a: 2
            {{- end }}
          {{- range $.Values.hosts }}
          - {{ . | quote }}
          {{- end }}
        whole:
          {{- toYaml $.Values.labels | nindent 2 }}
        yaml: |
          a: {{ $.Values.name | quote }}
        file:
          {{- $.Files.Get "f.yaml" | nindent 2 }}
        {{- end }}
        """  # noqa: E501
    )


@pytest.mark.parametrize("text", ["a: b", "true", "No", "1", "-", "# a", "a #b", "a/b.c", ""])
def test_a_text_without_holes_stays_one_text(text: str) -> None:
    (line,) = TEMPLATE.lines({"a": text})
    assert yaml.safe_load(line) == {"a": text}


def test_a_conditional_node_is_changed_inside() -> None:
    found = mapped([1, When(ON, [2], otherwise=3), When(OFF, 4)], lambda number: number * 10)
    assert found == [10, When(ON, [20], otherwise=30), When(OFF, 40)]
