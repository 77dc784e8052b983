"""What a server knows of the others: flags win over Leases, and it is never its own peer."""

from __future__ import annotations

from isthmus.programs.server.hand_on import Peers
from isthmus.values import HostPort, ServerId

A, B, C = (ServerId(each) for each in "abc")
AT = {each: HostPort(f"10.0.0.{n}", 8091) for n, each in enumerate((A, B, C), 1)}


def test_alone_it_names_nobody() -> None:
    peers = Peers(B, {})
    assert (len(peers), peers.ids, peers.address_of("a")) == (0, (), None)
    assert repr(peers) == "<Peers of b: none>"


def test_it_names_itself_beside_its_peers() -> None:
    peers = Peers(B, {C: AT[C], A: AT[A]})
    assert peers.ids == (A, B, C)
    assert peers.address_of("c") == AT[C]
    assert peers.address_of("b") is None and peers.address_of("d") is None
    assert repr(peers) == "<Peers of b: a, c>"


def test_leases_add_and_take_away_what_no_flag_names() -> None:
    peers = Peers(B, {A: AT[A]})
    assert peers.leased({C: AT[C], B: AT[B], A: HostPort("other", 1)})
    assert peers.ids == (A, B, C)
    assert peers.address_of("a") == AT[A] and peers.address_of("b") is None
    assert not peers.leased({C: AT[C]})
    assert peers.leased({C: HostPort("moved", 1)})
    assert peers.address_of("c") == HostPort("moved", 1)
    assert peers.leased({})
    assert peers.ids == (A, B)


def test_no_more_are_named_than_an_agent_believes() -> None:
    peers = Peers(B, {ServerId(f"s{n}"): AT[A] for n in range(500)})
    assert len(peers.ids) == 128
