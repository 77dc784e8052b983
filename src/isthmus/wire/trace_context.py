"""W3C Trace Context: ``traceparent`` and ``tracestate``, read strictly and written back unchanged.

The Recommendation of 23 November 2021, https://www.w3.org/TR/trace-context/. Making spans is
frame/observe/tracing.py; a program without tracing passes on what came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# §3.3.1.5: at least 512 characters of a tracestate are to be passed on.
from isthmus.text.text_limits import MAX_TRACEPARENT_CHARS, MAX_TRACESTATE_CHARS

SAMPLED = 0x01

# §3.2.2: lower-case hex, and version ff is forbidden; a later version may add fields after a dash.
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?", re.ASCII
)
# §3.3.1.3: a key, "=", and a value of printable ASCII without comma, equals sign or last blank.
_MEMBER = re.compile(
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=([ !-+\--<>-~]{0,255}[!-+\--<>-~])",
    re.ASCII,
)
_MOST_MEMBERS = 32


@dataclass(frozen=True, slots=True)
class TraceParent:
    """Whose child a span is: ``str()`` gives the header, always of version 00."""

    trace_id: str
    parent_id: str
    flags: int = 0

    @property
    def sampled(self) -> bool:
        """Whoever sent it may have recorded its part."""
        return bool(self.flags & SAMPLED)

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.parent_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> TraceParent | None:
    """Read the header; None if it is not valid, and then there is no trace (§4.3)."""
    if len(text) > MAX_TRACEPARENT_CHARS:
        return None
    match = _PARENT.fullmatch(text)
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if more is not None and version == "00":  # §3.2.4: only a later version has more
        return None
    if not (trace_id.strip("0") and parent_id.strip("0")):  # §3.2.2.3 and §3.2.2.4
        return None
    return TraceParent(trace_id, parent_id, int(flags, 16))


def is_traceparent(text: str) -> bool:
    """Tell whether the text is a valid ``traceparent``."""
    return parse_traceparent(text) is not None


def is_tracestate(text: str) -> bool:
    """Tell whether the text is a valid ``tracestate`` that fits; an empty one says nothing.

    A key that comes twice, or too many members, make all of it invalid (§3.3.1.1).
    """
    if not text or len(text) > MAX_TRACESTATE_CHARS:
        return False
    members = [member.strip(" \t") for member in text.split(",")]
    found = [_MEMBER.fullmatch(member) for member in members if member]
    keys = [match[1] for match in found if match is not None]
    return 0 < len(keys) == len(found) == len(set(keys)) <= _MOST_MEMBERS
