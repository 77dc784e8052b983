"""HTTP/2 frames and header lists: bytes typed from RFC 9113 and RFC 7541."""

from __future__ import annotations

import hpack
import pytest

from isthmus.text.short_cache import key_bytes
from isthmus.wire import http2
from isthmus.wire.http2 import ErrorCode, HeaderReader, Headers, Http2Error

REQUEST: Headers = (
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":path", b"/"),
    (b":authority", b"www.example.com"),
)
# RFC 7541 C.4: three requests of one connection, with Huffman coding.
C_4_1 = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
C_4_2 = bytes.fromhex("828684be5886a8eb10649cbf")
C_4_3 = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")


# Frames.


def test_a_frame() -> None:
    assert http2.frame(http2.PING, http2.ACK, 0, b"12345678") == (
        b"\x00\x00\x08\x06\x01\x00\x00\x00\x0012345678"
    )
    assert http2.frame_head(0x012345, http2.DATA, http2.END_STREAM, 3) == (
        b"\x01\x23\x45\x00\x01\x00\x00\x00\x03"
    )
    assert http2.unpack_head(http2.frame_head(0x012345, 0, 1, 3)) == (0x0123, 0x45, 0, 1, 3)


def test_small_frames() -> None:
    assert http2.window_update(5, 1) == b"\0\0\4\x08\0\0\0\0\5\0\0\0\1"
    assert http2.rst_stream(7, ErrorCode.CANCEL) == b"\0\0\4\x03\0\0\0\0\7\0\0\0\x08"
    assert http2.settings((http2.MAX_FRAME_SIZE, 16384)) == b"\0\0\6\x04\0\0\0\0\0\0\5\0\0\x40\0"
    assert http2.SETTINGS_ACK == b"\0\0\0\x04\1\0\0\0\0"


def test_goaway_both_ways() -> None:
    raw = http2.goaway(9, ErrorCode.ENHANCE_YOUR_CALM, "ä" * 300)
    assert len(raw) == 9 + 8 + 256
    last, code, text = http2.read_goaway(raw[9:])
    assert (last, code, text) == (9, 0xB, "ä" * 128)
    assert http2.read_goaway(b"\x80\0\0\x01\0\0\0\0\xff")[0::2] == (1, "\N{REPLACEMENT CHARACTER}")
    with pytest.raises(Http2Error) as caught:
        http2.read_goaway(b"1234567")
    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR


def test_numbers() -> None:
    assert http2.read_uint31(b"\xff\xff\xff\xff", "x") == 2**31 - 1
    assert http2.read_uint32(b"\xff\xff\xff\xff", "x") == 2**32 - 1
    for wrong in (b"", b"123", b"12345"):
        with pytest.raises(Http2Error) as caught:
            http2.read_uint31(wrong, "WINDOW_UPDATE")
        assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (http2.ENABLE_PUSH, 2, ErrorCode.PROTOCOL_ERROR),
        (http2.INITIAL_WINDOW_SIZE, 2**31, ErrorCode.FLOW_CONTROL_ERROR),
        (http2.MAX_FRAME_SIZE, 16383, ErrorCode.PROTOCOL_ERROR),
        (http2.MAX_FRAME_SIZE, 2**24, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_settings_out_of_range(name: int, value: int, code: ErrorCode) -> None:
    with pytest.raises(Http2Error) as caught:
        list(http2.read_settings(http2.settings((name, value))[9:]))
    assert caught.value.code is code


def test_settings_in_range_and_unknown_ones() -> None:
    pairs = [(2, 1), (4, 2**31 - 1), (5, 16384), (5, 2**24 - 1), (0x99, 7)]
    assert list(http2.read_settings(http2.settings(*pairs)[9:])) == pairs
    with pytest.raises(Http2Error):
        list(http2.read_settings(b"12345"))


@pytest.mark.parametrize(
    ("payload", "expected"), [(b"\0abc", b"abc"), (b"\2abcd", b"ab"), (b"\0", b""), (b"\1x", b"")]
)
def test_padding_comes_off(payload: bytes, expected: bytes) -> None:
    assert http2.without_padding(payload, http2.PADDED, "HEADERS") == expected
    assert http2.without_padding(payload, 0, "HEADERS") == payload


@pytest.mark.parametrize("payload", [b"", b"\1", b"\4abc"])
def test_more_padding_than_payload(payload: bytes) -> None:
    with pytest.raises(Http2Error):
        http2.without_padding(payload, http2.PADDED, "HEADERS")


# Header blocks.


def test_the_rfcs_own_requests() -> None:
    reader = HeaderReader(16384)
    assert reader.read(C_4_1) == REQUEST
    assert reader.read(C_4_2) == (*REQUEST, (b"cache-control", b"no-cache"))
    assert reader.read(C_4_3) == (
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    )


def test_indexed_blocks_follow_the_table() -> None:
    """A block of indexes only is remembered, but no longer than the table stays as it was."""
    encoder, reader = hpack.Encoder(), HeaderReader(16384)
    first, second = [(b":path", b"/a"), (b"x", b"1")], [(b":path", b"/b"), (b"y", b"2")]
    for headers in (first, first, first, second, first, second, second, first):
        assert reader.read(encoder.encode(headers)) == tuple(headers)
    for i in range(40):
        many = [(b"x", b"%d" % (i % 20))]
        assert reader.read(encoder.encode(many)) == tuple(many)
        assert reader.read(encoder.encode(first)) == tuple(first)


def test_two_connections_do_not_share_a_table() -> None:
    one, two = HeaderReader(16384), HeaderReader(16384)
    one.read(C_4_1)
    one.read(C_4_2)
    two.read(C_4_1)
    assert two.read(C_4_2) == (*REQUEST, (b"cache-control", b"no-cache"))
    with pytest.raises(Http2Error):
        HeaderReader(16384).read(C_4_2)  # it names an entry that a new table has not


@pytest.mark.parametrize(
    "block", [b"\x80", b"\xff\x80\x80\x80\x80\x80", b"\x40", b"\x40\x85a", b"\xbe"]
)
def test_broken_blocks(block: bytes) -> None:
    for reader in (HeaderReader(16384), HeaderReader(16384)):
        with pytest.raises(Http2Error) as caught:
            reader.read(block)
        assert caught.value.code is ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize("blocks_before", [0, 1, 2])
def test_a_list_that_is_too_long(blocks_before: int) -> None:
    encoder, reader = hpack.Encoder(), HeaderReader(1000)
    for i in range(blocks_before):
        reader.read(encoder.encode([(b"a", b"%d" % i)]))
    with pytest.raises(Http2Error) as caught:
        reader.read(encoder.encode([(b"a", b"x" * 1000)]))
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_what_we_encode_touches_no_table() -> None:
    headers: Headers = ((b":status", b"200"), (b"grpc-message", b"x" * 200), (b"a", b"b"))
    block = http2.encode_headers(headers)
    decoder = hpack.Decoder()
    for _ in range(3):
        assert tuple(decoder.decode(block, raw=True)) == headers
    assert not decoder.header_table.dynamic_entries


# Header lists.


def changed(**changes: bytes | None) -> Headers:
    fields = dict(REQUEST) | {b":" + k.encode(): v for k, v in changes.items()}
    return tuple((k, v) for k, v in fields.items() if v is not None)


def test_a_good_request() -> None:
    assert http2.request_fault(REQUEST) == ""
    assert http2.request_fault((*REQUEST, (b"te", b"trailers"), (b"grpc-x_y.z", b""))) == ""


@pytest.mark.parametrize(
    "headers",
    [
        changed(method=None),
        changed(scheme=None),
        changed(path=None),
        changed(path=b""),
        changed(path=b"/\r\nx: y"),
        changed(status=b"200"),
        (*REQUEST, (b":path", b"/")),
        (*REQUEST[:3], (b"a", b"b"), REQUEST[3]),
        *(
            (*REQUEST, header)
            for header in [
                (b"Upper", b"x"),
                (b"", b"x"),
                (b"a b", b"x"),
                (b"a:b", b"x"),
                (b"\xff", b"x"),
                (b"a", b"x\0"),
                (b"a", b"x\ny"),
                (b"a", b" x"),
                (b"a", b"x\t"),
                (b"connection", b"close"),
                (b"keep-alive", b"1"),
                (b"proxy-connection", b"x"),
                (b"transfer-encoding", b"chunked"),
                (b"upgrade", b"h2c"),
                (b"te", b"gzip"),
            ]
        ),
    ],
)
def test_bad_requests(headers: Headers) -> None:
    assert http2.request_fault(headers)


def test_responses_and_trailers() -> None:
    assert http2.response_fault(((b":status", b"200"),)) == ""
    for bad in (b"", b"20", b"2x0", b"2000"):
        assert http2.response_fault(((b":status", bad),))
    assert http2.response_fault(())
    assert http2.trailer_fault(((b"grpc-status", b"0"),)) == ""
    assert http2.trailer_fault(((b":status", b"200"),))


def test_header() -> None:
    assert http2.header(REQUEST, b":path") == b"/"
    assert http2.header(REQUEST, b"absent") == b""


def test_caches_keep_short_lists_and_blocks_only() -> None:
    """Whatever a peer sends, and how often: what is kept of it is bounded in bytes."""
    caches = (http2.request_fault, http2.response_fault, http2.trailer_fault, http2.encode_headers)
    for number in range(2000):
        long: Headers = (*REQUEST, (b"x", b"%d" % number * 5000))
        many: Headers = tuple((b"%d" % number, b"%d" % each) for each in range(128))
        for cache in caches:
            cache(long)
            cache(many)
        HeaderReader(2**20).read(http2.encode_headers(long))
    for cache in (*caches, http2._decode_first):
        assert len(cache.kept) <= 256
        assert all(key_bytes(key) <= 5000 for key in cache.kept)


def test_a_long_first_block_is_not_kept() -> None:
    reader = HeaderReader(2**20)
    reader.read(http2.encode_headers((*REQUEST, (b"x", b"y" * 600))))
    assert reader._first is None
    assert reader.read(C_4_1) == REQUEST
