"""Topologies of any text and any shape: read, or told what is wrong, and nothing else."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.lab import catalog, reading, reading_hosts, reading_steps
from isthmus.lab.commands import fill, known, unknown
from isthmus.lab.reading import read
from isthmus.lab.topology import Topology

DOCUMENT = catalog.text("isolated-cluster")
KEYS = sorted(
    {
        key
        for module in (reading, reading_hosts, reading_steps)
        for name, keys in vars(module).items()
        if name.endswith("_KEYS")
        for key in keys
    }
)
WORDS = [
    *("a", "b", "lan", "p", "t", "w", "direct", "refused", "grpc", "http-connect", "drop"),
    *("10.0.0.0/24", "10.0.0.1", "10.0.0.9", "10.0.0.9:80", "fd00::/64", "fd00::9", "[fd00::9]:1"),
    *("a:80", "http://a/", "http://[", "tcp:80", "isthmus server", "{dir}", "{x}", "'", "", "\0"),
    *("net.ipv4.x", "(", "[[", "\n", "~", "<<", "wall", "x" * 50),
]

words = st.sampled_from(WORDS) | st.text(max_size=5)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 70_000)
    | st.floats(allow_nan=True)
    | st.dates()
    | st.binary(max_size=3)
    | words
)
keys = st.sampled_from([*KEYS, *WORDS]) | st.integers(0, 3) | st.booleans()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=25,
)
named = st.dictionaries(words, values, max_size=3)
hosts = st.dictionaries(
    words,
    st.dictionaries(st.sampled_from(reading_hosts.HOST_KEYS), values | named, max_size=7),
    max_size=3,
)
step = st.dictionaries(st.sampled_from(KEYS), values, max_size=5)
right = {
    "title": "x",
    "networks": {"lan": {"cidr": ["10.0.0.0/24", "fd00::/64"]}},
    "hosts": {"a": {"at": {"lan": "10.0.0.9"}, "processes": {"p": "isthmus server"}}},
    "ways": {"w": {"protocol": "grpc", "uds": "/w"}},
}
parts = st.fixed_dictionaries(
    {},
    optional={
        **{key: values for key in ("title", "about", "wall", "names", "files", "needs")},
        "networks": st.dictionaries(words, values, max_size=3),
        "hosts": hosts,
        "ways": st.dictionaries(words, values, max_size=3),
        "allow": st.lists(step, max_size=3),
        "steps": st.lists(step, max_size=4),
        "congestion_control": values,
    },
)


def check(text: str) -> Topology | None:
    try:
        return read(text, name="t", source="t.yaml")
    except ConfigError as error:
        lines = str(error).splitlines()
        assert lines
        assert len(lines) <= 21
        assert all(line.startswith("t.yaml:") and line.isprintable() for line in lines)
        return None


@given(st.text(max_size=100) | st.text(alphabet="{}[]:,-&*!|>'\"%# \n\ta1\\Ux", max_size=60))
def test_any_text_is_a_topology_or_a_config_error(text: str) -> None:
    check(text)


@given(
    st.integers(0, len(DOCUMENT)), st.integers(0, 12), st.text("{}[]:,-&*! \n\"'a1~", max_size=6)
)
def test_a_damaged_topology_is_one_or_a_config_error(at: int, cut: int, put: str) -> None:
    check(DOCUMENT[:at] + put + DOCUMENT[at + cut :])


@given(values)
def test_any_structure_is_a_topology_or_a_config_error(value: Any) -> None:
    check(yaml.safe_dump(value, allow_unicode=True))


@given(parts)
def test_any_parts_are_a_topology_or_a_config_error(given: dict[str, Any]) -> None:
    check(yaml.safe_dump({**right, **given}))


@given(st.lists(step, max_size=4))
def test_any_steps_are_read_or_a_config_error(steps: list[dict[str, Any]]) -> None:
    check(yaml.safe_dump({**right, "steps": steps}))


def test_what_the_others_damage_is_right_itself() -> None:
    found = check(yaml.safe_dump(right))
    assert found is not None
    assert known(found) >= {"a.address", "dir"}


@given(st.text(alphabet="{}ab.-_1 \"'", max_size=30))
def test_what_is_known_is_filled_and_the_rest_stays(text: str) -> None:
    names = unknown(text, ())
    assert unknown(text, names) == []
    assert fill(text, {}) == text
    assert fill(text, {name: f"{{{name}}}" for name in names}) == text
    assert unknown(fill(text, dict.fromkeys(names, "X")), ()) == []
