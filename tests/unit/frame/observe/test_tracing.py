"""Spans of dials, by the real SDK with an exporter that keeps them."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from isthmus.errors import ConfigError, DialFailure
from isthmus.frame.observe.tracing import DialTrace, Tracing, is_wanted, open_tracing
from isthmus.values import NOTHING, HostPort, RequestMetadata
from isthmus.wire.request_metadata import parse_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
FROM_CLIENT = RequestMetadata(
    user="alice", traceparent=f"00-{TRACE}-00f067aa0ba902b7-01", tracestate="congo=t61rcWkgMzE"
)
TARGET = HostPort("10.0.0.5", 443)


class Kept:
    """Tracing whose spans a test can look at."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(provider)

    def begin(self, asking: RequestMetadata = FROM_CLIENT) -> DialTrace:
        trace = self.tracing.begin(
            asking,
            connection_id="p-1",
            frontend="grpc",
            requester="uid:0",
            accepted_at=time.monotonic() - 1.0,
        )
        trace.target(TARGET)
        return trace

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_a_dial_is_a_span_with_its_parts_within_the_clients() -> None:
    kept = Kept()
    trace = kept.begin()
    told = trace.ask(FROM_CLIENT)
    agent = kept.tracing.connect(told, connection_id="p-1", target=TARGET)
    agent.succeeded()
    trace.reached("node-1", "10.0.0.5:443")
    spans = kept.spans()
    assert set(spans) == {f"isthmus.{it}" for it in ("dial", "accept", "choose", "ask", "connect")}
    dial, ask = spans["isthmus.dial"], spans["isthmus.ask"]
    assert parent_of(dial) == 0x00F067AA0BA902B7
    assert {parent_of(spans[f"isthmus.{it}"]) for it in ("accept", "choose", "ask")} == {
        id_of(dial)
    }
    assert parent_of(spans["isthmus.connect"]) == id_of(ask)
    assert {f"{span.context.trace_id:032x}" for span in spans.values() if span.context} == {TRACE}
    assert dict(dial.attributes or {}) == {
        "isthmus.connection_id": "p-1",
        "isthmus.frontend": "grpc",
        "isthmus.requester": "uid:0",
        "isthmus.agent_id": "node-1",
        "server.address": "10.0.0.5",
        "server.port": 443,
        "network.peer.address": "10.0.0.5:443",
    }
    accept, choose = spans["isthmus.accept"], spans["isthmus.choose"]
    assert accept.start_time == dial.start_time
    assert accept.end_time == choose.start_time
    assert accept.start_time is not None and accept.end_time is not None
    assert accept.end_time - accept.start_time >= 10**9


def test_what_is_passed_on_names_the_span_that_asks() -> None:
    kept = Kept()
    trace = kept.begin()
    told = trace.ask(FROM_CLIENT)
    trace.reached("", "")
    parent = parse_traceparent(told.traceparent)
    assert parent is not None
    assert parent.trace_id == TRACE
    assert int(parent.parent_id, 16) == id_of(kept.spans()["isthmus.ask"])
    assert parent.sampled
    assert (told.tracestate, told.user) == ("congo=t61rcWkgMzE", "alice")


def test_without_a_clients_span_a_trace_begins_here() -> None:
    kept = Kept()
    trace = kept.begin(NOTHING)
    told = trace.ask(NOTHING)
    trace.reached("", "")
    assert kept.spans()["isthmus.dial"].parent is None
    assert parse_traceparent(told.traceparent) is not None


def test_a_client_that_does_not_sample_is_obeyed() -> None:
    kept = Kept()
    quiet = RequestMetadata(traceparent=f"00-{TRACE}-00f067aa0ba902b7-00")
    trace = kept.begin(quiet)
    told = trace.ask(quiet)
    trace.reached("", "")
    assert kept.spans() == {}
    parent = parse_traceparent(told.traceparent)
    assert parent is not None
    assert (parent.trace_id, parent.sampled) == (TRACE, False)


def test_each_agent_that_is_asked_has_a_span() -> None:
    kept = Kept()
    trace = kept.begin()
    first, second = trace.ask(NOTHING), trace.ask(NOTHING)
    assert first.traceparent != second.traceparent
    trace.failed(DialFailure.TIMED_OUT, "late")
    asked = [it for it in kept.exporter.get_finished_spans() if it.name == "isthmus.ask"]
    assert [dict(it.attributes or {}) for it in asked] == [{"error.type": "agent_lost"}, {}]
    dial = kept.spans()["isthmus.dial"]
    assert (dial.attributes or {})["error.type"] == "timed_out"
    assert (dial.status.is_ok, dial.status.description) == (False, "late")


def test_a_client_that_left_is_no_error_of_ours() -> None:
    kept = Kept()
    kept.begin().cancelled()
    dial = kept.spans()["isthmus.dial"]
    assert (dial.attributes or {})["error.type"] == "cancelled"
    assert dial.status.is_ok or dial.status.description is None


@pytest.mark.parametrize(
    ("endpoint", "environ", "wanted"),
    [
        ("", {}, False),
        ("http://c:4318/v1/traces", {}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, True),
        ("", {"OTEL_TRACES_EXPORTER": "console"}, True),
        ("", {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ("http://c", {"OTEL_TRACES_EXPORTER": "none"}, True),
        ("http://c", {"OTEL_SDK_DISABLED": "true"}, False),
        ("http://c", {"OTEL_SDK_DISABLED": "false"}, True),
        ("", {"OTEL_SERVICE_NAME": "x"}, False),
    ],
)
def test_who_asks_for_spans(endpoint: str, environ: dict[str, str], wanted: bool) -> None:
    assert is_wanted(endpoint, environ) is wanted


def test_nobody_asks_and_nothing_is_made() -> None:
    assert open_tracing("", {}, service="s", instance="i") is None


def test_an_exporter_that_nobody_has_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"OTEL_TRACES_EXPORTER names no .*: 'zipkon'"):
        open_tracing("", {"OTEL_TRACES_EXPORTER": "zipkon"}, service="s", instance="i")


def test_without_the_packages_the_flag_is_an_error_and_the_environment_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(
        ConfigError, match=r"--tracing-endpoint needs OpenTelemetry, .* pip install"
    ):
        open_tracing("http://127.0.0.1:9", {}, service="s", instance="i")
    with caplog.at_level(logging.WARNING, "isthmus"):
        environ = {"OTEL_TRACES_EXPORTER": "console"}
        assert open_tracing("", environ, service="s", instance="i") is None
    assert [it.message for it in caplog.records] == [
        "the environment asks for tracing, and OpenTelemetry is not installed"
    ]


class Collector(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.taken: list[tuple[str, ExportTraceServiceRequest]] = []


class _Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.taken.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("by_flag", ["{url}/v1/traces", "{url}", "{url}/", ""])
def test_spans_go_out_by_otlp_over_http(monkeypatch: pytest.MonkeyPatch, by_flag: str) -> None:
    async def run(endpoint: str) -> None:
        tracing = open_tracing(endpoint, os.environ, service="isthmus-test", instance="i-1")
        assert tracing is not None
        span = tracing.connect(FROM_CLIENT, connection_id="p-7", target=TARGET)
        span.failed(DialFailure.REFUSED, "no")
        await tracing.close()

    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{collector.server_port}"
        if not by_flag:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        asyncio.run(run(by_flag.format(url=url)))
        collector.shutdown()
        thread.join()
    [(path, request)] = collector.taken
    assert path == "/v1/traces"
    [resource] = request.resource_spans
    about = {it.key: it.value.string_value for it in resource.resource.attributes}
    assert (about["service.name"], about["service.instance.id"]) == ("isthmus-test", "i-1")
    [span] = resource.scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("isthmus.connect", TRACE)
    assert (span.parent_span_id.hex(), span.trace_state) == (
        "00f067aa0ba902b7",
        "congo=t61rcWkgMzE",
    )
