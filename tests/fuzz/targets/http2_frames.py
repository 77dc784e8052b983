"""HTTP/2 payloads of frames: only Http2Error, and values within their ranges."""

from contextlib import suppress

from isthmus.wire import http2
from isthmus.wire.http2 import Http2Error


def check(data: bytes) -> None:
    """Read the bytes as the payload of each kind of frame."""
    flags, payload = data[0] if data else 0, data[1:]
    with suppress(Http2Error):
        for name, value in http2.read_settings(payload):
            assert 0 <= name < 1 << 16 and 0 <= value < 1 << 32
            if name == http2.INITIAL_WINDOW_SIZE:
                assert value <= http2.MAX_WINDOW
    with suppress(Http2Error):
        last, code, text = http2.read_goaway(payload)
        assert last <= http2.MAX_STREAM_ID and code < 1 << 32 and len(text) <= 256
    with suppress(Http2Error):
        assert http2.read_uint31(payload, "x") <= http2.MAX_STREAM_ID
    with suppress(Http2Error):
        assert http2.read_uint32(payload, "x") < 1 << 32
    with suppress(Http2Error):
        bare = http2.without_padding(payload, flags, "x")
        assert bare in payload
