"""What the frontends of both sidecars share: a client until its tunnel stands, and who owns it.

What a client says is each sidecar's frontend.py; bounds, deadlines and counting are the
owner's, which is connections.py.
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
    """What clients have to say; ``repr()`` shows no secret."""

    username: bytes
    password: bytes = field(repr=False)

    def match(self, username: bytes, password: bytes) -> bool:
        """Compare both, in a time that tells nothing of either."""
        right_name = hmac.compare_digest(self.username, username)
        return hmac.compare_digest(self.password, password) and right_name


class SidecarOwner(Protocol):
    """The sidecar, as far as its clients ask it."""

    poller: Poller
    once: OncePer

    def credentials(self) -> Credentials | None:
        """What clients have to say now; None when everybody is served."""

    def asked(self, client: SidecarClient) -> None:
        """A client has said what it wants: its time for that is over."""

    def dial(self, target: HostPort, *, reached: Reached, failed: Failed) -> Dialing:
        """Open a connection for a client; counted, and with the time limit of all."""

    def joined(self, client: SidecarClient, end: BaseEnd, far: BaseEnd) -> None:
        """A client's target is reached and the client was told: join them."""

    def unserved(self, client: SidecarClient, why: Unserved, detail: str) -> None:
        """A client is over before it was served."""

    def served(self, client: SidecarClient) -> None:
        """A client is over, and had all that it wanted."""

    def say_goodbye(self, end: BaseEnd, answer: bytes = b"") -> None:
        """Send the last words and close, in a time that a reader needs at most."""


class SidecarClient(PaidEarly):
    """One client of a sidecar, until its tunnel stands: the early peer of its end.

    Subclasses read what it says (``heard``), and answer (``say_established``, ``say_failed``).
    """

    __slots__ = ("_dial", "connection_id", "end", "owner", "payer", "source", "target")

    #: How it came, for people.
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
        """Have an account pay for what is kept of this client; its place keeps the account open."""
        self.payer = payer
        if self.end is not None:
            self.end.charge_to(payer)

    # What subclasses say.

    def heard(self) -> None:
        """Read on in ``buffer``."""
        raise NotImplementedError

    def say_established(self, end: SocketEnd, far: BaseEnd) -> None:
        """Tell the client that its target is reached."""
        raise NotImplementedError

    def say_failed(self, failure: DialFailure, detail: str) -> bytes:
        """What to tell a client whose target is not reached."""
        raise NotImplementedError

    def too_late(self) -> bytes:
        """What to tell a client that did not say in time what it wants; empty resets it."""
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
        """Keep the bytes and look at them."""
        self.buffer += data
        if self.end is not None and self._dial is None:
            self.heard()
        # Asked only now: what was joined at once has taken the buffer.
        self.charge()
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        """Remember the half-close; who has not said what it wants will not say it any more."""
        super().write_eof()
        if self.end is not None and self.target is None:
            self.unserved(Unserved.LEFT)

    def abort(self, reason: Ending) -> None:
        """The client is gone: take its dial back."""
        super().abort(reason)
        if self.end is not None:
            self.unserved(Unserved.LEFT)

    # Dialing.

    def connect(self, target: HostPort) -> None:
        """Open a tunnel to the target."""
        self.target = target
        self.owner.asked(self)
        dial = self.owner.dial(target, reached=self._reached, failed=self._failed)
        if self.end is not None:  # else it is over already
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
        """End a client that was not served, with the protocol's own words or with a reset."""
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
