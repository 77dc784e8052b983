"""The CONNECT head under any bytes, cut anywhere: one verdict, no loss, never past the bound."""

from __future__ import annotations

from ipaddress import IPv6Address
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.values import HostPort
from isthmus.wire.http_connect import (
    MAX_LINE_BYTES,
    BadRequest,
    ConnectRequest,
    HeadReader,
    _take_plain,
    take_connect,
)

Verdict = tuple[HostPort, tuple[tuple[bytes, bytes], ...], bytes] | tuple[int, str] | None
BOUND = 300

names = st.from_regex(r"[a-z]([a-z0-9_-]{0,10}[a-z0-9_])?(\.[a-z]{1,8}){0,3}", fullmatch=True)
hosts = st.one_of(
    names, st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(lambda address: str(address))
)
targets = st.builds(HostPort, hosts, st.integers(1, 65535))
tokens = st.text("abcXYZ019-_!#$%&'*+.^`|~", min_size=1, max_size=12).filter(
    lambda name: name.lower() not in ("host", "content-length", "transfer-encoding")
)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20)
headers = st.lists(st.tuples(tokens, values), max_size=5)
early = st.binary(max_size=40)

# Pieces that make nearly right heads, so that the rare paths are walked and not only 400.
pieces = st.sampled_from(
    [
        *(b"CONNECT ", b"GET ", b"a:1", b"10.0.0.1:443", b"[::1]:80", b"[::1:80", b":0"),
        *(b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0", b"\r\n", b"\n", b"\r", b" ", b"\t", b":"),
        *(b"Host: a", b"host:", b"\r\nHost: b", b"Content-Length: 0", b"Content-Length: 7"),
        *(b"Transfer-Encoding: chunked", b"X: y", b"\x00", b"\xff", b"\x16\x03\x01"),
        *(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n", b"\r\n\r\n", b"x" * 150, b"y:\n" * 60),
    ]
)
rough = st.lists(pieces, max_size=12).map(b"".join)
whole_heads = rough.map(lambda tail: b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n" + tail + b"\r\n\r\n")
anything = st.one_of(st.binary(max_size=400), rough, whole_heads)


def verdict(chunks: list[bytes], *, bound: int = BOUND) -> Verdict:
    """Feed the chunks as reads, until there is a request or a refusal."""
    buffer, reader = bytearray(), HeadReader()
    for position, chunk in enumerate(chunks):
        buffer += chunk
        try:
            request = reader.take(buffer, max_head_bytes=bound)
        except BadRequest as error:
            return error.status, error.reason
        if request is not None:
            rest = bytes(buffer) + b"".join(chunks[position + 1 :])
            return request.target, request.headers, rest
        assert len(buffer) < bound
    return None


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(marks)]


def write(target: HostPort, lines: list[tuple[str, str]], *, version: str = "1.1") -> bytes:
    fields = [("Host", "x"), *lines] if version == "1.1" else lines
    text = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"CONNECT {target} HTTP/{version}\r\n{text}\r\n".encode("ascii")


@given(targets, headers, st.sampled_from(["1.0", "1.1"]), early)
def test_a_written_request_reads_back(
    target: HostPort, lines: list[tuple[str, str]], version: str, after: bytes
) -> None:
    buffer = bytearray(write(target, lines, version=version) + after)
    request = take_connect(buffer)
    assert request is not None
    assert request.target == target
    sent = tuple((name.lower().encode(), value.encode()) for name, value in lines)
    assert tuple(pair for pair in request.headers if pair[0] != b"host") == sent
    assert buffer == after


@given(anything, st.lists(st.integers(0, 10_000), max_size=6))
@example(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [1, 5, 16])
@example(b"CONNECT a:1 HTTP/1.1\nHost: a\n\nearly\r\n\r\n", [30])
def test_the_verdict_does_not_depend_on_the_cuts(data: bytes, places: list[int]) -> None:
    assert verdict(cut(data, places)) == verdict([data])


@given(anything)
def test_nor_on_reading_one_byte_at_a_time(data: bytes) -> None:
    assert verdict([data[at : at + 1] for at in range(len(data))]) == verdict([data])


@given(
    st.sampled_from([b"A", b"CONNECT ", b"CONNECT a:1 HTTP/1.1\r\n", b"GET / HTTP/1.1\nX:"]),
    st.integers(MAX_LINE_BYTES - 30, MAX_LINE_BYTES + 30),
    st.sampled_from([b"", b"\n", b"\r\n\r\n", b" HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00"]),
    st.lists(st.integers(MAX_LINE_BYTES - 40, MAX_LINE_BYTES + 60), max_size=6),
    st.sampled_from([MAX_LINE_BYTES - 1, MAX_LINE_BYTES + 1, MAX_LINE_BYTES + 25, 65536]),
)
@example(b"A", MAX_LINE_BYTES + 20, b"\x00", [MAX_LINE_BYTES + 10], 65536)
def test_nor_near_the_bound_of_a_line(
    start: bytes, length: int, end: bytes, places: list[int], bound: int
) -> None:
    data = start + b"a" * length + end
    assert verdict(cut(data, places), bound=bound) == verdict([data], bound=bound)


@given(anything)
def test_garbage_raises_nothing_else_and_is_left_alone(data: bytes) -> None:
    buffer = bytearray(data)
    try:
        request = take_connect(buffer, max_head_bytes=BOUND)
    except BadRequest as error:
        assert error.status in (400, 405, 431, 505)
        assert error.reason.isprintable() and len(error.reason) < 600
        assert error.to_bytes().startswith(b"HTTP/1.1 %d " % error.status)
        assert buffer == data
    else:
        assert data.endswith(buffer) if request else buffer == data


def outcome(read: ConnectRequest | None, rest: bytearray) -> Verdict:
    return None if read is None else (read.target, read.headers, bytes(rest))


odd_authorities = st.one_of(
    st.text("a1.:-_[]0f", max_size=14),
    st.builds("{}:{}".format, st.text("a1.-_", max_size=8), st.integers(0, 99999)),
)
plain_lines = st.sampled_from([b"X:", b"A:b:c ", b"Content-Type: a", b"hosts: a", b"y:\tz \t"])
other_lines = st.one_of(
    st.sampled_from([b"Transfer-Encoding: x", b"Content-length: 1", b"HOST: b", b" y: z"]),
    st.text(st.characters(max_codepoint=0x80), max_size=12).map(str.encode),
)


@st.composite
def nearly_plain(draw: st.DrawFn) -> bytes:
    """A head the short way takes, or one with a single thing wrong with it."""
    authority = draw(targets.map(str))
    lines = [b"Host: a", *draw(st.lists(plain_lines, max_size=3))]
    match draw(st.sampled_from(["nothing", "authority", "line", "line"])):
        case "authority":
            authority = draw(odd_authorities)
        case "line":
            lines.insert(draw(st.integers(0, len(lines))), draw(other_lines))
        case _:
            pass
    head = b"CONNECT %b HTTP/1.1\r\n" % authority.encode()
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + draw(early)


@given(nearly_plain())
@example(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nHOST: b\r\n\r\n")
@example(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-length: 1\r\n\r\n")
@example(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\n\r\n")
def test_the_short_way_and_h11_agree(data: bytes) -> None:
    """Whatever the short way takes or refuses, h11 takes or refuses with the same meaning."""
    short, long = bytearray(data), bytearray(data)
    try:
        taken = outcome(_take_plain(short), short)
    except BadRequest as error:
        taken = (error.status, error.reason)
    if taken is None:
        assert short == data
        return
    try:
        expected = outcome(HeadReader().take_any(long, 65536), long)
    except BadRequest as error:
        expected = (error.status, error.reason)
    assert taken == expected


@given(st.ip_addresses(v=6), st.integers(1, 65535))
def test_any_spelling_of_an_ipv6_address_needs_its_brackets(
    address: IPv6Address, port: int
) -> None:
    for text in (address.compressed, address.exploded):
        request = take_connect(bytearray(f"CONNECT [{text}]:{port} HTTP/1.0\r\n\r\n".encode()))
        assert request is not None and request.target == HostPort(text, port)
        try:
            take_connect(bytearray(f"CONNECT {text}:{port} HTTP/1.0\r\n\r\n".encode()))
        except BadRequest as error:
            assert error.status == 400
        else:
            raise AssertionError(text)
