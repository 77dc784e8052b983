"""How an agent greets over either protocol, and why it may be turned away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import islice

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
