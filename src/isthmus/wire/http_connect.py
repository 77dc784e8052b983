"""The head of an HTTP CONNECT request, and the replies to it, as bytes and values.

One regular expression reads the common plain head (as kube-apiserver, Go and curl send it);
h11 reads every other head, which then has to pass the same rules. There is no I/O and no
timeout here: the slow-header timeout and the dial are in frontends/, the mapping from a
failed dial to a status in dial/frontends/statuses.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

import h11

from isthmus.errors import ProtocolError
from isthmus.text.text_limits import MAX_HEADERS
from isthmus.values import NOTHING, HostPort, RequestMetadata
from isthmus.wire.request_metadata import HALF_CLOSE, metadata_in

MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 16 * 1024  # without its line feed
MAX_HEADER_LINES = MAX_HEADERS
_MAX_METHOD_BYTES = 256

# RFC 9110 §9.3.6: a 2xx reply to CONNECT has neither Content-Length nor Transfer-Encoding; the
# bytes after the blank line are the target's. The phrase is the one Go's konnectivity sends.
ESTABLISHED = b"HTTP/1.1 200 Connection Established\r\n\r\n"
CONNECTION_ID = "Isthmus-Connection-Id"
_KEEPS_HALF_CLOSE = b"Isthmus-Half-Close: 1\r\n\r\n"
_ESTABLISHED_AS = ESTABLISHED[:-2] + CONNECTION_ID.encode() + b": %b\r\n\r\n"

_TCHAR = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"  # RFC 9110 §5.6.2
_TOKEN = re.compile(_TCHAR + rb"+")
_REQUEST_LINE = re.compile(rb"(%b+) ([!-~]+) HTTP/([0-9]\.[0-9])" % _TCHAR)  # RFC 9112 §3
_AUTHORITY = re.compile(rb"(?:([^\[\]:]+)|\[([0-9A-Fa-f:.]+)\]):([0-9]{1,5})")

# The plain head: a simple authority, Host first (as Go and curl send it), then header
# lines of printable ASCII. Possessive, so that a near miss fails in one pass.
# timeit, CPython 3.11, two shared cores, kube-apiserver's two-line head: 2.1 µs this way (8 µs for
# a target not seen before, of which HostPort was 3.5 then and is 1.5 now), 42 µs through h11;
# curl's four lines: 3.4 µs (6.2) and 50 µs.
_PLAIN = re.compile(
    rb"CONNECT ((?:[0-9A-Za-z_.-]++|\[[0-9A-Fa-f:.]++\]):[0-9]{1,5}) HTTP/1\.1\r\n"
    rb"([Hh]ost:[\t -~]*+((?:\r\n%b++:[\t -~]*+){0,%d}+)\r\n)\r\n" % (_TCHAR, MAX_HEADER_LINES - 1)
)
_PLAIN_BYTES = 4096  # below MAX_LINE_BYTES, so no line of a plain head can be too long

_NOT_HTTP = {
    0x04: "it looks like SOCKS4",
    0x05: "it looks like SOCKS5",
    0x16: "it looks like a TLS handshake, but this port serves plain HTTP",
}


class BadRequest(ProtocolError):
    """The request head is rejected; carries the status of the reply and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason

    def to_bytes(self) -> bytes:
        """The whole reply, after which the connection must be closed."""
        # RFC 9110 §15.5.6: a 405 must list the allowed methods.
        allow = [("Allow", "CONNECT")] if self.status == HTTPStatus.METHOD_NOT_ALLOWED else []
        return reply(self.status, self.reason, headers=allow)


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """The requested target, and the header lines, each ended by CR LF.

    The lines are split on demand: most dials never use them.
    """

    target: HostPort
    header_lines: bytes = b""
    #: A header may carry request metadata.
    says_more: bool = False

    @property
    def asking(self) -> RequestMetadata:
        """The metadata that the client sent with the request."""
        return metadata_in(self.headers) if self.says_more else NOTHING

    @property
    def half_closes(self) -> bool:
        """Whether the client supports half-closes and asks whether the server does."""
        return self.says_more and self.header(HALF_CLOSE) is not None

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Every header in order, the name in lower case, the value without outer blanks."""
        pairs = (line.partition(b":") for line in self.header_lines.split(b"\r\n") if line)
        return tuple((name.lower(), value.strip(b" \t")) for name, _, value in pairs)

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of this name, given in lower case; None if absent."""
        return next((value for key, value in self.headers if key == name), None)


def take_connect(
    buffer: bytearray, *, max_head_bytes: int = MAX_HEAD_BYTES
) -> ConnectRequest | None:
    """Take one CONNECT head off the front of the buffer; None while it is incomplete.

    Exactly the head is consumed: bytes after its blank line are the client's early bytes and
    stay. A buffer that holds ``max_head_bytes`` without a whole head is rejected, so a reader
    that stops at that bound never waits for a head that cannot come.

    Raises:
        BadRequest: the head violates a rule or a limit; the buffer is unchanged. The result
            depends only on the bytes, not on how reads split them.
    """
    if buffer.find(b"\r\n\r\n", 0, min(_PLAIN_BYTES, max_head_bytes)) >= 0:
        request = _take_plain(buffer)
        if request is not None:
            return request
    return HeadReader().take_any(buffer, max_head_bytes)


class HeadReader:
    """Takes a head that arrives in pieces, examining each byte once.

    ``take`` is ``take_connect`` for a buffer that only grows between two calls.
    """

    __slots__ = ("_count", "_has_method", "_line", "_searched")

    def __init__(self) -> None:
        self._line = 0  # where the first incomplete line starts
        self._count = 0  # the number of lines before it
        self._searched = 0
        self._has_method = False

    def take(
        self, buffer: bytearray, *, max_head_bytes: int = MAX_HEAD_BYTES
    ) -> ConnectRequest | None:
        """See take_connect."""
        searched = self._searched
        if buffer.find(b"\r\n\r\n", max(0, searched - 3), min(_PLAIN_BYTES, max_head_bytes)) >= 0:
            request = _take_plain(buffer)
            if request is not None:
                return request
        return self.take_any(buffer, max_head_bytes)

    def take_any(self, buffer: bytearray, max_head_bytes: int) -> ConnectRequest | None:
        """Take any head that h11 and our rules accept; None while it is incomplete."""
        scope = min(len(buffer), max_head_bytes)
        size = self._find_end(buffer, scope) if scope else 0
        if size:
            request = _read_head(bytes(buffer[:size]))
            del buffer[:size]
            return request
        if scope == max_head_bytes:
            raise BadRequest(431, f"the request head is larger than {max_head_bytes} bytes")
        self._searched = scope
        return None

    def _find_end(self, buffer: bytearray, stop: int) -> int:
        """Return the size of the head in the first ``stop`` bytes, or 0 if its end is missing.

        Goes line by line and raises at the first byte too many, which makes the result
        independent of how reads split the bytes. Like h11 it accepts a bare line feed as a line
        end, which RFC 9112 §2.2 allows.
        """
        if not self._has_method:
            self._has_method = _has_method(buffer, stop)
        while True:
            start = self._line
            feed = buffer.find(b"\n", max(start, self._searched), stop)
            length = (stop if feed < 0 else feed) - start
            if length > MAX_LINE_BYTES:
                what, status = ("header", 431) if self._count else ("request", 400)
                raise BadRequest(status, f"the {what} line is longer than {MAX_LINE_BYTES} bytes")
            if feed < 0:
                return 0
            if length == 0 or (length == 1 and buffer[start] == 0x0D):
                return feed + 1
            if self._count == 0:
                _split_request_line(bytes(buffer[:feed]))
            elif self._count > MAX_HEADER_LINES:
                raise BadRequest(431, f"more than {MAX_HEADER_LINES} header lines")
            self._line, self._count = feed + 1, self._count + 1


def established(connection_id: str = "", *, keeps_half_close: bool = False) -> bytes:
    """The reply that begins a tunnel, with the id that logs and audit use for it.

    ``keeps_half_close``: announce that half-closes are preserved, to clients that asked.
    """
    said = _ESTABLISHED_AS % connection_id.encode("ascii") if connection_id else ESTABLISHED
    return said[:-2] + _KEEPS_HALF_CLOSE if keeps_half_close else said


def reply(status: int, body: str, *, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A whole plain-text response that announces the close of the connection.

    The body may quote a peer: unprintable characters are escaped, so the body is one line.

    Raises:
        ValueError: the status is not registered, or a header is not printable ASCII.
    """
    text = f"{_printable(body.rstrip())}\n".encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    for name, value in headers:
        if not (f"{name}{value}".isascii() and f"{name}{value}".isprintable()):
            raise ValueError(f"not a header: {name!r}: {value!r}")
        lines.append(f"{name}: {value}")
    lines += ["Content-Type: text/plain; charset=utf-8", f"Content-Length: {len(text)}"]
    lines += ["Connection: close", "", ""]
    return "\r\n".join(lines).encode("ascii") + text


def _take_plain(buffer: bytearray) -> ConnectRequest | None:
    """Take a plain common head; None for any other. h11 would read it the same way."""
    match = _PLAIN.match(buffer)
    if match is None:
        return None
    authority, lines, rest = match.groups()
    more = False
    if rest:
        names = rest.lower()
        if b"\nhost:" in names or b"\ncontent-length:" in names or b"\ntransfer-enc" in names:
            return None
        more = _says_more(names)
    request = ConnectRequest(_target(authority), lines, more)
    del buffer[: match.end()]
    return request


def _has_method(buffer: bytearray, stop: int) -> bool:
    """Reject input that cannot start with a method and a space, without waiting for a line end.

    Returns whether both have arrived.
    """
    token = _TOKEN.match(buffer, 0, min(stop, _MAX_METHOD_BYTES))
    after = token.end() if token else 0
    if after == stop:
        return False
    if not token or buffer[after] != 0x20:
        why = _NOT_HTTP.get(buffer[0], "it does not start with a method")
        raise BadRequest(400, f"not an HTTP request: {why}")
    return True


def _split_request_line(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Return method, request target and version."""
    match = _REQUEST_LINE.fullmatch(line.removesuffix(b"\r"))
    if match is None:
        raise BadRequest(400, f"malformed request line: {_shown(line)}")
    method, target, version = match.groups()
    return method, target, version


def _read_head(head: bytes) -> ConnectRequest:
    """Read a whole head with h11, and check what h11 does not."""
    method, authority, version = _split_request_line(head[: head.index(b"\n")])
    if version not in (b"1.0", b"1.1"):
        raise BadRequest(505, f"HTTP/{version.decode()} is not supported, only HTTP/1.1")
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError as exc:
        raise BadRequest(400, f"malformed request: {_printable(str(exc))[:200]}") from exc
    if not isinstance(event, h11.Request):
        raise BadRequest(400, "malformed request")
    if method != b"CONNECT":
        raise BadRequest(405, f"the method {_shown(method)} is not supported, only CONNECT")
    for name, value in event.headers:
        # RFC 9110 §9.3.6: CONNECT has no content; the bytes after it are the tunnel's, and a
        # client that announces a body would disagree with us about where they start.
        if name == b"transfer-encoding" or (name == b"content-length" and int(value)):
            raise BadRequest(400, f"a CONNECT request has no body, but {name.decode()} was sent")
    lines = b"".join(b"%b: %b\r\n" % pair for pair in event.headers)
    return ConnectRequest(_target(authority), lines, _says_more(b"\n" + lines))


def _says_more(lines: bytes) -> bool:
    """Whether a header line, in lower case, may be request metadata."""
    return b"\nisthmus-" in lines or b"\ntrace" in lines


# kube-apiserver dials the same kubelets and webhooks over and over; a HostPort never changes.
@lru_cache(maxsize=1024)
def _target(authority: bytes) -> HostPort:
    """Read ``host:port``, the only form of request target for CONNECT (RFC 9112 §3.2.3)."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise BadRequest(400, f"the destination is not host:port: {_shown(authority)}")
    name, address, port = match.groups(b"")
    if address and b":" not in address:
        raise BadRequest(400, f"not an IPv6 address in brackets: {_shown(authority)}")
    try:
        return HostPort((name or address).decode("ascii"), int(port))
    except ValueError as exc:
        raise BadRequest(400, f"bad destination {_shown(authority)}: {exc}") from exc


def _shown(data: bytes) -> str:
    """Quote bytes of a peer, shortened, in printable ASCII."""
    return ascii(data[:100].decode("latin-1")) + ("..." if len(data) > 100 else "")


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)
