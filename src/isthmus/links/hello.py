"""How an agent greets over either protocol, and why it may be turned away."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from itertools import islice

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
_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_MOST_FEATURES = 64


def features_said(names: Iterable[str]) -> frozenset[str]:
    """What a peer says that it can do, as far as those can be names of features."""
    return frozenset(islice(filter(_WORD.fullmatch, names), _MOST_FEATURES))


def features_in(values: Iterable[bytes]) -> frozenset[str] | None:
    """The same of the values of the header; None: there is none."""
    said = [value.decode("ascii", "replace") for value in values]
    if not said:
        return None
    return features_said(name.strip() for name in ",".join(said).split(","))


def features_header(names: Iterable[str]) -> tuple[bytes, bytes]:
    """Say our own; saying that there are none also says that the program is ours."""
    return FEATURES, ",".join(names).encode("ascii", "replace")


def process_in(values: Iterable[bytes]) -> str:
    """What the peer's connection ids begin with; empty: it does not say, or nothing usable."""
    said = next(iter(values), b"").decode("ascii", "replace")
    return said if _WORD.fullmatch(said) else ""


class Unwelcome(Enum):
    """The kinds of refusal; the sentence that goes with one says the rest."""

    BAD_HELLO = "what it said of itself cannot be read"
    NO_PROOF = "it did not prove who it is"
    NOT_ENTITLED = "who it is may not claim what it claims"
    TRY_LATER = "nothing is known against it, and nobody can be asked now"
