"""What both protocols of a link share: the interface of a conversation, and the greeting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import Protocol

from isthmus.errors import DialFailure, ProtocolError
from isthmus.net.carriers import Carried
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
    """Tell whether it is our own protocol that was negotiated; ``only`` is ``--link``'s value.

    A peer that negotiated nothing knows no ALPN, or nothing that we offered: only konnectivity's
    may be meant, and its first bytes will tell.

    Raises:
        ProtocolError: the peer does not speak the one that we are told to speak.
    """
    mux = is_ours(alpn)
    if only == ("grpc" if mux else "mux"):
        raise ProtocolError(f"peer does not speak what --link={only} asks for (ALPN {alpn!r})")
    return mux


class Talk(Protocol):
    """One side of a conversation over a link, from the TLS handshake to its end."""

    @property
    def name(self) -> str:
        """``mux`` or ``grpc``."""

    @property
    def session(self) -> Carried:
        """What the carrier feeds."""

    @property
    def can_open(self) -> bool:
        """One more dial can be sent."""

    @property
    def full(self) -> bool:
        """It carries all the dials it can, and would otherwise take more."""

    @property
    def load(self) -> int:
        """How many dials and tunnels it carries."""

    @property
    def held_bytes(self) -> int:
        """Bytes that came and that full sinks have not taken."""

    @property
    def window_growth_bytes(self) -> int:
        """By how much receiving windows have grown, in all; 0 where connections have none."""

    @property
    def window_growth_peak_bytes(self) -> int:
        """The most that it ever was."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for all of it, because the peer does not take them."""

    @property
    def round_trip_s(self) -> float:
        """The last round trip; 0 before the first."""

    @property
    def unanswered_s(self) -> float:
        """For how long a ping has waited for its answer; 0 when none does."""

    @property
    def peer_drains(self) -> bool:
        """The peer said that it takes nothing new."""

    @property
    def worn(self) -> bool:
        """It should be replaced when it is idle."""

    @property
    def unsent(self) -> bool:
        """Something waits for the carrier."""

    def pays_by(self, account: Account) -> None:
        """Who the peer is has become known: this account pays from now on."""

    def begin(self) -> None:
        """The carrier is secured: say hello, or wait for it."""

    def be_ready(self) -> None:
        """Both have said hello."""

    def probe(self) -> None:
        """Ask for a sign of life now, where the peer lets itself be asked at any time."""

    def open_dial(
        self,
        request: DialRequest,
        *,
        dial_id: DialId,
        timeout_s: float,
        told: Told,
        account: Account | None = None,
    ) -> BaseEnd | None:
        """Ask the peer to dial; None when it can take no more.

        ``account`` pays for what the tunnel makes us keep; None: that of the link.
        """

    def drain(self, *, turn_away: bool = False) -> None:
        """Ask for no new dials; ``turn_away``: reset those that come, where the protocol can."""

    def go_away(self) -> None:
        """Say goodbye, in good order."""

    def violated(self) -> None:
        """Say that the peer broke the rules."""

    def refuse(self, reason: str) -> None:
        """Say why the peer is not welcome."""

    def flush(self) -> None:
        """Write out what was said."""

    def tick(self) -> bool:
        """Look after the conversation, once a second; False when the peer is dead."""

    def lost(self, reason: Ending) -> None:
        """The carrier is gone: reset every tunnel."""


class Incoming(Protocol):
    """A dial that the peer asks for, and the way to answer it."""

    answered: bool
    on_cancelled: Callable[[], None] | None

    @property
    def host(self) -> str:
        """Where it wants to go."""

    @property
    def port(self) -> int:
        """Where it wants to go."""

    @property
    def timeout_s(self) -> float:
        """How long the other program waits for the answer; 0 if it did not say."""

    @property
    def link_id(self) -> int:
        """By which link it came."""

    @property
    def connection_id(self) -> str:
        """What the other program calls it; empty if it does not say."""

    @property
    def requester(self) -> Identity:
        """Who wants it, as the other program says."""

    @property
    def asking(self) -> RequestMetadata:
        """What else is said about it, and its trace, as the other program passes it on."""

    def accept(self, address: str, traffic: TrafficClass | None = None) -> BaseEnd:
        """Say that the target is reached; gives the end to join to it.

        ``traffic`` is the class that we choose; None: the other program chose it.
        """

    def refuse(self, failure: DialFailure, detail: str) -> None:
        """Say why not."""


#: The request header in which our agents name their network over gRPC; Hello has a field for it.
NETWORK = b"isthmus-network"
#: The same for their zone; Hello has it among the labels.
ZONE = b"isthmus-zone"
#: The header in which our programs name their features over gRPC, both ways; Hello and Welcome have
#: a field for it.
FEATURES = b"isthmus-features"
#: What a program's connection ids begin with, both ways. Konnectivity's packets have room for a
#: number only: the rest of the id, which is what Go's programs log as dialID.
PROCESS = b"isthmus-process"

# What a peer says goes into logs as it is.
_WORD = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_FEATURE_CHARS}}}", re.ASCII)
#: Maximum size of the header: all identifiers with their commas.
_MAX_FEATURES_BYTES = MAX_FEATURES * (MAX_FEATURE_CHARS + 2)


def features_said(names: Iterable[str]) -> frozenset[str]:
    """What a peer says that it can do, as far as those can be names of features."""
    return frozenset(islice(filter(_WORD.fullmatch, names), MAX_FEATURES))


def features_in(values: Iterable[bytes]) -> frozenset[str] | None:
    """The same of the values of the header; None: there is none."""
    said = list(values)
    if not said:
        return None
    text = b",".join(said)[:_MAX_FEATURES_BYTES].decode("ascii", "replace")
    return features_said(name.strip() for name in text.split(","))


def features_header(names: Iterable[str]) -> tuple[bytes, bytes]:
    """Say our own; saying that there are none also says that the program is ours."""
    return FEATURES, ",".join(names).encode("ascii", "replace")


def process_in(values: Iterable[bytes]) -> str:
    """What the peer's connection ids begin with; empty: it does not say, or nothing usable."""
    said = next(iter(values), b"")[: MAX_FEATURE_CHARS + 1].decode("ascii", "replace")
    return said if _WORD.fullmatch(said) else ""


def hello_fault(
    *, agent_id: str, identifiers: str, labels: Mapping[str, str], network: str, token: str
) -> str:
    """Say which text of a greeting is missing or too long; empty: none.

    Asked before anything is made of them: whoever greets has not proved who it is.
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
    TRY_LATER = "nothing is known against it, and nobody can be asked now"
