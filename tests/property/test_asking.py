"""Whatever headers come, reading them is bounded and quiet; what is written is read again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.values import RequestMetadata
from isthmus.wire.http_connect import take_connect
from isthmus.wire.request_metadata import (
    MAX_GROUP_BYTES,
    MAX_GROUPS,
    MAX_VALUE_BYTES,
    NAMES,
    headers_of,
    is_traceparent,
    is_tracestate,
    metadata_in,
    parse_traceparent,
)

texts = st.text(max_size=60).filter(str.isprintable)
parents = st.builds(
    "00-{:032x}-{:016x}-{:02x}".format,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 255),
)
askings = st.builds(
    RequestMetadata,
    network=texts,
    user=texts,
    groups=st.lists(texts.filter(bool), max_size=8, unique=True).map(tuple),
    tenant=texts,
    object=texts,
    traceparent=parents | st.just(""),
)
names = st.sampled_from(sorted(NAMES)) | st.binary(max_size=20)


@given(askings)
def test_what_is_written_is_read_again(asking: RequestMetadata) -> None:
    assert metadata_in(headers_of(asking)) == asking


@given(askings)
def test_it_survives_a_connect_head(asking: RequestMetadata) -> None:
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers_of(asking))
    head = bytearray(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n" + lines + b"\r\n")
    request = take_connect(head)
    assert request is not None
    assert request.asking == asking
    assert not head


@given(st.lists(st.tuples(names, st.binary(max_size=100)), max_size=60))
def test_whatever_comes_is_bounded_and_printable(headers: list[tuple[bytes, bytes]]) -> None:
    asking = metadata_in(headers)
    for text in (asking.network, asking.user, asking.tenant, asking.object, *asking.groups):
        assert text.isprintable()
        assert len(text.encode()) <= MAX_VALUE_BYTES
    assert len(asking.groups) <= MAX_GROUPS
    assert sum(len(group.encode()) for group in asking.groups) <= MAX_GROUP_BYTES
    assert not asking.traceparent or is_traceparent(asking.traceparent)
    assert not asking.tracestate or is_tracestate(asking.tracestate)
    assert metadata_in(headers_of(asking)) == asking


@given(st.text(max_size=80) | parents)
def test_a_parent_that_is_read_is_written_alike(text: str) -> None:
    parent = parse_traceparent(text)
    if parent is not None:
        assert parse_traceparent(str(parent)) == parent
        assert text.startswith("00-") is (str(parent) == text)
