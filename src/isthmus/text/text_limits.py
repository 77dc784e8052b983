"""How long a text from a peer may be: every maximum in one place, for all parsers.

A text that decides something is refused when it is longer; a text that is only shown is cut, by
``cut``, before it is encoded, logged or stored. Characters unless a name says bytes. ``LIMITS`` is
the whole table, for the test that checks the programs (tests/attack/test_text_limits.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Peer text quoted in an error: a path, a method, a header's name.
MAX_SHOWN_CHARS: Final = 100

# HTTP.
MAX_HEADERS: Final = 128
#: A gRPC status: the text written to or read from grpc-message, and the same encoded.
MAX_STATUS_CHARS: Final = 1000
MAX_STATUS_BYTES: Final = 3000

# Links: what an agent declares (refused if longer), and what is only shown (cut).
MAX_AGENT_ID_CHARS: Final = 253
MAX_SERVER_ID_CHARS: Final = 253
MAX_NETWORK_CHARS: Final = 253
MAX_IDENTIFIERS_CHARS: Final = 8192
MAX_IDENTIFIERS: Final = 256
MAX_LABELS: Final = 64
MAX_LABEL_KEY_CHARS: Final = 317  # a prefix of 253, a slash, a name of 63
MAX_LABEL_CHARS: Final = 63
MAX_TOKEN_CHARS: Final = 16_384
MAX_FEATURES: Final = 64
MAX_FEATURE_CHARS: Final = 64
MAX_VERSION_CHARS: Final = 200
#: The other program's reason for a failure: DialResult, Refusal, DIAL_RSP, CLOSE_RSP.
MAX_DETAIL_CHARS: Final = 1000

#: A Dial, a DialResult or a packet without data, whole; all request metadata fits into it.
MAX_DIAL_BYTES: Final = 16 * 1024
MAX_PACKET_BYTES: Final = 64 * 1024

# Dials: what a client or another program sends about a request.
MAX_HOST_CHARS: Final = 253
MAX_CONNECTION_ID_CHARS: Final = 64
MAX_NAME_BYTES: Final = 1024  # a user, a tenant, an object, the subject of a certificate
MAX_KIND_CHARS: Final = 253
MAX_GROUPS: Final = 32
MAX_GROUP_BYTES: Final = 4096  # of all groups together
MAX_SANS: Final = 256
MAX_TRACEPARENT_CHARS: Final = 255
MAX_TRACESTATE_CHARS: Final = 512
#: Where a target was reached: an address and a port, with room for a zone.
MAX_ADDRESS_CHARS: Final = 320

# TLS, SOCKS and PROXY.
MAX_SERVER_NAME_BYTES: Final = 255
MAX_ALPN_NAMES: Final = 16
MAX_PROXY_HEADER_BYTES: Final = 8 * 1024

# Output: a value of a log line, a metric's label, a text of a snapshot.
MAX_LOGGED_CHARS: Final = 1024
MAX_METRIC_LABEL_CHARS: Final = 256
MAX_SNAPSHOT_CHARS: Final = 4096

LIMITS: dict[str, int] = {
    name: value
    for name, value in list(globals().items())
    if name.startswith("MAX_") and isinstance(value, int)
}


def cut(text: str, most: int) -> str:
    """The text, or as much of it as fits with a mark that something is missing."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(raw: bytes) -> str:
    """Bytes from a peer for a message: cut, in ASCII, with escapes for everything else."""
    return cut(raw[: MAX_SHOWN_CHARS + 1].decode("ascii", "backslashreplace"), MAX_SHOWN_CHARS)


def shown(raw: bytes) -> str:
    """The same, in quotes."""
    return repr(plain(raw))


def first_too_long(texts: Iterable[tuple[str, str, int]]) -> str:
    """Describe the first of (name, text, most) that is too long; empty if none is."""
    for name, text, most in texts:
        if len(text) > most:
            return f"{name} has {len(text)} characters, at most {most} are allowed"
    return ""
