"""Attacks on a health port that speaks HTTPS: who says nothing, or something else than TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl

import pytest
from clients import LIMIT_S
from stack import Stack

from isthmus.net import http_site, rules_slots

PLAIN = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: The beginning of a TLS record that never goes on.
HALF = bytes.fromhex("16030102000100")
#: One port has so many places; each kind of bad peer takes more than there are.
MANY = http_site.MOST_OPEN + 40


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def probe(stack: Stack, port: int) -> bytes:
    """Ask as a kubelet does, which does not look at the certificate."""
    context = unverified()
    with (
        socket.create_connection(("127.0.0.1", port), LIMIT_S) as sock,
        context.wrap_socket(sock) as tls,
    ):
        tls.sendall(PLAIN.replace(b"readyz", b"livez"))
        return tls.recv(64)


@pytest.mark.parametrize("said", [b"", HALF, PLAIN], ids=["silent", "half a hello", "plain HTTP"])
def test_bad_peers_are_bounded_and_block_nobody(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(http_site, "HANDSHAKE_S", 1.0)
    files = fresh.files
    server = fresh.add_server(health_cert=str(files.server_cert), health_key=str(files.server_key))
    port = server.health_port
    with contextlib.ExitStack() as opened:
        socks = []
        for _ in range(MANY):
            sock = opened.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S))
            with contextlib.suppress(OSError):
                sock.sendall(said)
            socks.append(sock)
        assert probe(fresh, port).startswith(b"HTTP/1.1 200")
        # Nobody is kept for long, and nothing is said to who does not speak TLS.
        heard = [_end(sock) for sock in socks]
        assert all(b"HTTP" not in each for each in heard)
    assert probe(fresh, port).startswith(b"HTTP/1.1 200")


def _end(sock: socket.socket) -> bytes:
    """What it hears before it is over; raises if it is not."""
    sock.settimeout(LIMIT_S)
    heard = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(4096):
            heard += data
    return heard


def test_handshakes_of_one_source_have_a_price(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = {"burst_s": 20.5 * rules_slots.STRANGER_S, "per_second_s": 0.0}
    monkeypatch.setattr(rules_slots.Allowance.__init__, "__kwdefaults__", enough)
    files = fresh.files
    server = fresh.add_server(health_cert=str(files.server_cert), health_key=str(files.server_key))

    at = ("127.0.0.1", server.health_port)
    for _ in range(20):
        with socket.create_connection(at, LIMIT_S) as sock, unverified().wrap_socket(sock):
            pass
    with pytest.raises(ConnectionResetError), socket.create_connection(at, LIMIT_S) as sock:
        sock.recv(1)
