"""The numbers of connections: whose they are, in which turn they are given, what is told once."""

from __future__ import annotations

import pytest

from isthmus.tunnel.linked_end import FIRST_OF_SERVER, PAST_OF_SERVER, ConnectIds
from isthmus.wire.packet import data_packet, find_data


def test_each_side_counts_in_a_range_of_its_own() -> None:
    agent, server = ConnectIds(agent=True), ConnectIds(agent=False)
    assert [agent.give(()) for _ in range(3)] == [1, 2, 3]
    assert [server.give(()) for _ in range(3)] == [2**32, 2**32 + 1, 2**32 + 2]
    for number in (1, FIRST_OF_SERVER - 1, FIRST_OF_SERVER, 2**63 - 1):
        assert agent.is_ours(number) is not server.is_ours(number)
        assert agent.is_ours(number) is (number < 2**32)


@pytest.mark.parametrize(
    ("agent", "first", "last"),
    [(True, 1, FIRST_OF_SERVER - 1), (False, FIRST_OF_SERVER, PAST_OF_SERVER - 1)],
)
def test_after_the_last_comes_the_first_that_is_free(agent: bool, first: int, last: int) -> None:
    ids = ConnectIds(agent=agent)
    ids._next = last
    assert [ids.give({first, first + 2}) for _ in range(3)] == [last, first + 1, first + 3]


def test_data_of_every_number_that_we_give_is_read_without_protobuf() -> None:
    for number in (1, FIRST_OF_SERVER, PAST_OF_SERVER - 1):
        raw = data_packet(number, b"x")[5:]
        assert find_data(raw, 0, len(raw)) == (number, len(raw) - 1)


def test_the_peer_is_told_once_and_what_is_remembered_is_bounded() -> None:
    ids = ConnectIds(agent=True)
    assert ids.first_close(7) and not ids.first_close(7)
    ids.closed(7)
    assert ids.first_close(7)
    for number in range(100, 100_000):
        assert ids.first_close(number)
        assert ids.closing <= 4096
