"""Connecting to a peer as the program would, one step after the other, and noting how far it came.

Plain asyncio with a deadline for each wait; what the notes mean is peers.py. A link is never made:
after the handshake a ping is sent, which every peer answers before anybody has to say who they are,
and where the protocol has one a goodbye: a server of ours counts no link that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import time
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime

from isthmus.errors import DialFailure, LinkError
from isthmus.frame.layout import Peer
from isthmus.net.certificates import TlsFiles
from isthmus.net.connect import FAILURE_OF_ERRNO
from isthmus.net.contexts import client_context
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.net.through_proxy import connect_through
from isthmus.values import HostPort
from isthmus.wire.http2 import PREFACE
from isthmus.wire.link import RELAY_ALPN, is_ours
from isthmus.wire.yamux import Flags, FrameType, GoAwayCode, Header

# In one write: whoever answers the ping has read the goodbye as well.
_PING_AND_LEAVE = (
    Header(FrameType.PING, Flags.SYN, 0, 1).to_bytes()
    + Header(FrameType.GO_AWAY, Flags.NONE, 0, GoAwayCode.NORMAL).to_bytes()
)
_EMPTY_SETTINGS = bytes.fromhex("000000040000000000")  # RFC 9113 §6.5
_MOST_BYTES = 64 * 1024
#: In TLS 1.3 a client hears that its certificate is refused only after its handshake.
_REFUSAL_S = 0.25


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at one address; what stays empty was not come to."""

    peer: Peer
    host: str
    at: HostPort
    proxy: ProxyAddress | None = None
    connect_s: float | None = None
    failure: DialFailure | None = None
    trouble: str = ""
    tls_version: str = ""
    alpn: str | None = None
    verify_code: int = 0
    verify_words: str = ""
    certificate: bytes = field(default=b"", repr=False)
    answered: bool | None = None
    answer_trouble: str = ""
    date: datetime | None = None

    @property
    def name(self) -> str:
        """What the certificate has to be for."""
        return self.peer.name or self.host


async def attempt(note: Attempt, timeout_s: float) -> Attempt:
    """Go as far as it goes; everything is noted and nothing raised but ConfigError.

    Raises:
        ConfigError: the certificate files of our own cannot be used.
    """
    peer = note.peer
    context = client_context(peer.files, alpn=peer.alpn) if peer.files is not None else None
    sock = await _connect(note, timeout_s)
    if sock is None:
        return note
    if context is None:
        sock.close()
        return note
    streams = await _handshake(note, sock, context, timeout_s)
    if streams is None:
        if note.verify_code:
            await _look_at_certificate(note, timeout_s)
        return note
    try:
        await _ask(note, *streams, timeout_s)
    finally:
        streams[1].transport.abort()
    return note


async def _connect(note: Attempt, timeout_s: float) -> socket.socket | None:
    """Connect, through the proxy where there is one."""
    loop = asyncio.get_running_loop()
    started = time.monotonic()
    try:
        if note.proxy is not None:
            sock = await _by_proxy(loop, note, timeout_s)
        else:
            sock = await _directly(loop, note.at, timeout_s)
    except TimeoutError:
        note.failure, note.trouble = DialFailure.TIMED_OUT, f"no answer within {timeout_s:g} s"
    except LinkError as error:
        note.failure, note.trouble = DialFailure.UNREACHABLE, str(error)
    except OSError as error:
        note.failure = FAILURE_OF_ERRNO.get(error.errno or 0, DialFailure.INTERNAL)
        # asyncio puts the address into its own words, which is said already.
        note.trouble = (os.strerror(error.errno) if error.errno else str(error)).lower()
    else:
        note.connect_s = time.monotonic() - started
        return sock
    return None


async def _directly(
    loop: asyncio.AbstractEventLoop, at: HostPort, timeout_s: float
) -> socket.socket:
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.sock_connect(sock, (at.host, at.port))
    except BaseException:
        sock.close()
        raise
    return sock


async def _by_proxy(
    loop: asyncio.AbstractEventLoop, note: Attempt, timeout_s: float
) -> socket.socket:
    assert note.proxy is not None
    poller = Poller(loop)
    sock = await connect_through(poller, Resolver(loop), note.proxy, note.at, timeout_s=timeout_s)
    if sock.family == socket.AF_UNIX:
        return sock  # the poller carries it to an https proxy
    copy = socket.socket(fileno=socket.dup(sock.fileno()))
    copy.setblocking(False)
    poller.close(sock)
    poller.shut_down()
    return copy


async def _handshake(
    note: Attempt, sock: socket.socket, context: ssl.SSLContext, timeout_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                sock=sock, ssl=context, server_hostname=note.name
            )
    except ssl.SSLCertVerificationError as error:
        note.verify_code, note.verify_words = error.verify_code, error.verify_message
        note.trouble = note.verify_words
    except ssl.SSLError as error:
        note.trouble = (error.reason or str(error)).lower().replace("_", " ")
    except TimeoutError:
        note.trouble = f"nothing came back within {timeout_s:g} s"
    except OSError as error:
        cut = isinstance(error, ConnectionError) or error.errno == errno.EPIPE
        note.trouble = "the connection was cut" if cut else (error.strerror or str(error)).lower()
    else:
        secure: ssl.SSLObject = writer.get_extra_info("ssl_object")
        note.tls_version = secure.version() or ""
        note.alpn = secure.selected_alpn_protocol()
        note.certificate = secure.getpeercert(True) or b""
        return reader, writer
    return None


async def _look_at_certificate(note: Attempt, timeout_s: float) -> None:
    """Handshake again and believe everything, to see what the certificate says."""
    context = client_context(TlsFiles("", "", ""), alpn=note.peer.alpn)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    again = Attempt(peer=note.peer, host=note.host, at=note.at, proxy=note.proxy)
    sock = await _connect(again, timeout_s)
    if sock is None:
        return
    streams = await _handshake(again, sock, context, timeout_s)
    if streams is not None:
        note.tls_version, note.alpn = again.tls_version, again.alpn
        note.certificate = again.certificate
        streams[1].transport.abort()


async def _ask(
    note: Attempt, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float
) -> None:
    """Send what every peer of that protocol answers; a refused certificate shows only now."""
    question = _question(note)
    if not question:
        return
    note.answered = False
    try:
        async with asyncio.timeout(timeout_s):
            said = await _early(reader)
            if not said and not reader.at_eof():
                writer.write(question)
                await writer.drain()
                said = await reader.read(_MOST_BYTES)
    except TimeoutError:
        note.answer_trouble = f"nothing came back within {timeout_s:g} s"
    except ssl.SSLError as error:
        note.answer_trouble = (error.reason or str(error)).lower().replace("_", " ")
    except OSError as error:
        note.answer_trouble = (error.strerror or "the connection was cut").lower()
    else:
        note.answered = bool(said)
        note.answer_trouble = "" if said else "the connection was ended"
        if note.peer.http:
            note.date = date_of(said)


async def _early(reader: asyncio.StreamReader) -> bytes:
    """Whatever comes unasked: a refusal, which writing to who has left would lose."""
    try:
        return await asyncio.wait_for(reader.read(_MOST_BYTES), _REFUSAL_S)
    except TimeoutError:
        return b""


def _question(note: Attempt) -> bytes:
    if is_ours(note.alpn) or note.alpn == RELAY_ALPN:
        return _PING_AND_LEAVE
    if note.alpn == "h2":
        return PREFACE + _EMPTY_SETTINGS
    if note.peer.http:
        return f"GET /version HTTP/1.1\r\nHost: {note.name}\r\nConnection: close\r\n\r\n".encode()
    return b""


def date_of(head: bytes) -> datetime | None:
    """The Date of an answer (RFC 9110 §6.6.1); None without one."""
    for line in head.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"date":
            with contextlib.suppress(ValueError):
                return parsedate_to_datetime(value.decode("ascii", "replace").strip())
    return None
