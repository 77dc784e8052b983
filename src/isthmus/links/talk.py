"""The common part of both link protocols: the interface of a talk, and the greeting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import Protocol

from isthmus.errors import DialFailure, ProtocolError
from isthmus.text.text_limits import (
    MAX_AGENT_ID_CHARS,
    MAX_FEATURE_CHARS,
    MAX_FEATURES,
    MAX_IDENTIFIERS_CHARS,
    MAX_LABEL_CHARS,
    MAX_LABEL_KEY_CHARS,
    MAX_LABELS,
    MAX_NETWORK_CHARS,
    MAX_TOKEN_CHARS,
    first_too_long,
)
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.tunnel.replaceable import SessionConnection
from isthmus.tunnel.session import Carried
from isthmus.values import (
    DialId,
    DialRequest,
    Identity,
    RequestMetadata,
    TrafficClass,
)
from isthmus.wire.alpn import is_ours
from isthmus.wire.link_pb2 import DialResult

Told = Callable[[DialResult | None], None]


def choose(alpn: str | None, only: str) -> bool:
    """Whether our own protocol was negotiated; ``only`` is the value of ``--link``.

    Without ALPN, or without a common protocol, the peer can only mean konnectivity's;
    its first bytes will tell.

    Raises:
        ProtocolError: the peer does not support the required protocol.
    """
    mux = is_ours(alpn)
    if only == ("grpc" if mux else "mux"):
        raise ProtocolError(f"peer does not support the protocol of --link={only} (ALPN {alpn!r})")
    return mux


class Talk(Protocol):
    """One side of the protocol on a link, from the TLS handshake to its end."""

    @property
    def name(self) -> str:
        """``mux`` or ``grpc``."""

    @property
    def session(self) -> Carried:
        """The session that the carrier feeds."""

    @property
    def can_open(self) -> bool:
        """Whether another dial can be sent."""

    @property
    def full(self) -> bool:
        """Whether only the limit of dials prevents another one."""

    @property
    def load(self) -> int:
        """The number of dials and tunnels."""

    @property
    def held_bytes(self) -> int:
        """Received bytes that full sinks have not taken."""

    @property
    def window_growth_bytes(self) -> int:
        """The total growth of receive windows; 0 if connections have none."""

    @property
    def window_growth_peak_bytes(self) -> int:
        """The largest total growth so far."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait in a shared queue, because the peer does not take them."""

    @property
    def round_trip_s(self) -> float:
        """The last measured round trip; 0 before the first."""

    @property
    def unanswered_s(self) -> float:
        """How long a ping has been unanswered; 0 without one."""

    @property
    def peer_drains(self) -> bool:
        """Whether the peer announced that it accepts nothing new."""

    @property
    def worn(self) -> bool:
        """Whether it should be replaced when idle."""

    @property
    def unsent(self) -> bool:
        """Whether frames or data wait for the carrier."""

    def pays_by(self, account: Account) -> None:
        """The peer is authenticated: this account pays from now on."""

    def begin(self) -> None:
        """TLS is established: send hello, or wait for it."""

    def be_ready(self) -> None:
        """Both sides are greeted: measure the round trip."""

    def probe(self) -> None:
        """Ping now, if the peer allows pings at any time."""

    def open_dial(
        self,
        request: DialRequest,
        *,
        dial_id: DialId,
        timeout_s: float,
        told: Told,
        account: Account | None = None,
    ) -> BaseEnd | None:
        """Ask the peer to dial; None if it is full.

        ``account`` pays for the tunnel's memory; None: that of the link.
        """

    def drain(self, *, turn_away: bool = False) -> None:
        """Ask for no new dials; ``turn_away``: reset those that still arrive, if possible."""

    def go_away(self) -> None:
        """Announce the end of the link."""

    def violated(self) -> None:
        """Tell the peer that it violated the protocol."""

    def refuse(self, reason: str) -> None:
        """Tell the peer why it is refused."""

    def flush(self) -> None:
        """Write queued frames."""

    def tick(self) -> bool:
        """Periodic work, once a second; False when the peer is dead."""

    def lost(self, reason: Ending) -> None:
        """The carrier is gone: reset every tunnel."""


class LastingTalk(Talk, Protocol):
    """A conversation that goes on by another connection when it loses its own."""

    @property
    def silent_s(self) -> float:
        """For how long nothing has been heard."""

    @property
    def received_bytes(self) -> int:
        """How many bytes of the session have arrived."""

    @property
    def kept_bytes(self) -> int:
        """What was sent and is kept until the peer acknowledges it."""

    @property
    def resent_bytes(self) -> int:
        """What was sent again, in all."""

    def detach(self) -> int:
        """Let go of the connection; gives how many bytes of the session have arrived."""

    def can_go_on(self, offset: int) -> bool:
        """Everything after this offset is still here."""

    def go_on(self, connection: SessionConnection, offset: int) -> None:
        """Take another connection; the peer has everything before ``offset``.

        Raises:
            ProtocolError: that cannot be.
        """

    def ask_elsewhere(self) -> None:
        """Take dials without an answer, and tunnels without a byte, to another link."""


class Incoming(Protocol):
    """A dial that the peer requests, and how to answer it."""

    answered: bool
    on_cancelled: Callable[[], None] | None

    @property
    def host(self) -> str:
        """The host of the target."""

    @property
    def port(self) -> int:
        """The port of the target."""

    @property
    def timeout_s(self) -> float:
        """How long the other program waits for the answer; 0 if not announced."""

    @property
    def link_id(self) -> int:
        """The link on which it arrived."""

    @property
    def connection_id(self) -> str:
        """The other program's id of the connection; empty if not sent."""

    @property
    def requester(self) -> Identity:
        """The requester, as the other program names it."""

    @property
    def asking(self) -> RequestMetadata:
        """The client's metadata and trace, as the other program passed them on."""

    def accept(self, address: str, traffic: TrafficClass | None = None) -> BaseEnd:
        """Report that the target was reached; returns the end to join to it.

        ``traffic`` is the class that we choose; None: the other program chose it.
        """

    def refuse(self, failure: DialFailure, detail: str) -> None:
        """Report the failure."""


#: The request header in which Isthmus agents name their network over gRPC; Hello has a field.
NETWORK = b"isthmus-network"
#: The same for their zone; Hello has it among the labels.
ZONE = b"isthmus-zone"
#: The header in which Isthmus programs name their features over gRPC, in both directions; Hello
#: and Welcome have a field for it.
FEATURES = b"isthmus-features"
#: The prefix of a program's connection ids, in both directions. Konnectivity's packets have room
#: for a number only: the rest of the id, which Go's programs log as dialID.
PROCESS = b"isthmus-process"

# The peer's text goes into logs unchanged.
_WORD = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_FEATURE_CHARS}}}", re.ASCII)
#: Maximum size of the header: all identifiers with their commas.
_MAX_FEATURES_BYTES = MAX_FEATURES * (MAX_FEATURE_CHARS + 2)


def features_said(names: Iterable[str]) -> frozenset[str]:
    """The features that a peer announced, as far as they are valid names."""
    return frozenset(islice(filter(_WORD.fullmatch, names), MAX_FEATURES))


def features_in(values: Iterable[bytes]) -> frozenset[str] | None:
    """The same, from the values of the header; None without the header."""
    said = list(values)
    if not said:
        return None
    text = b",".join(said)[:_MAX_FEATURES_BYTES].decode("ascii", "replace")
    return features_said(name.strip() for name in text.split(","))


def features_header(names: Iterable[str]) -> tuple[bytes, bytes]:
    """The header with our features; an empty one still identifies an Isthmus program."""
    return FEATURES, ",".join(names).encode("ascii", "replace")


def process_in(values: Iterable[bytes]) -> str:
    """The prefix of the peer's connection ids; empty if not sent or invalid."""
    said = next(iter(values), b"")[: MAX_FEATURE_CHARS + 1].decode("ascii", "replace")
    return said if _WORD.fullmatch(said) else ""


def hello_fault(
    *, agent_id: str, identifiers: str, labels: Mapping[str, str], network: str, token: str
) -> str:
    """The text of a greeting that is missing or too long; empty if none.

    Checked before any use: the sender of a greeting is not authenticated yet.
    """
    if not agent_id:
        return "agent id is empty"
    if len(labels) > MAX_LABELS:
        return f"{len(labels)} labels, at most {MAX_LABELS} are allowed"
    return first_too_long(
        (
            ("agent id", agent_id, MAX_AGENT_ID_CHARS),
            ("identifiers", identifiers, MAX_IDENTIFIERS_CHARS),
            ("network", network, MAX_NETWORK_CHARS),
            ("token", token, MAX_TOKEN_CHARS),
            *(("name of a label", key, MAX_LABEL_KEY_CHARS) for key in labels),
            *(("value of a label", value, MAX_LABEL_CHARS) for value in labels.values()),
        )
    )


class Unwelcome(Enum):
    """The kinds of refusal; the sentence that goes with one says the rest."""

    BAD_HELLO = "what it said of itself cannot be read"
    NO_PROOF = "it did not prove who it is"
    NOT_ENTITLED = "who it is may not claim what it claims"
    TRY_LATER = "no authenticator is reachable now"
