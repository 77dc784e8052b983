"""The interface between frontends and the server: requests, and the backend that dials them."""

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

#: The metadata key of the connection id in a gRPC answer.
CONNECTION_ID = b"isthmus-connection-id"
#: The prefix of every connection id of this process, unique to it.
PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)


def new_connection_id() -> str:
    """A new id of a request, used in log, snapshot and audit, at the agent, and by the client."""
    return f"{PROCESS}-{next(_numbers):x}"


class RequestOrigin(Protocol):
    """The origin of a request, for the audit log and the trace."""

    @property
    def frontend(self) -> str:
        """How it arrived: the name of a mode."""

    @property
    def requester(self) -> Identity:
        """The requester, as authenticated by the transport."""

    @property
    def connection_id(self) -> str:
        """Its id, from ``new_connection_id``, which the client also receives."""

    @property
    def asking(self) -> RequestMetadata:
        """The client's metadata besides the target, trusted or not."""

    @property
    def client_address(self) -> str:
        """The client's address; empty on a UNIX socket."""


class Request(RequestOrigin, Protocol):
    """A client's request for a connection."""

    def established(self) -> BaseEnd | None:
        """Accept it; returns the end to join, or None if the client is gone."""

    def dial_failed(self, failure: DialFailure, detail: str) -> None:
        """Report the failure."""


class Dial(Protocol):
    """A pending dial."""

    def cancel(self) -> None:
        """Cancel: the result is no longer wanted."""


class Backend(Protocol):
    """The program that dials and joins."""

    def dial(self, request: Request, target: HostPort) -> Dial:
        """Start a dial; ``request.dial_failed`` or ``request.established`` answers."""

    def refused(self, status: int, request: Request | None = None, reason: str = "") -> None:
        """A request was answered with this status without a dial; None: before it was read."""

    def no_place(self, why: AdmissionRefusal, source: str) -> None:
        """A connection was ended because there are too many; where it came from."""

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """A TLS client failed to authenticate."""

    def abandoned(self) -> None:
        """A client left during its dial."""


# socket.socket.family makes an enum of the number each time, which costs 1.4 µs (timeit).
_family_of = socket.SocketType.family.__get__


def uds_identity(sock: socket.socket) -> Identity:
    """The peer's user, according to the kernel."""
    try:
        return _user(uid_at(sock))
    except OSError:
        return Identity("unknown", kind="uid")


@lru_cache(maxsize=1024)
def _user(uid: int) -> Identity:
    return Identity(str(uid), kind="uid")


class Client(Protocol):
    """A client with an address."""

    @property
    def client_address(self) -> str:
        """The client's address; empty on a UNIX socket."""


def payer_of(identity: Identity, client: Client) -> Identity | str:
    """The owner of the account that pays: the authenticated identity, else the address."""
    return client.client_address.rpartition(":")[0] if identity is ANONYMOUS else identity


def peer_address(sock: socket.socket) -> str:
    """The peer's address of a TCP connection, for display; empty if it has none."""
    if _family_of(sock) == socket.AF_UNIX:
        return ""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return ""
    host = str(host).removeprefix("::ffff:")  # an IPv4 peer of a dual-stack listener
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
