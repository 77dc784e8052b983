from __future__ import annotations

import re
from enum import Enum

import pytest

from isthmus.errors import ConfigError
from isthmus.text.located_yaml import Fields, Located, compose, compose_all


class Colour(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


def root(text: str) -> Located:
    return compose(text, "x.yaml")


def said(node: Located) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        node.errors.raise_any()
    return str(caught.value).splitlines()


def test_nothing_wrong_raises_nothing() -> None:
    node = root("a: 1")
    assert node.mapping(["a"])["a"].integer(0, 9) == 1
    node.errors.raise_any()


def test_a_node_knows_its_path_and_its_line() -> None:
    node = root("a:\n- b: x\n").mapping(["a"])["a"].items()[0].mapping(["b"])["b"]
    assert (node.path, node.where) == ("a[0].b", "x.yaml:2")
    assert repr(node) == "<a[0].b at x.yaml:2>"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2", "x.yaml:2:1: unknown key 'b'"),
        ("name: 1\nnmae: 2", "x.yaml:2:1: unknown key 'nmae', did you mean name?"),
        ("a: 1\na: 2", "x.yaml:2:1: a: is there twice"),
        ("? [a]\n: 1", "x.yaml:1:3: unknown key a list"),
        ("<<: {a: 1}", "x.yaml:1:1: unknown key '<<'"),
        ("- a", "x.yaml:1:1: must be a mapping, not a list"),
    ],
)
def test_a_mapping_has_the_known_keys_once(text: str, told: str) -> None:
    node = root(text)
    node.mapping(["a", "name"])
    assert said(node) == [told]


def test_a_required_key_is_missed_at_the_mapping() -> None:
    node = root("a: {}")
    node.mapping(["a"])["a"].mapping(["b"], required=["b"])
    assert said(node) == ["x.yaml:1:4: a.b: is missing"]


def test_free_keys_are_texts_and_come_once() -> None:
    node = root("b: 1\na: 2\n1: 3\na: 4\n")
    found = node.entries(most=9)
    assert list(found) == ["b", "a"]
    assert (found["a"].key.path, found["a"].value.path) == ("a", "a")
    assert said(node) == [
        "x.yaml:3:1: must be text, not '1' (YAML: int): put it in quotes",
        "x.yaml:4:1: a: is there twice",
    ]


def test_a_strange_free_key_is_one_line_of_a_message() -> None:
    node = root('"a\\nb": 1\n' + "x" * 100 + ": 1\n")
    for entry in node.entries(most=2).values():
        entry.key.error("is strange")
    first, second = said(node)
    assert first == "x.yaml:1:1: 'a\\nb': is strange"
    assert second.startswith("x.yaml:2:1: 'xxx")


def test_too_many_are_none() -> None:
    node = root("a: [1, 2, 3]\nb: {c: 1, d: 2}\n")
    found = node.mapping(["a", "b"])
    assert found["a"].items(most=2) == []
    assert found["b"].entries(most=1) == {}
    assert said(node) == [
        "x.yaml:1:4: a: has 3 items, at most 2 are possible",
        "x.yaml:2:4: b: has 2 entries, at most 1 are possible",
    ]


@pytest.mark.parametrize("text", ["0", "7", "1_000", "12_345"])
def test_whole_numbers(text: str) -> None:
    node = root(text)
    assert node.integer(0, 20_000) == int(text)
    node.errors.raise_any()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-1", "-1"),
        ("11", "11"),
        ("1.5", "1.5"),
        ("0x5", "0x5"),
        ("07", "07"),
        ("1:30", "1:30"),
        ("1_0", "1_0"),
        (".inf", ".inf"),
        ("'7'", "'7'"),
        ("yes", "'yes' (YAML: bool)"),
        ("", "nothing"),
        ("!!int [7]", "a list"),
    ],
)
def test_what_is_no_whole_number_in_range(text: str, shown: str) -> None:
    node = root(f"a: {text}").mapping(["a"])["a"]
    assert node.integer(0, 10) == 0
    assert said(node) == [
        f"x.yaml:1:{3 if not text else 4}: a: must be a whole number from 0 to 10, not {shown}"
    ]


def test_numbers() -> None:
    node = root("[0.5, 2, 0.95, .nan, 1.]")
    assert [one.number(0, 2) for one in node.items()[:3]] == [0.5, 2.0, 0.95]
    for one in node.items()[3:]:
        one.number(0, 0.9)
    assert said(node) == [
        "x.yaml:1:16: [3]: must be a number from 0 to 0.9, not .nan",
        "x.yaml:1:22: [4]: must be a number from 0 to 0.9, not 1.",
    ]


def test_a_word_of_an_enumeration() -> None:
    node = root("[red, gren, 7]")
    assert [one.member(Colour) for one in node.items()] == [Colour.RED, None, None]
    assert said(node) == [
        "x.yaml:1:7: [1]: must be red, green or blue, not 'gren', did you mean green?",
        "x.yaml:1:13: [2]: must be text, not '7' (YAML: int): put it in quotes",
    ]


def test_a_reference_is_declared_elsewhere() -> None:
    node = root("[alpha, alfa]")
    assert [one.reference(["alpha"], "thing") for one in node.items()] == ["alpha", ""]
    assert said(node) == ["x.yaml:1:9: [1]: there is no thing 'alfa', did you mean alpha?"]


def test_text_or_a_whole_number_as_it_is_written() -> None:
    node = root("[7, '07', a b, 07, true]")
    assert [one.text_or_number() for one in node.items()] == ["7", "07", "a b", None, None]
    assert len(said(node)) == 2


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: x {y}", "1:6"),
        ("a: |\n  one\n  two {y}\n", "3:7"),
        ("a: >\n  one\n  {y} two\n", "3:3"),
        ("a: 'one\n  two {y}'", "2:7"),
        ('a: "\\x7by}"', "1:4"),  # escaped: not to be found, so the beginning
    ],
)
def test_an_error_points_into_a_text(text: str, place: str) -> None:
    node = root(text).mapping(["a"])["a"]
    node.error("is wrong", at="{y}")
    assert said(node) == [f"x.yaml:{place}: a: is wrong"]


def test_fields_have_defaults() -> None:
    found = Fields()
    assert found.text("a", "d") == "d"
    assert found.boolean("a", True) is True
    assert found.integer("a", 3, 5, 9) == 3
    assert found.number("a", 0.5, 5, 9) == 0.5
    assert found.member("a", Colour.RED) is Colour.RED
    assert found.value("a", int, 4) == 4
    assert found.listed("a", str) == ()
    assert found.nodes("a", most=1) == found.one_or_nodes("a", most=1) == []


def test_one_or_a_list() -> None:
    found = root("{a: x, b: [x, y]}").mapping(["a", "b"])
    assert [one.path for one in found.one_or_nodes("a", most=5)] == ["a"]
    assert [one.path for one in found.one_or_nodes("b", most=5)] == ["b[0]", "b[1]"]


def test_several_documents_share_their_errors() -> None:
    first, second = compose_all("---\na: 1\n---\n---\nb: 2\n", "x.yaml")
    second.mapping(["a"])
    first.mapping(["b"])
    expected = ["x.yaml:2:1: unknown key 'a'", "x.yaml:5:1: unknown key 'b'"]
    assert said(first) == said(second) == expected


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "---\n---\n"])
def test_no_document_among_several(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.yaml: is empty, one is needed$"):
        compose_all(text, "x.yaml", expected="one is needed")


@pytest.mark.parametrize("text", ["a: [", "---\na: 1\n---\nb: [\n"])
def test_what_is_no_yaml_among_several(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.yaml:\d+:\d+: not YAML: "):
        compose_all(text, "x.yaml")


def test_too_many_errors_are_counted() -> None:
    node = root("[" + "1, " * 30 + "]")
    for one in node.items():
        one.text()
    lines = said(node)
    assert len(lines) == 21
    assert lines[-1] == "x.yaml: and 10 more"


def test_what_anchors_repeat_is_bounded() -> None:
    lists = "\n".join(f"- *a  # {number}" for number in range(700))
    text = "first: &a [" + ", ".join(["x"] * 1000) + "]\nlists:\n" + lists + "\n"
    found = compose(text, "doc").mapping(("first", "lists"))
    with pytest.raises(ConfigError) as caught:
        for each in found.nodes("lists", most=1000):
            each.items()
    assert re.fullmatch(
        r"doc:\d+:\d+: lists\[\d+\](\[\d+\])?: has too much below it: more than 600000 values,"
        r" anchors repeated",
        str(caught.value),
    )
