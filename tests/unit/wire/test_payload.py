"""KEP-1281's bytes: vectors typed from the protobuf encoding and RFC 4648, not from our output."""

from __future__ import annotations

import base64

import pytest

from isthmus.errors import DialFailure, ProtocolError
from isthmus.values import HostPort
from isthmus.wire.grpc import MESSAGE_HEAD, Status, message_size
from isthmus.wire.kep1281_pb2 import ConnectOptions, Payload
from isthmus.wire.payload import (
    CONNECT_OPTIONS,
    END_OF_DATA,
    FAILURE_OF_STATUS,
    MOST_PREFIX,
    STATUS_OF_FAILURE,
    connect_options,
    find_data,
    names_target,
    parse,
    payload_head,
    read_connect_options,
    target_in,
)

# Field 1, length-delimited (0x0A), ten bytes (0x0A): "8.8.8.8:53", the KEP's own example.
EXAMPLE = b"\x0a\x0a8.8.8.8:53"


def test_the_metadata_of_the_kep() -> None:
    assert connect_options(HostPort("8.8.8.8", 53)) == b"Cgo4LjguOC44OjUz"
    assert read_connect_options(b"Cgo4LjguOC44OjUz") == HostPort("8.8.8.8", 53)
    assert base64.b64decode(b"Cgo4LjguOC44OjUz") == EXAMPLE


@pytest.mark.parametrize(
    "address", ["10.0.0.1:443", "[fd00::1]:6443", "a.b_c.example:1", "x:65535"]
)
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("padding", ["padded", "bare"])
def test_every_form_of_base64(address: str, encode: object, padding: str) -> None:
    value = encode(ConnectOptions(remote_addr=address).SerializeToString())  # type: ignore[operator]
    if padding == "bare":
        value = value.rstrip(b"=")
    assert str(read_connect_options(value)) == address


def test_both_alphabets_differ_where_it_matters() -> None:
    # An unknown field whose bytes need the last two letters of either alphabet.
    serialized = EXAMPLE + b"\x12\x03\xfb\xff\xbf"
    standard, url = base64.b64encode(serialized), base64.urlsafe_b64encode(serialized)
    assert standard != url
    assert read_connect_options(standard) == read_connect_options(url) == HostPort("8.8.8.8", 53)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", "remote_addr is empty"),
        (b"!!!!", "not base64"),
        (b"Cgo4LjguOC44OjU", "not a serialized ConnectOptions"),
        (b"Cgo4L", "not base64"),  # no number of bytes has five letters
        (b"Cgo=LjguOC44OjUz", "not base64"),
        (b"Cgo4LjguOC44OjUz=", "not base64"),
        (base64.b64encode(b"\x0a\x02\xff\xfe"), ""),  # not UTF-8
        (base64.b64encode(b"8.8.8.8:53"), ""),
        (base64.b64encode(b"\x0a\x048.8."), "no port in"),
        (base64.b64encode(b"\x0a\x05a b:1"), "not a host name"),
        (base64.b64encode(b"\x0a\x05::1:1"), "needs brackets"),
        (base64.b64encode(b"\x0a\x030x7"), "no port"),
    ],
)
def test_bad_metadata_is_a_sentence(value: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=r"^metadata x-kube-net-proxy: ") as caught:
        read_connect_options(value)
    assert says in str(caught.value)


def test_which_calls_are_of_this_kind() -> None:
    other = [(b":path", b"/ProxyService/Proxy"), (b"x-kube-net", b"x")]
    value = connect_options(HostPort("a", 1))
    assert not names_target(other) and target_in(other) is None
    assert names_target([*other, (CONNECT_OPTIONS, b"")])
    assert target_in([*other, (CONNECT_OPTIONS, value)]) == HostPort("a", 1)
    with pytest.raises(ProtocolError, match="given 2 times"):
        target_in([(CONNECT_OPTIONS, value)] * 2)


@pytest.mark.parametrize("size", [1, 2, 127, 128, 16_383, 16_384, 65_536, 2_097_151, 2_097_152])
def test_heads_are_what_protobuf_writes(size: int) -> None:
    data = bytes(size)
    whole = Payload(data=data).SerializeToString()
    head = payload_head(size)
    assert head[MESSAGE_HEAD:] + data == whole
    assert message_size(head[:MESSAGE_HEAD]) == len(whole)
    assert find_data(whole, 0, len(whole)) == (0, len(whole) - size)
    assert find_data(whole[:MOST_PREFIX], 0, len(whole)) == (0, len(whole) - size)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x0a",  # no length
        b"\x0a\x03ab",  # shorter than it says
        b"\x0a\x02abc",  # longer
        b"\x12\x02ab",  # another field
        b"\x08\x01",
        b"\x0a\x01a\x0a\x01b",  # twice: protobuf takes the last
        b"\x0a\xff\xff\xff\xff\x0f",
    ],
)
def test_what_is_not_plainly_data(message: bytes) -> None:
    assert find_data(message, 0, len(message)) is None


def test_unusual_payloads() -> None:
    assert parse(b"") == (b"", False)
    assert parse(b"\x0a\x00") == (b"", False)
    assert parse(b"\x0a\x01a\x0a\x01b") == (b"b", False)
    assert parse(b"\x12\x02xy\x0a\x01a\x18\x07") == (b"a", False)  # unknown fields are skipped
    with pytest.raises(ProtocolError, match="3 bytes are not a Payload"):
        parse(b"\x0a\x05a")


def test_the_end_of_data() -> None:
    # Field 1000, varint: 1000 << 3 = 8000 = 0xC0 0x3E; a foreign reader skips it.
    assert END_OF_DATA == b"\x00\x00\x00\x00\x03\xc0\x3e\x01"
    assert parse(END_OF_DATA[MESSAGE_HEAD:]) == (b"", True)


def test_the_tables_are_complete() -> None:
    assert STATUS_OF_FAILURE.keys() == set(DialFailure)
    assert Status.OK not in STATUS_OF_FAILURE.values()
    for status, failure in FAILURE_OF_STATUS.items():
        assert status is Status.UNAUTHENTICATED or STATUS_OF_FAILURE[failure] is status
