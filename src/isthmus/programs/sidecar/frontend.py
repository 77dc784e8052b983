"""Shared by the frontends of both sidecars: a client until its tunnel is open, and its owner.

Each sidecar's frontend parses its protocol; the owner, connections.py, has limits, deadlines and
counters.
"""

from __future__ import annotations

import hmac
import socket
from dataclasses import dataclass, field
from typing import Protocol

from isthmus.dial.frontends.backend import new_connection_id, peer_address
from isthmus.errors import DialFailure
from isthmus.logs import OncePer
from isthmus.net.charging import PaidEarly
from isthmus.net.connect import Dialing, Failed, Reached
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.sidecar.metrics import Unserved
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.values import HostPort


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that clients need; ``repr()`` shows no secret."""

    username: bytes
    password: bytes = field(repr=False)

    def match(self, username: bytes, password: bytes) -> bool:
        """Compare both in constant time."""
        right_name = hmac.compare_digest(self.username, username)
        return hmac.compare_digest(self.password, password) and right_name


class SidecarOwner(Protocol):
    """What clients need of the sidecar."""

    poller: Poller
    once: OncePer

    def credentials(self) -> Credentials | None:
        """The credentials that clients need; None if they need none."""

    def asked(self, client: SidecarClient) -> None:
        """A client has sent its request: stop its handshake timeout."""

    def dial(self, target: HostPort, *, reached: Reached, failed: Failed) -> Dialing:
        """Open a connection for a client; counted, with the common time limit."""

    def joined(self, client: SidecarClient, end: BaseEnd, far: BaseEnd) -> None:
        """The target is reached and the client has its answer: join them."""

    def unserved(self, client: SidecarClient, why: Unserved, detail: str) -> None:
        """A client has ended before it was served."""

    def served(self, client: SidecarClient) -> None:
        """A client has ended after it was served."""

    def say_goodbye(self, end: BaseEnd, answer: bytes = b"") -> None:
        """Send the last answer and close, with time to read it."""


class SidecarClient(PaidEarly):
    """One client of a sidecar until its tunnel is open: the early peer of its end.

    Subclasses parse its messages (``heard``) and answer (``say_established``, ``say_failed``).
    """

    __slots__ = ("_dial", "connection_id", "end", "owner", "payer", "source", "target")

    #: The name of its protocol in messages.
    frontend = ""

    def __init__(self, owner: SidecarOwner, sock: socket.socket) -> None:
        super().__init__()
        self.owner = owner
        self.source = peer_address(sock)
        self.target: HostPort | None = None
        self.connection_id = new_connection_id()
        self._dial: Dialing | None = None
        self.payer: Account | None = None
        self.end: SocketEnd | None = SocketEnd(sock, owner.poller, self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from {self.source}>"

    def pay_by(self, payer: Account) -> None:
        """Charge what is kept of this client to an account; its place keeps the account open."""
        self.payer = payer
        if self.end is not None:
            self.end.charge_to(payer)

    # For subclasses.

    def heard(self) -> None:
        """Parse more of ``buffer``."""
        raise NotImplementedError

    def say_established(self, end: SocketEnd, far: BaseEnd) -> None:
        """Tell the client that its target is reached."""
        raise NotImplementedError

    def say_failed(self, failure: DialFailure, detail: str) -> bytes:
        """The answer to a client whose target is not reached."""
        raise NotImplementedError

    def too_late(self) -> bytes:
        """The answer to a client without a request in time; empty resets it."""
        return b""

    def no_more(self) -> None:
        """End a client that is kept for another request, between two of them."""
        end, self.end = self.end, None
        if end is not None:
            self.owner.served(self)
            if end.ending is None:
                self.owner.say_goodbye(end)

    # As the peer of its end.

    def write(self, data: bytes) -> bool:
        """Keep the bytes and parse them."""
        self.buffer += data
        if self.end is not None and self._dial is None:
            self.heard()
        # Checked last: a join that happened at once has taken the buffer.
        self.charge()
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        """Remember the half-close; an incomplete request will never be complete."""
        super().write_eof()
        if self.end is not None and self.target is None:
            self.unserved(Unserved.LEFT)

    def abort(self, reason: Ending) -> None:
        """The client is gone: cancel its dial."""
        super().abort(reason)
        if self.end is not None:
            self.unserved(Unserved.LEFT)

    # Dialing.

    def connect(self, target: HostPort) -> None:
        """Open a tunnel to the target."""
        self.target = target
        self.owner.asked(self)
        dial = self.owner.dial(target, reached=self._reached, failed=self._failed)
        if self.end is not None:  # otherwise it has ended
            self._dial = dial

    def _reached(self, far: BaseEnd) -> None:
        self._dial = None
        end, self.end = self.end, None
        if end is None or end.ending is not None:
            far.abort(Ending.CANCELLED)
            return
        self.say_established(end, far)
        self.owner.joined(self, end, far)

    def _failed(self, failure: DialFailure, detail: str) -> None:
        self._dial = None
        self.unserved(
            Unserved.NO_DESTINATION, detail or failure.value, self.say_failed(failure, detail)
        )

    # Ending.

    def unserved(self, why: Unserved, detail: str = "", answer: bytes = b"") -> None:
        """End a client that was not served, with an answer of its protocol or with a reset."""
        end, self.end = self.end, None
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.cancel()
        if end is None:
            return
        self.owner.unserved(self, why, detail)
        if end.ending is not None:
            return
        if answer:
            self.owner.say_goodbye(end, answer)
        elif self.eof and why is Unserved.LEFT:
            end.write_eof()
        else:
            end.abort(Ending.CANCELLED)
