"""What a context says to a server, and what cannot be said."""

from __future__ import annotations

import dataclasses

import pytest
from opentelemetry.sdk.trace import TracerProvider

from isthmus.client import NetworkContext
from isthmus.wire.request_metadata import headers_of, metadata_in


def test_everything_is_said() -> None:
    context = NetworkContext(
        "Cluster", user="jörg", groups=("ops", "system:masters"), tenant="t 1", object="pods/a/b"
    )
    said = metadata_in(headers_of(context.asking()))
    assert said.network == "cluster"
    assert said.user == "jörg"
    assert said.groups == ("ops", "system:masters")
    assert said.tenant == "t 1"
    assert said.object == "pods/a/b"
    assert said.traceparent == ""


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NetworkContext("cluster").name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "cluster", "user": "x" * 5000},
        {"name": "cluster", "user": "two\nlines"},
        {"name": "cluster", "groups": ("g",) * 100},
        {"name": "cluster", "groups": "ops"},  # would be o, p and s
    ],
)
def test_what_cannot_be_said_is_refused_when_it_is_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        NetworkContext(**wrong)  # type: ignore[arg-type]


def test_groups_of_any_kind() -> None:
    given = NetworkContext("cluster", groups=["a", "b"])  # type: ignore[arg-type]
    assert given == NetworkContext("cluster", groups=("a", "b"))
    assert hash(given)


def test_the_current_span_is_the_parent() -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("asks") as span:
        said = metadata_in(headers_of(NetworkContext("cluster").asking()))
        context = span.get_span_context()
        flags = f"{int(context.trace_flags):02x}"
        assert int(flags, 16) & 1  # sampled
        assert said.traceparent == f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}"
    assert NetworkContext("cluster").asking().traceparent == ""
