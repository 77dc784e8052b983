"""The context of a request: its network, and on whose behalf it is made."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from isthmus.values import RequestMetadata
from isthmus.wire.request_metadata import headers_of


@dataclass(frozen=True, slots=True)
class NetworkContext:
    """The network of a connection, and optionally on whose behalf it is requested.

    ``name`` is controlplane (or master), cluster, etcd, direct or a name of your own; case is
    ignored. The other fields are sent to a connectivity server, which trusts them only from
    authenticated clients, and writes them into its audit log.

    Raises:
        ValueError: the name is empty, or a value is too long or not printable.
    """

    name: str
    user: str = ""
    groups: tuple[str, ...] = ()
    tenant: str = ""
    object: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a network context needs the name of a network")
        groups = cast("Iterable[str]", self.groups)  # not every caller uses a type checker
        if isinstance(groups, str):
            raise ValueError(f"groups must be a list of names, not one name: {groups!r}")
        object.__setattr__(self, "groups", tuple(groups))
        headers_of(self.asking())

    def asking(self) -> RequestMetadata:
        """The fields to send to a server, with the current trace."""
        traceparent, tracestate = current_trace()
        return RequestMetadata(
            network=self.name.lower(),
            user=self.user,
            groups=self.groups,
            tenant=self.tenant,
            object=self.object,
            traceparent=traceparent,
            tracestate=tracestate,
        )


def current_trace() -> tuple[str, str]:
    """The W3C trace context of OpenTelemetry's current span; empty without one.

    A program that makes spans has imported OpenTelemetry; it is not imported here.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return "", ""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return "", ""
    # Trace Context §3.2: version, trace id, parent id, flags.
    traceparent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags) & 255:02x}"
    return traceparent, str(span.trace_state.to_header())
