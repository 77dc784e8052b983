"""TLS over a plain socket by ssl.SSLObject: half-close, resets told from ends, little memory.

Not uvloop's TLS: that cannot half-close (the reply is dropped), takes 1.1 s of CPU per GB where
this takes 0.7 to 0.9, and 610 kB per busy connection where this takes 104. The read buffers
belong to the poller and are shared by all its connections.

contexts.py builds and reloads contexts.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

from isthmus.net.poller import CIPHER_BYTES, RECORD_BYTES, Poller
from isthmus.net.raw import MOST_LAST_READS, RawSocket
from isthmus.net.socket_end import SOCKET_END_SLOTS, SocketEndBase
from isthmus.tunnel.end import Early

#: RFC 8446 §5.1: type, version and length of a record; §5.2: its size when encrypted
#: (RFC 5246 §6.2.3 allows more).
_HEADER_BYTES = 5
_MOST_RECORD_BYTES = _HEADER_BYTES + RECORD_BYTES + 2048
#: A peer that causes answers (key updates) but never reads is disconnected at this size.
_MOST_UNREAD_BYTES = 16 * 1024 * 1024


class TlsSocket(RawSocket):
    """A TLS socket; subclasses receive plaintext by ``deliver`` and ends by ``ended``."""

    __slots__ = (
        "_cut",
        "_incoming",
        "_missing",
        "_outgoing",
        "_read_bytes",
        "_recv_into",
        "_tls_read",
        "_tls_write",
        "_unsecured",
        "peer_done",
        "secured",
        "tls",
    )

    def __init__(
        self,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
        read_bytes: int = 64 * 1024,
    ) -> None:
        """Act as server, or as client if ``server_hostname`` is given."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._tls_read = self.tls.read
        self._tls_write = self.tls.write
        self._recv_into = sock.recv_into
        self._read_bytes = min(read_bytes, CIPHER_BYTES)
        self._unsecured: list[bytes | None] = []  # written before the handshake; None is the end
        self._missing = 0  # bytes missing of a record passed to OpenSSL in part
        self._cut = b""  # the beginning of a record header, also passed to OpenSSL
        self.secured = False
        self.peer_done = False
        RawSocket.__init__(self, sock, poller)

    # Implemented by subclasses.

    def deliver(self, plain: memoryview) -> bool:
        """Take plaintext, valid only during the call; False pauses reading."""
        raise NotImplementedError

    def ended(self) -> None:
        """The peer's close_notify arrived: that direction is done."""
        raise NotImplementedError

    def handshake_done(self) -> None:
        """The handshake succeeded."""

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """The handshake failed; broken() follows."""

    def tls_failed(self, error: ssl.SSLError) -> None:
        """The peer sent an alert, or violated TLS, after the handshake; broken() follows."""

    # Reading.

    def begin(self) -> None:
        """Start the handshake: as client, send hello."""
        self._shake_hands()

    def readable(self) -> None:
        """Read ciphertext once and deliver all of its plaintext."""
        cipher = self.poller.cipher
        try:
            size = self._recv_into(cipher, self._read_bytes)
        except BlockingIOError:
            return
        except OSError:
            self.broken()
            return
        self._take(cipher[:size])
        if (size == self._read_bytes or self.peer_shut) and size and not self.closed:
            if self.paused:
                self.unread = True
            elif not self._queued:
                self._queued = True
                self.poller.again(self.read_again)

    def last_words(self) -> None:
        """Deliver what arrived before a reset."""
        cipher = self.poller.cipher
        with contextlib.suppress(OSError):
            for _ in range(MOST_LAST_READS):
                size = self._recv_into(cipher, self._read_bytes)
                if not size or not self.secured or self.closed:
                    return
                self._take(cipher[:size])

    def _take(self, cipher: memoryview) -> None:
        """Deliver the plaintext of this ciphertext; empty means the end of file."""
        pos, size = 0, len(cipher)
        if not size:
            self._incoming.write_eof()
            if not self.secured:
                self._shake_hands()
                return
        while not self.secured:
            # Also incomplete records: OpenSSL detects from the start what is not TLS.
            end = self._record_end(cipher, pos)
            self._incoming.write(cipher[pos:end])
            pos = min(end, size)
            self._shake_hands()
            if self.closed or pos == size:
                return
        self._decrypt(cipher, pos)

    def _record_end(self, cipher: memoryview, pos: int) -> int:
        """The end of the record that starts or continues here; beyond the data if incomplete."""
        size = len(cipher)
        if self._missing:
            end = pos + self._missing
        elif not self._cut and size - pos >= _HEADER_BYTES:
            end = pos + _HEADER_BYTES + (cipher[pos + 3] << 8 | cipher[pos + 4])
        else:
            head = self._cut + bytes(cipher[pos : pos + _HEADER_BYTES - len(self._cut)])
            if len(head) < _HEADER_BYTES:
                self._cut = head
                return size + 1
            end = pos - len(self._cut) + _HEADER_BYTES + (head[3] << 8 | head[4])
            self._cut = b""
        if end - pos > _MOST_RECORD_BYTES:
            return size  # OpenSSL rejects it by its header, without waiting for the rest
        self._missing = max(0, end - size)
        return end

    def _shake_hands(self) -> None:
        failure: ssl.SSLError | None = None
        try:
            self.tls.do_handshake()
            self.secured = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as exc:
            failure = exc
        if self._outgoing.pending:
            self.put(self._outgoing.read())  # on failure: the alert with the reason
        if failure is not None:
            self.handshake_failed(failure)
            self.close()  # not a reset, which would overtake the alert
            self.broken()
        elif self.secured:
            self.handshake_done()
            if self._unsecured and not self.closed:
                self._send_unsecured()

    def _send_unsecured(self) -> None:
        kept, self._unsecured = self._unsecured, []
        for data in kept:
            if data is None:
                self.close_notify()
            else:
                self.encrypt(data)
        if self._out is None:
            self.drained()

    def _decrypt(self, cipher: memoryview, pos: int) -> None:
        # OpenSSL gets one record at a time: its buffers stay, for the life of a connection, a third
        # larger than their largest content, and a link that was once given 256 KiB would keep 340
        # kB. This costs nothing (timeit, 64 KiB: 25.8 us at once, 26.0 by records).
        feed, read, plain = self._incoming.write, self._tls_read, self.poller.plain
        size, total = len(cipher), 0
        over, broken = False, not size
        fault: ssl.SSLError | None = None
        while pos < size and not over and not broken:
            end = self._record_end(cipher, pos)
            feed(cipher[pos:end])
            pos = end
            if end > size:
                break  # the rest of this record has not arrived
            try:
                got = read(RECORD_BYTES, plain[total:])
                total += got  # type: ignore[operator]  # an int if a buffer is given
                over = not got
            except ssl.SSLWantReadError:
                continue  # a record without data: a key update
            except ssl.SSLZeroReturnError:
                over = True
            except ssl.SSLError as exc:
                broken, fault = True, exc
        # All records of a read together, so that frames and writes are complete.
        if total and not self.deliver(plain[:total]):
            self.paused = True
        if self._outgoing.pending and not self.closed:
            self.put(self._outgoing.read())  # key updates are answered
            broken = broken or self.out_bytes > _MOST_UNREAD_BYTES
        if self.closed:
            return
        if over:
            self.peer_done = True
            self.ended()
        elif broken and not self.peer_done:
            if fault is not None:
                self.tls_failed(fault)
            if not self.closed:
                self.broken()

    # Writing.

    def encrypt(self, data: bytes) -> bool:
        """Send plaintext; False when too much is unsent."""
        parts: list[bytes] = []
        try:
            if len(data) <= RECORD_BYTES:
                self._tls_write(data)
                return self.put(self._outgoing.read())
            view = memoryview(data)
            for pos in range(0, len(data), RECORD_BYTES):  # see _decrypt: by records
                self._tls_write(view[pos : pos + RECORD_BYTES])
                parts.append(self._outgoing.read())
        except ssl.SSLWantReadError:  # no keys yet: an end may be joined before its handshake
            self._unsecured.append(data)
            return False
        except ssl.SSLError:
            self.poller.again(self._break)
            return True
        return self.put_parts(parts)

    def close_notify(self) -> None:
        """End this direction; the other continues (RFC 8446 §6.1)."""
        if not self.secured:
            self._unsecured.append(None)
            return
        with contextlib.suppress(ssl.SSLError, ValueError):
            self.tls.unwrap()
        if self._outgoing.pending:
            self.put(self._outgoing.read())


class TlsEnd(SocketEndBase, TlsSocket):
    """One side of a tunnel that is a TLS connection."""

    __slots__ = SOCKET_END_SLOTS

    def __init__(
        self,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        early: Early | None = None,
        *,
        server_hostname: str | None = None,
    ) -> None:
        self.init_socket_end(early)
        TlsSocket.__init__(self, sock, poller, context, server_hostname=server_hostname)

    def deliver(self, plain: memoryview) -> bool:
        """Pass plaintext on to the peer."""
        return self.peer.write(bytes(plain))

    def ended(self) -> None:
        """Pass the half-close on to the peer."""
        self.got_eof()

    def write(self, data: bytes) -> bool:
        if self.closed or self._eof_out:
            return True
        self.bytes_written += len(data)
        return self.encrypt(data)

    def send_eof(self) -> None:
        self.close_notify()
