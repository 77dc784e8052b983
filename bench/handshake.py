"""Checks, by recording one handshake, that the haproxy pair uses the intended TLS parameters.

A relay between the two haproxies records what crosses in clear: ClientHello and ServerHello. It
does not decrypt anything.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from processes import BenchError

# RFC 8446 §4.1.3: a ServerHello with this random is a HelloRetryRequest.
RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
TLS_AES_256_GCM_SHA384 = 0x1302
P256 = 0x0017
TLS13 = 0x0304
_CLIENT_HELLO, _SERVER_HELLO, _HANDSHAKE = 1, 2, 22
_PRE_SHARED_KEY, _SUPPORTED_VERSIONS, _KEY_SHARE = 41, 43, 51


@dataclass(frozen=True, slots=True)
class Hello:
    """The relevant fields of a ClientHello or ServerHello."""

    kind: int
    random: bytes
    suites: tuple[int, ...]
    extensions: dict[int, bytes]


def hellos(stream: bytes) -> list[Hello]:
    """The hellos at the start of one direction of a TLS connection.

    Later handshake messages are encrypted, in records of another type (RFC 8446 §5.2).
    """
    clear = b""
    while len(stream) >= 5:
        kind, _, length = struct.unpack_from("!BHH", stream)
        if kind == _HANDSHAKE:
            clear += stream[5 : 5 + length]
        stream = stream[5 + length :]
    found = []
    while len(clear) >= 4:
        kind, length = clear[0], int.from_bytes(clear[1:4], "big")
        if kind in (_CLIENT_HELLO, _SERVER_HELLO):
            found.append(_read_hello(kind, clear[4 : 4 + length]))
        clear = clear[4 + length :]
    return found


def _read_hello(kind: int, body: bytes) -> Hello:
    random = body[2:34]
    at = 35 + body[34]
    if kind == _CLIENT_HELLO:
        size = int.from_bytes(body[at : at + 2], "big")
        suites = struct.unpack_from(f"!{size // 2}H", body, at + 2)
        at += 2 + size
        at += 1 + body[at]
    else:
        suites = struct.unpack_from("!H", body, at)
        at += 3
    extensions = {}
    at += 2
    while at + 4 <= len(body):
        name, size = struct.unpack_from("!HH", body, at)
        extensions[name] = body[at + 4 : at + 4 + size]
        at += 4 + size
    return Hello(kind, random, suites, extensions)


def offered_groups(hello: Hello) -> list[int]:
    """The groups a ClientHello has a key share for."""
    shares = hello.extensions.get(_KEY_SHARE, b"\0\0")[2:]
    groups = []
    while len(shares) >= 4:
        group, size = struct.unpack_from("!HH", shares)
        groups.append(group)
        shares = shares[4 + size :]
    return groups


def faults(upstream: bytes, downstream: bytes) -> list[str]:
    """The deviations of a recorded handshake from the intended parameters."""
    clients, servers = hellos(upstream), hellos(downstream)
    if not clients or not servers:
        return ["no TLS handshake recorded"]
    client, server = clients[0], servers[0]
    if server.random == RETRY_RANDOM or len(clients) > 1:
        return ["HelloRetryRequest: the two sides do not agree on a group at once"]
    wrong = []
    if offered_groups(client) != [P256]:
        wrong.append(f"the dialing side has key shares for {offered_groups(client)}, not P-256")
    if server.extensions.get(_KEY_SHARE, b"")[:2] != P256.to_bytes(2, "big"):
        wrong.append("key exchange is not P-256")
    if server.suites[0] != TLS_AES_256_GCM_SHA384:
        wrong.append(f"cipher suite is {server.suites[0]:#06x}, not TLS_AES_256_GCM_SHA384")
    if server.extensions.get(_SUPPORTED_VERSIONS) != TLS13.to_bytes(2, "big"):
        wrong.append("version is not TLS 1.3")
    if _PRE_SHARED_KEY in client.extensions or _PRE_SHARED_KEY in server.extensions:
        wrong.append("a session was resumed")
    return wrong


def record(
    listener: socket.socket, upstream_port: int, exchange: Callable[[], socket.socket]
) -> tuple[bytes, bytes]:
    """Relay one connection from the listener to the port and return both directions.

    ``exchange`` opens a connection that makes the first side dial the listener and sends a
    byte on it; the relay ends when an answer has come back on that connection.
    """
    seen = {True: b"", False: b""}
    deadline = time.monotonic() + 10
    with exchange() as client:
        listener.settimeout(5)
        try:
            near, _ = listener.accept()
        except TimeoutError as exc:
            raise BenchError("haproxy did not dial: no handshake to look at") from exc
        with near, socket.create_connection(("127.0.0.1", upstream_port), 5) as far:
            while time.monotonic() < deadline:
                ready, _, _ = select.select([near, far, client], [], [], 0.1)
                if client in ready:
                    break
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        raise BenchError("the handshake between the haproxies failed")
                    seen[source is near] += data
                    with suppress(BrokenPipeError):
                        (far if source is near else near).sendall(data)
            else:
                raise BenchError("nothing came back through the haproxy pair")
    return seen[True], seen[False]
