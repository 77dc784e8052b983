"""Peers with one fault each, as threads with real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

from isthmus.tools.pki.making import PkiFiles
from isthmus.wire.yamux import HEADER_BYTES, Flags, FrameType, Header

LIMIT_S = 20.0


@contextlib.contextmanager
def serving(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """Accept connections and handle each in a thread; gives the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def one(connection: socket.socket) -> None:
        connection.settimeout(LIMIT_S)
        with connection, contextlib.suppress(OSError):
            handle(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threads.append(threading.Thread(target=one, args=(connection,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join(LIMIT_S)
        for thread in threads:
            thread.join(LIMIT_S)


def tls_context(
    files: PkiFiles, *, alpn: tuple[str, ...] = ("isthmus/1",), clients: PkiFiles | None = None
) -> ssl.SSLContext:
    """A server's, with a certificate of these files; ``clients`` are whose are let in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server_cert, files.server_key)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        for authority in (clients.ca_cert, clients.client_ca_cert):
            context.load_verify_locations(authority)
    return context


def answering(context: ssl.SSLContext) -> Callable[[socket.socket], None]:
    """Speaks TLS, and answers one ping of yamux."""

    def handle(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            if len(tls.recv(HEADER_BYTES)) == HEADER_BYTES:
                tls.sendall(Header(FrameType.PING, Flags.ACK, 0, 1).to_bytes())
            tls.recv(1)

    return handle


def saying(context: ssl.SSLContext, answer: bytes) -> Callable[[socket.socket], None]:
    """Speaks TLS, reads something and says this."""

    def handle(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            tls.recv(4096)
            tls.sendall(answer)

    return handle


def closing(connection: socket.socket) -> None:
    """Reads something and closes."""
    connection.recv(4096)


def silent(connection: socket.socket) -> None:
    """Reads until the other side leaves, and says nothing."""
    while connection.recv(4096):
        pass
