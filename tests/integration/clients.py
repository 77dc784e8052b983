"""Blocking clients of the CONNECT frontend, and the targets behind it.

A target's kernel takes the connection, so one thread can connect first and accept afterwards.
Every socket has a time limit: a test that waits for what never comes fails and does not hang.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple, Self

LIMIT_S = 20.0
MIB = 1024 * 1024
_CHANCE = random.SystemRandom()  # other processes choose as well


def reset(sock: socket.socket) -> None:
    """Close with an RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Client:
    """One side of a plain connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(LIMIT_S)
        self.sock = sock
        self.kept = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.sock.sendall(data)

    def recv(self) -> bytes:
        """Some bytes, or nothing at the clean end; an error when it was cut."""
        if self.kept:
            data, self.kept = self.kept, b""
            return data
        return self._receive()

    def _receive(self) -> bytes:
        return self.sock.recv(256 * 1024)

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close."""
        self.sock.close()

    def reset(self) -> None:
        """Close with an RST where there is one."""
        reset(self.sock)

    def read_exactly(self, size: int) -> bytes:
        """So many bytes; ConnectionError if the end comes first."""
        got = bytearray()
        while len(got) < size:
            data = self.recv()
            if not data:
                raise ConnectionError(f"the end came after {len(got)} of {size} bytes")
            got += data
        self.kept = bytes(got[size:]) + self.kept
        return bytes(got[:size])

    def read_to_end(self) -> bytes:
        """Everything until the clean end."""
        return b"".join(iter(self.recv, b""))

    def read_head(self) -> bytes:
        """A reply's head, blank line included; less if the end comes first."""
        got = b""
        while b"\r\n\r\n" not in got:
            data = self.recv()
            if not data:
                return got
            got += data
        head, blank, self.kept = got.partition(b"\r\n\r\n")
        return head + blank


class TlsClient(Client):
    """One side of a TLS connection that can half-close, which SSLSocket cannot.

    One thread may send while another receives.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        super().__init__(sock)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ready: list[bytes] = []
        self._lock = threading.Lock()  # never held while the socket blocks
        self.tls = context.wrap_bio(self._in, self._out, server_hostname=name)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._push()
                self._pull()
        self._push()

    def _push(self) -> None:
        if self._out.pending:
            self.sock.sendall(self._out.read())

    def _pull(self) -> None:
        data = self.sock.recv(256 * 1024)
        with self._lock:
            if data:
                self._in.write(data)
            else:
                self._in.write_eof()

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with self._lock:
                view = view[self.tls.write(view[:MIB]) :]
            self._push()

    def _receive(self) -> bytes:
        while True:
            try:
                with self._lock:
                    return self._ready.pop(0) if self._ready else self.tls.read(256 * 1024)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLWantReadError:
                self._pull()

    def half_close(self) -> None:
        with self._lock:
            # unwrap() looks for the peer's close_notify, and fails when it finds data.
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while data := self.tls.read(256 * 1024):
                    self._ready.append(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.unwrap()
        self._push()


def connect_uds(path: str) -> Client:
    """Connect to a UNIX socket."""
    client = Client(socket.socket(socket.AF_UNIX))
    try:
        client.sock.connect(path)
    except OSError:
        client.close()
        raise
    return client


class Answer(NamedTuple):
    """A refusal, read to its end."""

    status: int
    head: str
    body: str


def status_of(head: bytes) -> int:
    """The status of a reply's head."""
    return int(head.split(b" ", 2)[1])


def head_for(target: str) -> bytes:
    """The request that asks for a target."""
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()


def ask(client: Client, request: bytes) -> Answer:
    """Send a request that will be refused, and read the answer to its clean end."""
    client.send(request)
    head = client.read_head()
    return Answer(status_of(head), head.decode(), client.read_to_end().decode())


def tunnel(client: Client, target: str, early: bytes = b"") -> Client:
    """Turn a connection into a tunnel to the target, or fail."""
    try:
        client.send(head_for(target) + early)
        head = client.read_head()
        assert head.startswith(b"HTTP/1.1 200 Connection Established\r\n"), head + client.recv()
    except BaseException:
        client.close()
        raise
    return client


class Target:
    """A listening socket that a test accepts from."""

    def __init__(self, host: str = "127.0.0.1", backlog: int = 1024) -> None:
        self._sock = socket.create_server((host, 0), backlog=backlog)
        self._sock.settimeout(LIMIT_S)
        self.port = int(self._sock.getsockname()[1])
        self.name = f"{host}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def accept(self) -> Client:
        """The next connection."""
        return Client(self._sock.accept()[0])

    def came(self) -> bool:
        """Tell whether somebody has connected and was not accepted yet."""
        return bool(select.select([self._sock], [], [], 0)[0])


@contextlib.contextmanager
def full_target() -> Iterator[Target]:
    """A target whose queue of one is full: its kernel answers no more, so a dial hangs."""
    with Target(backlog=0) as target, Client(socket.socket()) as filler:
        filler.sock.connect(("127.0.0.1", target.port))
        yield target


def free_port() -> int:
    """A port that nobody listens on, and that no outgoing connection is given meanwhile."""
    while True:
        port = _CHANCE.randrange(20_000, 32_768)  # Linux gives those from 32768 on
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def echo_target() -> Iterator[Target]:
    """A target that sends back what comes, with a half-close for a half-close."""
    with Target() as target, contextlib.ExitStack() as opened:
        stopping = threading.Event()

        def echo(conn: Client) -> None:
            conn.sock.settimeout(None)  # a client may be silent for as long as it likes
            with contextlib.suppress(OSError), conn:
                while data := conn.recv():
                    conn.send(data)
                conn.half_close()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while not stopping.is_set():
                    try:
                        conn = target.accept()
                    except TimeoutError:  # nobody came for a while: that is no reason to leave
                        continue
                    threading.Thread(target=echo, args=(conn,), daemon=True).start()

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        try:
            yield target
        finally:
            stopping.set()
            # A blocked accept() wakes by a connection, not by the close of its socket.
            with contextlib.suppress(OSError):
                opened.enter_context(socket.create_connection(("127.0.0.1", target.port)))
            server.join(LIMIT_S)


def blocks(seed: int, total: int) -> Iterator[bytes]:
    """Bytes that differ from place to place, in pieces of up to 1 MiB; cheap to make."""
    base = random.Random(seed).randbytes(MIB + 251)
    for number in range(-(-total // MIB)):
        start = number % 251
        yield base[start : start + min(MIB, total - number * MIB)]


def send_all(client: Client, seed: int, total: int) -> str:
    """Send so many bytes and half-close; the checksum of what was sent."""
    sum_ = hashlib.sha256()
    for block in blocks(seed, total):
        sum_.update(block)
        client.send(block)
    client.half_close()
    return sum_.hexdigest()


def receive_all(client: Client) -> tuple[int, str]:
    """Read to the clean end; how much it was, and its checksum."""
    sum_, size = hashlib.sha256(), 0
    while data := client.recv():
        sum_.update(data)
        size += len(data)
    return size, sum_.hexdigest()
