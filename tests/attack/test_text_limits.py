"""No text of a peer is longer than its maximum where it is encoded, searched, logged or shown.

A server, an agent and a client say everything they can in 15,000 characters. On the way to the
encoder of headers, to the log's regular expression, to the audit, to a label and to the pages,
every text is measured.
"""

from __future__ import annotations

import io
import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients import LIMIT_S, TlsClient, connect_uds, echo_target
from grpc_clients import GrpcCall
from stack import Stack, agent_context, http_get
from test_text import CALL, GREETING, Mux, answer, hello, log, send_in_frames

from isthmus import logs
from isthmus.frame.audit import model as audit
from isthmus.text.text_limits import (
    MAX_AGENT_ID_CHARS,
    MAX_LOGGED_CHARS,
    MAX_METRIC_LABEL_CHARS,
    MAX_SNAPSHOT_CHARS,
    MAX_STATUS_BYTES,
)
from isthmus.tools.pki import making as pki
from isthmus.values import HostPort, Identity
from isthmus.wire import hpack
from isthmus.wire.hpack import encode
from isthmus.wire.http2 import END_HEADERS, END_STREAM, HEADERS, Headers, encode_headers, frame
from isthmus.wire.link import to_bytes
from isthmus.wire.link_pb2 import DialResult, Hello
from isthmus.wire.packet import dial_request
from isthmus.wire.payload import CONNECT_OPTIONS, connect_options

assert log  # a fixture
LONG = "\N{REPLACEMENT CHARACTER}" * 3_000 + "eyJ-" * 1_500
SHORT_ID = "a" * MAX_AGENT_ID_CHARS


class Measured:
    """The longest text that came by each way."""

    def __init__(self) -> None:
        self.longest: dict[str, int] = {}

    def see(self, way: str, *texts: str | bytes) -> None:
        """Measure texts."""
        for text in texts:
            self.longest[way] = max(self.longest.get(way, 0), len(text))


class _Pattern:
    """Stands for the log's regular expression."""

    def __init__(self, pattern: re.Pattern[str], seen: Measured) -> None:
        self._pattern, self._seen = pattern, seen

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Measure, and search."""
        self._seen.see("expression", text)
        return self._pattern.finditer(text)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    seen = Measured()
    to_line = audit.to_line

    def encoded(headers: Headers) -> bytes:
        for header in headers:
            seen.see("encoder", *header)
        return encode(headers)

    def lined(record: audit.Record) -> bytes:
        line = to_line(record)
        seen.see("audit", *texts_in(json.loads(line)))
        return line

    monkeypatch.setattr(hpack, "encode", encoded)
    monkeypatch.setattr(audit, "to_line", lined)
    monkeypatch.setattr("isthmus.frame.audit.recording.to_line", lined, raising=False)
    monkeypatch.setattr(logs, "_SECRET_VALUE", _Pattern(logs._SECRET_VALUE, seen))
    return seen


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON document, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)


def request(*more: tuple[bytes, bytes], path: bytes = b"/ProxyService/Proxy") -> bytes:
    headers = tuple((name, path if name == b":path" else value) for name, value in CALL)
    return GREETING + frame(HEADERS, END_HEADERS | END_STREAM, 1, encode((*headers, *more)))


def clients_say_all(stack: Stack) -> None:
    """Paths, metadata, addresses."""
    for raw in (
        request(path=b"/" + LONG.encode()),
        request((b"content-type", LONG.encode())),
        request((b"grpc-encoding", LONG.encode())),
        request((CONNECT_OPTIONS, LONG.encode())),
    ):
        with connect_uds(stack.server.settings.uds_name) as client:
            client.send(raw)
            answer(client)
    with connect_uds(stack.server.settings.uds_name) as client:
        call = GrpcCall(client, ((b"isthmus-user", b"u" * 2_900), (b"user-agent", b"x" * 2_500)))
        send_in_frames(client, dial_request("tcp", LONG, 7))
        assert call.packet() is not None


def agent_says_all(stack: Stack, files: pki.PkiFiles) -> None:
    """Everything about itself, and about a dial that failed."""
    port = stack.server.agent_port
    for said in (Hello(agent_id=LONG), Hello(agent_id="a", identifiers=f"host={LONG}")):
        sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        with TlsClient(sock, agent_context(files), "localhost") as far:
            far.send(hello(said))
            assert Mux(far).control().refusal.reason
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    with TlsClient(sock, agent_context(files), "localhost") as far:
        names = "&".join(f"host={'h' * 50}{number}" for number in range(100))
        far.send(hello(Hello(agent_id=SHORT_ID, version=LONG, identifiers=names)))
        agent = Mux(far)
        assert agent.control().welcome.server_id
        with connect_uds(stack.server.settings.uds_name) as client:
            target = connect_options(HostPort("10.0.0.1", 443))
            block = encode_headers((*CALL, (CONNECT_OPTIONS, target)))
            client.send(GREETING + frame(HEADERS, END_HEADERS, 1, block))
            stream = agent.dial()
            agent.send(stream, to_bytes(DialResult(failure=1, detail=LONG[:5_000])))
            assert len(answer(client)[b"grpc-message"]) <= MAX_STATUS_BYTES
        shown = stack.snapshot()
        assert SHORT_ID in {agent["id"] for agent in shown["agents"]}
        assert max(map(len, texts_in(shown))) <= MAX_SNAPSHOT_CHARS


def test_no_text_is_longer_than_its_maximum_anywhere(
    certificates: pki.PkiFiles, measured: Measured, log: io.StringIO, tmp_path: Path
) -> None:
    """Whoever says it, and wherever it goes."""
    with Stack(certificates) as stack:
        path = tmp_path / "audit.log"
        server = stack.add_server(mode=("grpc",), audit_log_path=str(path), admin_port=0)
        clients_say_all(stack)
        agent_says_all(stack, certificates)
        stack.add_agent()
        with echo_target() as target, connect_uds(server.settings.uds_name) as client:
            assert GrpcCall(client).dial(target.name) == ""
        labels = re.findall(r'="((?:[^"\\]|\\.)*)"', stack.metrics())
        assert max(map(len, labels)) <= MAX_METRIC_LABEL_CHARS
        status, page = http_get(server.admin_port, "/logs")
        assert status == 200
        shown = [text for line in page.splitlines() for text in texts_in(json.loads(line))]
    assert measured.longest["expression"] <= MAX_LOGGED_CHARS + 256
    assert measured.longest["encoder"] <= MAX_STATUS_BYTES
    assert measured.longest["audit"] <= audit.MAX_CHARS + 1
    # Escapes make a character into ten at most, and a mark says that it was cut.
    assert max(map(len, shown), default=0) <= 10 * MAX_LOGGED_CHARS + 20
    assert max(map(len, log.getvalue().splitlines()), default=0) <= 12 * MAX_LOGGED_CHARS


def test_logs_and_audit_cut_what_nobody_cut_before(measured: Measured, log: io.StringIO) -> None:
    """Whoever forgets to: the last gate before the expression and the file cuts as well."""
    logs.log(logging.getLogger("isthmus.attack"), logging.WARNING, LONG, agent=LONG, reason=LONG)
    record = audit.Record(
        time=audit.rfc3339(0.0),
        stage=audit.Stage.REFUSED,
        requester=audit.requester_of(Identity(LONG, (LONG,))),
        reason=audit.cut(LONG),
    )
    audit.to_line(record)
    assert 0 < measured.longest["expression"] <= MAX_LOGGED_CHARS + 256
    assert 0 < measured.longest["audit"] <= audit.MAX_CHARS + 1
    assert 0 < len(log.getvalue()) <= 3 * 12 * MAX_LOGGED_CHARS
