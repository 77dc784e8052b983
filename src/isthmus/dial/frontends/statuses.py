"""The HTTP status and the sentence for every way a dial can fail.

Two tables, ours and Go konnectivity's; the docs' table of differences says why they differ.
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

# What konnectivity's server answers: 502 unless the error's text speaks of a timeout (504) or of
# too many open files (503), and a hand-written 500 when no agent is connected. It has no policy;
# a refusal by one would reach its client as any other dial error.
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
    """One sentence that names the destination and the reason, as a DialError says it.

    The detail may come from a peer: escape it where it is written (``http_connect.reply`` does).
    """
    return str(DialError(failure, target, detail))


def explain_to_konnectivity(
    failure: DialFailure, target: HostPort, detail: str, *, compat: str
) -> str:
    """The error of a DIAL_RSP: the same sentence, or with ``--compat`` what Go's server says."""
    if compat == "konnectivity" and failure is DialFailure.NO_AGENT:
        return "No agent available"
    return explain(failure, target, detail)
