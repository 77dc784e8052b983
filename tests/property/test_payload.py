"""Payloads however they are cut: what the reader hands on is what protobuf reads."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ProtocolError
from isthmus.tunnel.payload import PayloadStream
from isthmus.values import HostPort
from isthmus.wire.grpc import message_head
from isthmus.wire.kep1281_pb2 import Payload
from isthmus.wire.payload import connect_options, find_data, parse, read_connect_options

unknown = st.sampled_from([b"", b"\x12\x03abc", b"\x18\x96\x01", b"\x0a\x01z", b"\xc0\x3e\x01"])
bodies = st.builds(
    lambda before, data, after: before + Payload(data=data).SerializeToString() + after,
    unknown, st.binary(max_size=300), unknown,
)  # fmt: skip


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(i % (len(stream) + 1) for i in at), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def framed(body: bytes) -> bytes:
    return message_head(len(body)) + body


def taken(end: PayloadStream) -> bytes:
    data = b"".join(bytes(piece) for piece in end.pieces)
    end.pieces.clear()
    return data


@given(st.lists(bodies, max_size=8), st.lists(st.integers(0, 5000), max_size=30))
def test_any_payloads_in_any_pieces(messages: list[bytes], at: list[int]) -> None:
    end, got = PayloadStream(), b""
    for piece in cut(b"".join(map(framed, messages)), at):
        end.reader.feed(memoryview(piece), end)
        got += taken(end)
    assert got == b"".join(Payload.FromString(body).data for body in messages)
    assert end.reader.at_boundary and not end.reader.kept_bytes and not end.saw_end


@given(st.binary(min_size=1, max_size=200))
def test_byte_by_byte_and_always_at_once(data: bytes) -> None:
    body = Payload(data=data).SerializeToString()
    end, got = PayloadStream(), b""
    for index in range(len(framed(body))):
        end.reader.feed(memoryview(framed(body)[index : index + 1]), end)
        got += taken(end)
        # Data do not wait for the rest of their message once the prefix is there.
        assert len(got) >= min(index + 1 - 5 - 5, len(data))
    assert got == data and end.reader.at_boundary


@given(st.binary(max_size=80), st.lists(st.integers(0, 100), max_size=10))
def test_garbage_is_refused_or_read_as_protobuf_reads_it(garbage: bytes, at: list[int]) -> None:
    end, got = PayloadStream(), b""
    try:
        wanted: bytes | None = parse(garbage)[0]
    except ProtocolError:
        wanted = None
    try:
        for piece in cut(framed(garbage), at):
            end.reader.feed(memoryview(piece), end)
            got += taken(end)
    except ProtocolError:
        assert wanted is None
    else:
        assert got == wanted


@given(st.binary(max_size=40), st.integers(0, 8))
def test_what_is_found_reads_the_same(message: bytes, before: int) -> None:
    found = find_data(bytes(before) + message, before, before + len(message))
    if found is not None:
        assert parse(message)[0] == message[found[1] - before :]


@given(st.binary(max_size=40))
def test_metadata_never_do_more_than_refuse(value: bytes) -> None:
    try:
        read_connect_options(value)
    except ProtocolError as exc:
        assert "\n" not in str(exc)


@given(st.integers(1, 65535), st.sampled_from(["10.1.2.3", "fd00::17", "svc.ns.example"]))
def test_targets_survive(port: int, host: str) -> None:
    assert read_connect_options(connect_options(HostPort(host, port))) == HostPort(host, port)


def test_after_the_end_of_data_there_is_none() -> None:
    end = PayloadStream()
    end.hears_end = True
    end.reader.feed(memoryview(framed(b"\xc0\x3e\x01")), end)
    assert end.saw_end
    with pytest.raises(ProtocolError, match="after the end"):
        end.reader.feed(memoryview(framed(b"\x0a\x01x")), end)
