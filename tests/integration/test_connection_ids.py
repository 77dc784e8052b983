"""One id for one connection: in the answer, on server and agent, in log, metrics and audit."""

from __future__ import annotations

import json
import logging
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import Client, Target, ask, connect_uds, free_port, full_target, head_for
from grpc_clients import GrpcCall
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from stack import Stack, wait_until

from isthmus.frame.observe.tracing import Tracing
from isthmus.programs.agent.target_dial import TargetDials
from isthmus.tools.pki.making import PkiFiles

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]+")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module", params=["auto", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(certificates: PkiFiles, link: str) -> Iterator[Stack]:
    with Stack(certificates, link) as stack:
        stack.add_server(
            mode=("grpc", "http-connect"),
            http_connect_uds_name=str(stack.dir / "connect.sock"),
            audit_log_path=str(stack.dir / "audit.log"),
        )
        stack.add_agent()
        yield stack


def connect(stack: Stack) -> Client:
    return connect_uds(stack.server.settings.http_connect_uds_name)


def by_connect(stack: Stack, target: str, *lines: str) -> tuple[Client, str]:
    """Open a tunnel by CONNECT; it and the id that the answer names."""
    client = connect(stack)
    head = head_for(target)[:-2] + "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"
    client.send(head)
    answer = client.read_head().decode()
    assert answer.startswith("HTTP/1.1 200 Connection Established\r\n"), answer
    [found] = re.findall(r"\r\nIsthmus-Connection-Id: (\S+)\r\n", answer)
    return client, found


def shown(stack: Stack, program: object, key: str) -> dict[str, dict[str, object]]:
    """What a snapshot shows, by connection id."""
    view = stack.snapshot(program)  # type: ignore[arg-type]
    return {it["connectionId"]: it for it in view[key]}


def check_everywhere(stack: Stack, found: str, target: Target) -> None:
    """The open tunnel has this id on both sides, and so has its begin in the audit."""
    assert ID.fullmatch(found)
    at_server = shown(stack, stack.server, "tunnels")[found]
    at_agent = shown(stack, stack.agent, "tunnels")[found]
    assert at_server["target"] == at_agent["target"] == target.name
    assert at_server["requester"] == at_agent["requester"] == f"uid:{os.getuid()}"
    path = Path(stack.server.settings.audit.log_path)
    wait_until(lambda: found in path.read_text(), "the audit has it")
    [begin] = [
        it for line in path.read_text().splitlines() if (it := json.loads(line))["stage"] == "Begin"
        and it["connectionId"] == found
    ]  # fmt: skip
    assert begin["linkId"] == at_server["linkId"]


def check_ended(stack: Stack, found: str) -> None:
    stack.wait_idle()
    for program in (stack.server, stack.agent):
        assert found in shown(stack, program, "recentEndings")


def test_a_connect_tunnel_has_one_id_everywhere(stack: Stack) -> None:
    with Target() as target:
        client, found = by_connect(stack, target.name)
        with client, target.accept():
            check_everywhere(stack, found, target)
    check_ended(stack, found)


def test_a_grpc_call_has_one_id_everywhere(stack: Stack) -> None:
    with Target() as target, stack.uds() as client:
        call = GrpcCall(client)
        assert call.dial(target.name) == ""
        found = call.response["isthmus-connection-id"]
        with target.accept():
            check_everywhere(stack, found, target)
            call.close()
    check_ended(stack, found)


def test_no_two_connections_have_one_id(stack: Stack) -> None:
    with Target() as target:
        found = set()
        for _ in range(20):
            client, name = by_connect(stack, target.name)
            client.close()
            target.accept().close()
            found.add(name)
    assert len(found) == 20


def test_a_refused_dial_has_an_id_and_log_lines_have_it(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "isthmus")
    stack.do(lambda: stack.server.once._quiet.clear())
    with connect(stack) as client:
        answer = ask(client, head_for(f"127.0.0.1:{free_port()}"))
    assert answer.status == 502
    [found] = re.findall(r"\r\nIsthmus-Connection-Id: (\S+)\r\n", answer.head)
    with Target() as target:
        client, tunnel_id = by_connect(stack, target.name)
        client.close()
        target.accept().close()
    stack.wait_idle()
    lines = [(it.name, it.message, getattr(it, "fields", {})) for it in caplog.records]
    named = [(name, text) for name, text, it in lines if it.get("connection") == found]
    assert sorted(named) == [("isthmus.agent", "dial failed"), ("isthmus.server", "dial failed")]
    ended = [name for name, text, it in lines if it.get("connection") == tunnel_id]
    assert ended == ["isthmus.tunnel", "isthmus.tunnel"]


def test_the_dial_latency_has_it_as_an_exemplar_for_who_asks(stack: Stack) -> None:
    with Target() as target:
        client, found = by_connect(stack, target.name)
        client.close()
        target.accept().close()
    stack.wait_idle()
    for program in (stack.server, stack.agent):
        url = f"http://127.0.0.1:{program.health_port}/metrics"
        wanted = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=wanted)) as answer:
            kind, text = answer.headers["Content-Type"], answer.read().decode()
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert text.endswith("# EOF\n")
        [line] = [it for it in text.splitlines() if f'connection_id="{found}"' in it]
        assert "dial_duration_seconds_bucket" in line
        plain = stack.metrics(program)
        assert found not in plain and "# EOF" not in plain


def test_compat_answers_as_go_does(certificates: PkiFiles) -> None:
    with Stack(certificates) as stack:
        stack.add_server(server_port=None, server_cert="", server_key="", server_ca_cert="",
                         compat="konnectivity", agent_port=free_port(), health_port=free_port(),
                         admin_port=free_port())  # fmt: skip
        stack.add_agent()
        with Target() as target, stack.uds() as client:
            client.send(head_for(target.name))
            assert client.read_head() == b"HTTP/1.1 200 Connection Established\r\n\r\n"
        with Target() as target, stack.uds() as client:  # unless it is asked, by a client of ours
            client.send(head_for(target.name)[:-2] + b"isthmus-half-close: 1\r\n\r\n")
            assert client.read_head().endswith(b"\r\nIsthmus-Half-Close: 1\r\n\r\n")


@pytest.mark.parametrize("frontend", ["connect", "grpc"])
def test_the_trace_is_passed_on_unchanged(
    stack: Stack, frontend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []
    agent = stack.agent
    before = agent.part(TargetDials).take
    assert agent.servers is not None
    links = list(agent.servers.links.values())
    for it in links:
        monkeypatch.setattr(it, "on_dial", lambda dial: (heard.append(dial.asking), before(dial)))
    with Target() as target:
        if frontend == "connect":
            lines = (f"traceparent: {PARENT}", "TraceState: a=1", "Isthmus-User: alice")
            client, _ = by_connect(stack, target.name, *lines)
            client.close()
        else:
            with stack.uds() as client:
                said = ((b"traceparent", PARENT.encode()), (b"tracestate", b"a=1"),
                        (b"isthmus-user", b"alice"))  # fmt: skip
                call = GrpcCall(client, said)
                assert call.dial(target.name) == ""
        target.accept().close()
    stack.wait_idle()
    [asking] = heard
    assert (asking.traceparent, asking.tracestate) == (PARENT, "a=1")
    assert asking.user == "alice"


def test_of_a_name_the_agent_says_which_address_it_reached(stack: Stack) -> None:
    with Target() as target:
        client, found = by_connect(stack, f"localhost:{target.port}")
        client.close()
        target.accept().close()
    stack.wait_idle()
    path = Path(stack.server.settings.audit.log_path)
    wait_until(lambda: path.read_text().count(found) == 2, "the audit has it")
    records = [json.loads(line) for line in path.read_text().splitlines() if found in line]
    assert {it["destination"] for it in records} == {f"localhost:{target.port}"}
    assert {it["address"] for it in records} == {target.name}


@pytest.mark.parametrize("frontend", ["connect", "grpc"])
def test_the_spans_of_a_dial_are_one_trace_over_both_programs(
    stack: Stack, frontend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    for program in (stack.server, stack.agent):
        monkeypatch.setattr(program, "tracing", Tracing(provider))
    with Target() as target:
        if frontend == "connect":
            client, found = by_connect(stack, target.name, f"traceparent: {PARENT}")
            client.close()
        else:
            with stack.uds() as client:
                call = GrpcCall(client, ((b"traceparent", PARENT.encode()),))
                assert call.dial(target.name) == ""
                found = call.response["isthmus-connection-id"]
        target.accept().close()
    stack.wait_idle()
    spans = {span.name: span for span in kept.get_finished_spans()}
    assert set(spans) == {f"isthmus.{it}" for it in ("dial", "accept", "choose", "ask", "connect")}
    dial, agents = spans["isthmus.dial"], spans["isthmus.connect"]
    for span in (dial, agents):
        assert (span.attributes or {})["isthmus.connection_id"] == found
    assert (dial.attributes or {})["isthmus.agent_id"] == stack.agent.id
    assert dial.parent is not None and f"{dial.parent.span_id:016x}" == PARENT[36:52]
    asked = spans["isthmus.ask"].context
    assert agents.parent is not None and asked is not None
    assert agents.parent.span_id == asked.span_id
    assert {span.context.trace_id for span in spans.values() if span.context} == {
        int(PARENT[3:35], 16)
    }


def test_a_dial_that_fails_ends_its_spans(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    for program in (stack.server, stack.agent):
        monkeypatch.setattr(program, "tracing", Tracing(provider))
    with connect(stack) as client:
        assert ask(client, head_for(f"127.0.0.1:{free_port()}")).status == 502
    errors = {it.name: (it.attributes or {}).get("error.type") for it in kept.get_finished_spans()}
    assert errors["isthmus.dial"] == errors["isthmus.connect"] == "refused"
    with full_target() as target:
        with connect(stack) as client:
            client.send(head_for(target.name))
            stack.wait(lambda: len(stack.server.dialer.pending) == 1, "it is dialed")
        stack.wait_idle()
        stack.wait(lambda: not stack.agent.dials, "the agent gave up")
    errors = {it.name: (it.attributes or {}).get("error.type") for it in kept.get_finished_spans()}
    assert errors["isthmus.dial"] == errors["isthmus.connect"] == "cancelled"
