"""Real ClientHellos cut anywhere, and anything else: one verdict, and never past the bound."""

from __future__ import annotations

import contextlib
import ssl
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.errors import ProtocolError
from isthmus.wire.alpn import ALPN, alpn_asking_for, asked_for, is_askable
from isthmus.wire.client_hello import MAX_HELLO_BYTES, ClientHello, hello_in

ids = st.text(st.sampled_from("ABCXYZabcxyz0189._-"), min_size=1, max_size=200)
names = st.one_of(
    st.sampled_from(["h2", "http/1.1", ALPN, "\n\n"]),
    ids.map(alpn_asking_for),
    st.text(st.characters(max_codepoint=0x7F), min_size=1, max_size=255),
)
offers = st.lists(names, max_size=8)
versions = st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


def hello(offer: list[str], most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """What Python's own TLS says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = most
    if offer:
        context.set_alpn_protocols(offer)
    written = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), written, server_hostname="a.example").do_handshake()
    return written.read()


def alpn_in(data: bytes) -> tuple[str, ...] | None:
    found = hello_in(data)
    return found.alpn if isinstance(found, ClientHello) else None


def verdict(data: bytes) -> tuple[str, ...] | str | None:
    try:
        return alpn_in(data)
    except ProtocolError:
        return "refused"


def in_records(message: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted({cut % len(message) for cut in cuts} - {0}), len(message)]
    parts = [message[a:b] for a, b in pairwise(edges)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


@given(offers, versions, st.lists(st.integers(1, 10_000), max_size=3), st.binary(max_size=20))
def test_a_real_hello_in_any_records_and_pieces(
    offer: list[str], most: ssl.TLSVersion, cuts: list[int], after: bytes
) -> None:
    whole = hello(offer, most)
    assert alpn_in(whole) == tuple(offer)
    message = whole[5:]  # OpenSSL puts it into one record
    data = in_records(message, cuts)
    assert alpn_in(data + after) == tuple(offer)
    assert all(alpn_in(data[:size]) is None for size in range(len(data)))


@given(ids, offers)
def test_who_is_asked_for_first_is_found(server_id: str, rest: list[str]) -> None:
    names = alpn_in(hello([alpn_asking_for(server_id), *rest]))
    assert names is not None and asked_for(names) == server_id


@given(offers)
def test_only_ids_that_can_be_asked_for_are_found(offer: list[str]) -> None:
    found = asked_for(offer)
    assert found == "" or (is_askable(found) and alpn_asking_for(found) in offer)


anything = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda data: b"\x16\x03\x01" + data),
    st.binary(max_size=300).map(lambda data: b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc" + data),
    st.tuples(offers.map(hello), st.integers(0, 400), st.binary(min_size=1, max_size=4)).map(
        lambda it: it[0][: it[1]] + it[2] + it[0][it[1] + len(it[2]) :]
    ),
)


@given(anything)
@example(b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xf0" + bytes(MAX_HELLO_BYTES))
@example(b"\x16\x03\x01\x00\x01\x01" * 3000)
def test_whatever_comes_a_verdict_stands(data: bytes) -> None:
    verdicts = [verdict(data[:size]) for size in range(0, len(data) + 1, max(1, len(data) // 300))]
    first = next((index for index, each in enumerate(verdicts) if each is not None), None)
    if first is not None:
        assert set(verdicts[first:]) == {verdicts[first]}
    if len(data) >= MAX_HELLO_BYTES:
        assert verdict(data) is not None


@given(anything)
def test_what_it_waits_for_is_never_too_much(data: bytes) -> None:
    sizes = range(len(data) + 1)
    wanted = 0
    for size in sizes:
        try:
            found = hello_in(data[:size])
        except ProtocolError:
            found = ClientHello()
        if isinstance(found, ClientHello):
            assert wanted <= size  # nobody who waited as told would have missed it
            return
        assert size < found <= MAX_HELLO_BYTES
        wanted = found
