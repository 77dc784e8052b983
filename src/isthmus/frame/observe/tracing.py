"""Spans of dials by OpenTelemetry, if its SDK is installed and tracing is enabled.

Nothing of OpenTelemetry is imported before that. Trace context (wire/request_metadata.py) is passed
on with or without spans. OpenTelemetry's own environment variables set everything else: exporter,
endpoint, headers, sampler, resource.

    isthmus.dial          the server, from the client's connection or call to the answer; of a
                          connection that a node opens, its agent
      isthmus.accept      until it had said what it wants
      isthmus.choose      network, policy and agent
      isthmus.ask         one agent, from the question to its answer; another for each that is asked
        isthmus.connect   the agent, from the question to the connection

For connections that a node opens, the agent has the spans of the server, and the server that of the
agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

from isthmus import __version__
from isthmus.errors import ConfigError, DialFailure
from isthmus.logs import log
from isthmus.values import HostPort, RequestMetadata
from isthmus.wire.request_metadata import parse_traceparent

INSTALL = "pip install 'isthmus[tracing]'"
_CLOSE_S = 3.0
_log = logging.getLogger("isthmus.tracing")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def is_wanted(endpoint: str, environ: Mapping[str, str]) -> bool:
    """Whether tracing is enabled, by the flag or by OpenTelemetry's environment."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    if endpoint:
        return True
    if exporter:
        return exporter != "none"
    return any(environ.get(name) for name in _ENDPOINTS)


def open_tracing(
    endpoint: str, environ: Mapping[str, str], *, service: str, instance: str
) -> Tracing | None:
    """Create the tracing that the flag and the environment enable; None if it is off.

    Without the packages for it the flag is an error; the environment, which many programs may
    share, causes a warning.

    Raises:
        ConfigError: the packages are not installed, or the environment names an unknown exporter.
    """
    if not is_wanted(endpoint, environ):
        return None
    try:
        exporter = _exporter(endpoint, environ)
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        provider = _provider(environ, service, instance)
    except ImportError as exc:
        if endpoint:
            raise ConfigError(
                f"--tracing-endpoint needs OpenTelemetry, which is not installed: {INSTALL}"
            ) from exc
        log(
            _log, logging.WARNING,
            "the environment asks for tracing, and OpenTelemetry is not installed", fix=INSTALL,
        )  # fmt: skip
        return None
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return Tracing(provider)


def _exporter(endpoint: str, environ: Mapping[str, str]) -> Any:
    name = environ.get("OTEL_TRACES_EXPORTER", "") if not endpoint else "otlp"
    protocol = next(filter(None, map(environ.get, _PROTOCOLS)), "http/protobuf")
    if name in ("", "otlp"):
        name = "otlp_proto_http" if endpoint else _OTLP.get(protocol, protocol)
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        if not name.startswith("otlp_proto_"):
            raise ConfigError(f"OTEL_TRACES_EXPORTER names no exporter that is installed: {name!r}")
        raise ImportError(name)
    made: Callable[..., Any] = found[0].load()
    return made(endpoint=_with_path(endpoint)) if endpoint else made()


def _with_path(endpoint: str) -> str:
    """Add the path of OTLP to an address without one, as OpenTelemetry does for its variable."""
    return endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"


def _provider(environ: Mapping[str, str], service: str, instance: str) -> Any:
    trace = importlib.import_module("opentelemetry.sdk.trace")
    resources = importlib.import_module("opentelemetry.sdk.resources")
    ours = {"service.instance.id": instance, "service.version": __version__}
    if not environ.get("OTEL_SERVICE_NAME") and (
        "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    ):
        ours["service.name"] = service
    # At exit the program must not wait for a collector that does not answer: close() has its own
    # limit.
    return trace.TracerProvider(resource=resources.Resource.create(ours), shutdown_on_exit=False)


class Tracing:
    """Creates the spans of one program."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("isthmus", __version__)
        self._api = importlib.import_module("opentelemetry.trace")
        self._no_context = importlib.import_module("opentelemetry.context").Context()

    def begin(
        self,
        asking: RequestMetadata,
        *,
        connection_id: str,
        frontend: str,
        requester: str,
        accepted_at: float | None = None,
    ) -> DialTrace:
        """Begin the span of a client's dial, within the client's own span if it names one.

        ``accepted_at`` is when it connected or called, by the monotonic clock.
        """
        attributes = {
            "isthmus.connection_id": connection_id,
            "isthmus.frontend": frontend,
            "isthmus.requester": requester,
        }
        now_ns = time.time_ns()
        waited_s = time.monotonic() - accepted_at if accepted_at is not None else 0.0
        began_ns = now_ns - int(waited_s * 1e9)
        kind = self._api.SpanKind.SERVER
        span = self._start("isthmus.dial", self._within(asking), kind, began_ns)
        span.set_attributes(attributes)
        if accepted_at is not None:
            self.start_child("isthmus.accept", span, began_ns).end(now_ns)
        return DialTrace(self, span, now_ns)

    def connect(self, asking: RequestMetadata, *, connection_id: str, target: HostPort) -> Span:
        """Begin the span of an agent's connection to a target."""
        span = self._start("isthmus.connect", self._within(asking), self._api.SpanKind.CLIENT)
        span.set_attribute("isthmus.connection_id", connection_id)
        _set_target(span, target)
        return Span(self, span)

    async def close(self) -> None:
        """Send the remaining spans, within a short limit."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            with contextlib.suppress(Exception):  # from an exporter; the program ends anyway
                self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the wait ended before
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=shut_down, name="tracing", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await sent.wait()

    def start_child(self, name: str, parent: Any, began_ns: int | None = None) -> Any:
        """Start a span within another one of this program."""
        context = self._api.set_span_in_context(parent, self._no_context)
        kinds = self._api.SpanKind
        kind = kinds.CLIENT if name == "isthmus.ask" else kinds.INTERNAL
        return self._start(name, context, kind, began_ns)

    def error(self, text: str) -> Any:
        """The status of a span that failed."""
        return self._api.Status(self._api.StatusCode.ERROR, text)

    def _start(self, name: str, context: Any, kind: Any, began_ns: int | None = None) -> Any:
        return self._tracer.start_span(name, context=context, kind=kind, start_time=began_ns)

    def _within(self, asking: RequestMetadata) -> Any:
        parent = parse_traceparent(asking.traceparent)
        if parent is None:
            return self._no_context
        api = self._api
        remote = api.SpanContext(
            trace_id=int(parent.trace_id, 16),
            span_id=int(parent.parent_id, 16),
            is_remote=True,
            trace_flags=api.TraceFlags(parent.flags),
            trace_state=api.TraceState.from_header([asking.tracestate])
            if asking.tracestate
            else None,
        )
        return api.set_span_in_context(api.NonRecordingSpan(remote), self._no_context)


class Span:
    """A span that ends only once."""

    __slots__ = ("_span", "_tracing")

    def __init__(self, tracing: Tracing, span: Any) -> None:
        self._tracing = tracing
        self._span = span

    def succeeded(self) -> None:
        """End it with success."""
        self._span.end()

    def failed(self, failure: DialFailure, detail: str) -> None:
        """It did not."""
        self.given_up(failure.name.lower(), detail or failure.value)

    def given_up(self, error: str, detail: str) -> None:
        """End it with a failure that is not a dial's."""
        self._span.set_attribute("error.type", error)
        self._span.set_status(self._tracing.error(detail))
        self._span.end()

    def cancelled(self) -> None:
        """End it as cancelled."""
        self._span.set_attribute("error.type", "cancelled")
        self._span.end()


class DialTrace:
    """The spans of one request, at the program that received it."""

    __slots__ = ("_ask", "_began_ns", "_chosen", "_span", "_tracing")

    def __init__(self, tracing: Tracing, span: Any, began_ns: int) -> None:
        self._tracing = tracing
        self._span = span
        self._began_ns = began_ns
        self._ask: Any = None
        self._chosen = False

    def target(self, target: HostPort) -> None:
        """Set the target."""
        _set_target(self._span, target)

    def ask(self, asking: RequestMetadata) -> RequestMetadata:
        """Begin the span of asking an agent or a server; returns the trace context for it."""
        tracing = self._tracing
        if not self._chosen:
            self._chosen = True
            tracing.start_child("isthmus.choose", self._span, self._began_ns).end()
        self.asked_in_vain("agent_lost")  # unless it has ended already
        self._ask = tracing.start_child("isthmus.ask", self._span)
        context = self._ask.get_span_context()
        flags = int(context.trace_flags)
        return asking.traced_as(
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}",
            context.trace_state.to_header(),
        )

    def asked_in_vain(self, error: str) -> None:
        """The one being asked was lost or refused: others may be asked."""
        if self._ask is not None:
            self._ask.set_attribute("error.type", error)
            self._end_ask()

    def reached(self, agent_id: str, address: str) -> None:
        """The target was reached, by this agent."""
        for name, value in (("isthmus.agent_id", agent_id), ("network.peer.address", address)):
            if value:
                self._span.set_attribute(name, value)
        self._end_ask()
        self._span.end()

    def failed(self, failure: DialFailure, detail: str) -> None:
        """It is not."""
        self._end_ask()
        Span(self._tracing, self._span).failed(failure, detail)

    def given_up(self, error: str, detail: str) -> None:
        """The target was not reached, with a failure that is not a dial's."""
        self._end_ask()
        Span(self._tracing, self._span).given_up(error, detail)

    def cancelled(self) -> None:
        """The client left."""
        self._end_ask()
        Span(self._tracing, self._span).cancelled()

    def _end_ask(self) -> None:
        ask, self._ask = self._ask, None
        if ask is not None:
            ask.end()


def _set_target(span: Any, target: HostPort) -> None:
    span.set_attribute("server.address", target.host)
    span.set_attribute("server.port", target.port)
