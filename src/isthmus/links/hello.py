"""How an agent greets over either protocol, and why it may be turned away."""

from __future__ import annotations

from enum import Enum

#: The request header in which our agents name their network over gRPC; Hello has a field for it.
NETWORK = b"isthmus-network"


class Unwelcome(Enum):
    """The kinds of refusal; the sentence that goes with one says the rest."""

    BAD_HELLO = "what it said of itself cannot be read"
    NO_PROOF = "it did not prove who it is"
    NOT_ENTITLED = "who it is may not claim what it claims"
    TRY_LATER = "nothing is known against it, and nobody can be asked now"
