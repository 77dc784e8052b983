"""PROXY headers there and back, cut anywhere, and anything else: one verdict, and it stands."""

from __future__ import annotations

from typing import Literal

from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.errors import ProtocolError
from isthmus.wire.proxy_protocol import (
    BOTH,
    MAX_HEADER_BYTES,
    NOOP,
    SIGNATURE,
    IpPort,
    ProxyHeader,
    Tlv,
    take_proxy_header,
)

ports = st.integers(0, 0xFFFF)
types = st.integers(0, 0xFF).filter(lambda it: it != NOOP)
tlvs = st.lists(st.builds(Tlv, types, st.binary(max_size=100)), max_size=8).map(tuple)


def pairs(version: Literal[4, 6]) -> st.SearchStrategy[ProxyHeader]:
    address = st.builds(IpPort, st.ip_addresses(v=version), ports)
    return st.builds(ProxyHeader, source=address, destination=address, tlvs=tlvs)


headers = st.one_of(
    pairs(4), pairs(6), st.builds(ProxyHeader, tlvs=tlvs), st.just(ProxyHeader(is_local=True))
)
cuts = st.lists(st.integers(0, 1000), max_size=10)


@given(headers, cuts, st.binary(max_size=20))
def test_there_and_back_in_any_pieces(header: ProxyHeader, at: list[int], after: bytes) -> None:
    data = header.to_bytes()
    buffer, sent = bytearray(), 0
    for edge in [*sorted(cut % len(data) for cut in at), len(data)]:
        buffer += data[sent:edge]
        sent = edge
        if edge < len(data):
            assert take_proxy_header(buffer) is None
            assert buffer == data[:edge]
    buffer += after
    assert take_proxy_header(buffer) == header
    assert buffer == after


def verdict(data: bytes) -> ProxyHeader | str | None:
    try:
        return take_proxy_header(bytearray(data), versions=BOTH)
    except ProtocolError:
        return "refused"


words = st.text(st.sampled_from("0123456789abcdef.: TCPUNKOW\r\n%"), max_size=110)
anything = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda data: SIGNATURE + data),
    st.tuples(st.sampled_from([0x20, 0x21]), st.sampled_from([0, 0x11, 0x21, 0x31, 0x12]))
    .flatmap(lambda it: st.binary(max_size=300).map(lambda data: SIGNATURE + bytes(it) + data)),
    words.map(lambda text: b"PROXY " + text.encode()),
    st.tuples(headers, st.integers(0, 100), st.binary(min_size=1, max_size=4)).map(
        lambda it: it[0].to_bytes()[: it[1]] + it[2] + it[0].to_bytes()[it[1] + len(it[2]) :]
    ),
)  # fmt: skip


@given(anything)
@example(SIGNATURE + b"\x21\x00\xff\xff" + bytes(MAX_HEADER_BYTES))
def test_whatever_comes_a_verdict_stands(data: bytes) -> None:
    verdicts = [verdict(data[:size]) for size in range(min(len(data), 400) + 1)]
    first = next((index for index, each in enumerate(verdicts) if each is not None), None)
    if first is not None:
        assert all(each == verdicts[first] for each in verdicts[first:])
    if len(data) >= MAX_HEADER_BYTES:
        assert verdict(data) is not None
