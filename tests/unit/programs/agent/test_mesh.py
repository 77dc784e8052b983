"""What links say about the mesh: its size, who is missing, which of them may end soon."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from isthmus.programs.agent import rules_servers as mesh
from isthmus.values import ServerId


@dataclass(frozen=True)
class Linked:
    server_count: int = 1
    servers: frozenset[ServerId] = frozenset()
    was_asked_for: bool = False
    opened_at: float = 0.0
    drained_at: float | None = None


def ids(names: str) -> frozenset[ServerId]:
    return frozenset(ServerId(name) for name in names)


def test_the_most_that_any_server_says_is_believed_within_reason() -> None:
    assert mesh.known_count({}, None, "default") == 0
    links = {ServerId("a"): Linked(2), ServerId("b"): Linked(5)}
    assert mesh.known_count(links, None, "default") == 5
    assert mesh.known_count({ServerId("a"): Linked(2_000_000)}, None, "default") == 128


@pytest.mark.parametrize(
    ("leases", "source", "count"), [(3, "default", 3), (3, "max", 5), (7, "max", 7)]
)
def test_leases_count_as_soon_as_somebody_is_linked(leases: int, source: str, count: int) -> None:
    assert mesh.known_count({ServerId("a"): Linked(5)}, leases, source) == count
    assert mesh.known_count({}, leases, source) == 0


def test_who_is_named_and_not_linked_is_missing() -> None:
    links = {
        ServerId("b"): Linked(servers=ids("abc")),
        ServerId("x"): Linked(servers=ids("bd")),
    }
    assert mesh.missing(links) == ["a", "c", "d"]
    many = frozenset(ServerId(f"{number:03}") for number in range(500))
    assert mesh.missing({ServerId("b"): Linked(servers=many)}) == sorted(many)[:128]


def test_links_that_were_asked_for_before_a_server_drained_may_end_soon() -> None:
    everybody = ids("abcde")
    links = {
        ServerId("a"): Linked(servers=everybody, drained_at=5.0),
        ServerId("b"): Linked(servers=everybody, was_asked_for=True, opened_at=4.0),
        ServerId("c"): Linked(servers=everybody, was_asked_for=True, opened_at=6.0),
        ServerId("d"): Linked(servers=everybody, opened_at=4.0),  # met without asking
        ServerId("e"): Linked(was_asked_for=True, opened_at=4.0, drained_at=4.5),  # goes itself
        ServerId("f"): Linked(was_asked_for=True, opened_at=4.0),  # nobody could ask for it
    }
    assert mesh.unsure(links) == ["b"]
    assert mesh.may_end_soon(links[ServerId("f")], links)
    assert not mesh.may_end_soon(links[ServerId("c")], links)
