"""The HTTP status and the message for every dial failure.

There are two tables, ours and Go konnectivity's; docs/differences.md says why they differ.
"""

from __future__ import annotations

from isthmus.errors import DialError, DialFailure
from isthmus.values import HostPort

HTTP_STATUS: dict[DialFailure, int] = {
    DialFailure.REFUSED: 502,
    DialFailure.TIMED_OUT: 504,
    DialFailure.UNREACHABLE: 502,
    DialFailure.UNRESOLVED: 502,
    DialFailure.DENIED: 403,
    DialFailure.NO_AGENT: 503,
    DialFailure.AGENT_LOST: 502,
    DialFailure.TOO_MANY: 503,
    DialFailure.INTERNAL: 502,
}

# What konnectivity's server answers: 502 unless the error's text mentions a timeout (504) or
# too many open files (503), and a hand-written 500 when no agent is connected. It has no policy;
# a denial would reach its client like any other dial error.
KONNECTIVITY_HTTP_STATUS: dict[DialFailure, int] = {
    DialFailure.REFUSED: 502,
    DialFailure.TIMED_OUT: 504,
    DialFailure.UNREACHABLE: 502,
    DialFailure.UNRESOLVED: 502,
    DialFailure.DENIED: 502,
    DialFailure.NO_AGENT: 500,
    DialFailure.AGENT_LOST: 502,
    DialFailure.TOO_MANY: 503,
    DialFailure.INTERNAL: 502,
}


def status_for(failure: DialFailure, *, compat: str = "") -> int:
    """The status to answer; ``compat`` is the value of ``--compat``."""
    table = KONNECTIVITY_HTTP_STATUS if compat == "konnectivity" else HTTP_STATUS
    return table[failure]


def explain(failure: DialFailure, target: HostPort, detail: str = "") -> str:
    """A message with the destination and the reason, as in a DialError.

    The detail may come from a peer: escape it when writing it (``http_connect.reply`` does).
    """
    return str(DialError(failure, target, detail))


def explain_to_konnectivity(
    failure: DialFailure, target: HostPort, detail: str, *, compat: str
) -> str:
    """The error of a DIAL_RSP: the same message, or with ``--compat`` that of Go's server."""
    if compat == "konnectivity" and failure is DialFailure.NO_AGENT:
        return "No agent available"
    return explain(failure, target, detail)
