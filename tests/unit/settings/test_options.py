from __future__ import annotations

from dataclasses import dataclass

import pytest

from isthmus.errors import ConfigError
from isthmus.settings.options import Kind, given_in_vain, option, options_of
from isthmus.settings.parsing import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    name: str = option("x", help="Call it so", env="SAMPLE_NAME")
    size: int = option(3, help="Count so many")
    port: int | None = option(None, help="Listen here", shown_default="any")
    rate: float = option(0.0, help="Limit it so", inert=True)
    wait_s: float = option(1.5, help="Wait so long", unit="seconds")
    really: bool = option(False, help="Mean it", inert=True)
    hosts: tuple[str, ...] = option(("a",), help="Use these", repeat=True, flag="host")
    rules: tuple[str, ...] = option((), help="Try these")


def test_flag_and_kind_follow_from_the_declaration() -> None:
    assert [(each.flag, each.kind) for each in options_of(Sample)] == [
        ("name", Kind.TEXT),
        ("size", Kind.INT),
        ("port", Kind.INT),
        ("rate", Kind.NUMBER),
        ("wait", Kind.DURATION),
        ("really", Kind.BOOL),
        ("host", Kind.LIST),
        ("rules", Kind.LIST),
    ]


def test_defaults_are_shown_as_they_would_be_typed() -> None:
    shown = {each.attribute: each.shown for each in options_of(Sample)}
    assert shown == {
        "name": "x",
        "size": "3",
        "port": "any",
        "rate": "0",
        "wait_s": "1.5s",
        "really": "false",
        "hosts": "a",
        "rules": "",
    }


def test_reads_every_kind() -> None:
    given = {
        "name": ["y"],
        "size": ["-7"],
        "port": ["0"],
        "rate": ["2.5"],
        "wait_s": ["1h30m"],
        "really": ["T"],
        "hosts": ["b", "c,d"],
        "rules": ["r1", "r2, ,r3"],
    }
    assert load(Sample, given, {}) == Sample(
        name="y",
        size=-7,
        port=0,
        rate=2.5,
        wait_s=5400.0,
        really=True,
        hosts=("b", "c", "d"),
        rules=("r2", "r3"),
    )


def test_the_last_text_wins() -> None:
    assert load(Sample, {"size": ["1", "2"]}, {}).size == 2


@pytest.mark.parametrize(
    ("given", "environ", "name"),
    [
        ([], {}, "x"),
        ([], {"SAMPLE_NAME": "env"}, "env"),
        ([], {"SAMPLE_NAME": ""}, "x"),
        (["flag"], {"SAMPLE_NAME": "env"}, "flag"),
        ([""], {"SAMPLE_NAME": "env"}, ""),
    ],
)
def test_environment_counts_where_the_flag_is_not_given(
    given: list[str], environ: dict[str, str], name: str
) -> None:
    assert load(Sample, {"name": given}, environ).name == name


@pytest.mark.parametrize(
    ("attribute", "text", "sentence"),
    [
        ("size", "1_0", "--size: '1_0' is not a whole number"),
        ("size", "", "--size: '' is not a whole number"),
        ("rate", "nan", "--rate: 'nan' is not a number"),
        ("really", "yes", "--really: 'yes' is neither true nor false"),
        ("wait_s", "10", "--wait: '10' is not a duration such as 500ms, 10s or 1h30m"),
    ],
)
def test_what_cannot_be_read_names_the_flag(attribute: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Sample, {attribute: [text]}, {})
    assert str(caught.value) == sentence


def test_flags_given_in_vain_are_named() -> None:
    assert given_in_vain(Sample, {"name": ["y"], "rate": []}) == []
    given = {"really": ["false"], "rate": ["1"], "name": ["y"]}
    assert given_in_vain(Sample, given) == ["--rate", "--really"]
