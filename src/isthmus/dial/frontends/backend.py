"""What every frontend needs from the rest: somebody who dials for a request and joins."""

from __future__ import annotations

import itertools
import secrets
import socket
import ssl
from functools import lru_cache
from typing import Protocol

from isthmus.errors import DialFailure
from isthmus.net.connection_gate import uid_at
from isthmus.net.rules_slots import AdmissionRefusal
from isthmus.tunnel.end import BaseEnd
from isthmus.values import ANONYMOUS, HostPort, Identity, RequestMetadata

#: The metadata of a gRPC answer that has the connection id.
CONNECTION_ID = b"isthmus-connection-id"
#: The first part of every connection id of this process: another process has another.
PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)


def new_connection_id() -> str:
    """Name a request: the same in log, snapshot and audit, at the agent, and for the client."""
    return f"{PROCESS}-{next(_numbers):x}"


class RequestOrigin(Protocol):
    """Who asks for a connection, and how: what the audit log and the trace have of it."""

    @property
    def frontend(self) -> str:
        """How it came, for people: the name of a mode."""

    @property
    def requester(self) -> Identity:
        """Who asks, as the transport proved it."""

    @property
    def connection_id(self) -> str:
        """What it is called, from ``new_connection_id``; the client is told."""

    @property
    def asking(self) -> RequestMetadata:
        """What the client says about it besides the target, believed or not."""

    @property
    def client_address(self) -> str:
        """Where the client is; empty on a UNIX socket."""


class Request(RequestOrigin, Protocol):
    """One client that wants a connection."""

    def established(self) -> BaseEnd | None:
        """Say yes; give the end that may now be joined, or None if the client is gone."""

    def dial_failed(self, failure: DialFailure, detail: str) -> None:
        """Say why not."""


class Dial(Protocol):
    """A dial under way."""

    def cancel(self) -> None:
        """Nobody waits any more."""


class Backend(Protocol):
    """Somebody who dials and joins."""

    def dial(self, request: Request, target: HostPort) -> Dial:
        """Start a dial; ``request.dial_failed`` or ``request.established`` answers."""

    def refused(self, status: int, request: Request | None = None, reason: str = "") -> None:
        """A request was answered with this status without a dial; None: before it was read."""

    def no_place(self, why: AdmissionRefusal, source: str) -> None:
        """A connection was ended because there are too many; where it came from."""

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """A TLS client did not prove who it is."""

    def abandoned(self) -> None:
        """A client left while its dial was under way."""


# socket.socket.family makes an enum of the number each time, which costs 1.4 µs (timeit).
_family_of = socket.SocketType.family.__get__


def uds_identity(sock: socket.socket) -> Identity:
    """Whose it is, as the kernel says."""
    try:
        return _user(uid_at(sock))
    except OSError:
        return Identity("unknown", kind="uid")


@lru_cache(maxsize=1024)
def _user(uid: int) -> Identity:
    return Identity(str(uid), kind="uid")


class Client(Protocol):
    """Somebody who came from somewhere."""

    @property
    def client_address(self) -> str:
        """Where the client is; empty on a UNIX socket."""


def payer_of(identity: Identity, client: Client) -> Identity | str:
    """Whose account pays: who somebody proved to be, else the address they come from."""
    return client.client_address.rpartition(":")[0] if identity is ANONYMOUS else identity


def peer_address(sock: socket.socket) -> str:
    """The other side of a TCP connection, as it is shown; empty when it has none."""
    if _family_of(sock) == socket.AF_UNIX:
        return ""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return ""
    host = str(host).removeprefix("::ffff:")  # an IPv4 peer of a dual-stack listener
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
