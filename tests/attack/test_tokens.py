"""Tokens that are no good, from somebody who has many: honest agents are reviewed all the same."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from clients import LIMIT_S, TlsClient, echo_target
from stack import Stack, wait_until

from isthmus.programs.server import admission
from isthmus.wire.link import take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Hello

AUDIENCE = "system:konnectivity-server"
USER = "system:serviceaccount:kube-system:konnectivity-agent"
GOOD = "header.good.signature"
ATTACKER = "127.0.0.2"
#: More than the server asks about at once, of all sources together.
FLOOD = 60


class SlowApi(ThreadingHTTPServer):
    """An API server that knows one good token, and takes its time for every other."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Review)
        self.answers_bad = threading.Event()
        self.asked: list[str] = []
        self.kubeconfig = ""


class _Review(BaseHTTPRequestHandler):
    server: SlowApi

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        token = asked["spec"]["token"]
        self.server.asked.append(token)
        status: dict[str, object] = {"authenticated": False}
        if token == GOOD:
            status = {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": USER}}
        else:
            self.server.answers_bad.wait(LIMIT_S)
        body = json.dumps({**asked, "status": status}).encode()
        with contextlib.suppress(OSError):
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[SlowApi]:
    with SlowApi() as server:
        path = tmp_path / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{server.server_port}"}
        path.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "api", "user": "me"}}],
                    "clusters": [{"name": "api", "cluster": cluster}],
                    "users": [{"name": "me", "user": {"token": "mine"}}],
                }
            )
        )
        server.kubeconfig = str(path)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.answers_bad.set()
            server.shutdown()
            thread.join()


def start(stack: Stack, api: SlowApi) -> None:
    stack.add_server(
        cluster_ca_cert="",
        agent_namespace="kube-system",
        agent_service_account="konnectivity-agent",
        authentication_audience=AUDIENCE,
        kubeconfig=api.kubeconfig,
    )


def connect(stack: Stack) -> TlsClient:
    """A connection of the attacker, who has no certificate and needs none."""
    port = stack.server.agent_port
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S, (ATTACKER, 0))
    context = ssl.create_default_context(cafile=str(stack.files.ca_cert))
    context.set_alpn_protocols(["isthmus/1"])
    return TlsClient(sock, context, "localhost")


def say(peer: TlsClient, token: str) -> None:
    """Say hello as an agent with this token; frames by yamux's specification."""
    data = to_bytes(Control(hello=Hello(agent_id="attacker", token=token)))
    opening = struct.pack("!BBHII", 0, 1, 1, 1, 0)
    peer.send(opening + struct.pack("!BBHII", 0, 0, 0, 1, len(data)) + data)


def refusal(peer: TlsClient) -> str:
    """Why the server turned it away."""
    buffer = bytearray()
    while True:
        kind, _, _, size = struct.unpack("!xBHII", peer.read_exactly(12))
        buffer += peer.read_exactly(size) if kind == 0 else b""
        message = take_message(buffer, Control)
        if message is not None:
            return str(message.refusal.reason)


@contextlib.contextmanager
def flood(stack: Stack, tokens: list[str]) -> Iterator[list[TlsClient]]:
    with contextlib.ExitStack() as all_of_them:
        peers = []
        for token in tokens:
            peers.append(all_of_them.enter_context(connect(stack)))
            say(peers[-1], token)
        yield peers


def honest_agent_links(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(GOOD)
    stack.add_agent(service_account_token_path=str(tmp_path / "token"))
    with echo_target() as target, stack.tunnel("uds", target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"


def test_a_flood_of_bad_tokens_keeps_no_other_agent_out(
    fresh: Stack, api: SlowApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address sends sixty bad tokens to an API that is slow; an agent from another links."""
    # Nobody is told to come later, as if the sixty were replaced as soon as they are.
    monkeypatch.setattr(admission, "_PATIENCE_S", 3600.0)
    start(fresh, api)
    with flood(fresh, [f"bad.{number}.token" for number in range(FLOOD)]):
        wait_until(lambda: len(api.asked) > 0, "the API is asked about the first")
        honest_agent_links(fresh, tmp_path)
        assert not api.answers_bad.is_set()  # nobody had to wait for those
        bad = [token for token in api.asked if token != GOOD]
        assert len(bad) < FLOOD  # no source has all turns
    fresh.wait_idle()


def test_the_same_bad_token_again_and_again_is_asked_about_once(
    fresh: Stack, api: SlowApi, tmp_path: Path
) -> None:
    """Thirty connections at once, and thirty after the answer, cost the API one review."""
    start(fresh, api)
    with flood(fresh, ["bad.same.token"] * (FLOOD // 2)) as peers:
        wait_until(lambda: len(api.asked) > 0, "the API is asked")
        api.answers_bad.set()
        for peer in peers:
            assert "does not accept the token" in refusal(peer)
    with flood(fresh, ["bad.same.token"] * (FLOOD // 2)) as peers:
        for peer in peers:
            assert "does not accept the token" in refusal(peer)
    assert api.asked == ["bad.same.token"]
    honest_agent_links(fresh, tmp_path)
    fresh.wait_idle()


def test_a_source_with_too_many_tokens_is_told_to_come_later(
    fresh: Stack, api: SlowApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits beyond the bound of its address hears so, and costs nobody a review."""
    start(fresh, api)
    decides = fresh.server._admission
    assert decides is not None and decides._reviewer is not None
    monkeypatch.setattr(decides._reviewer._turns, "waiting_of_one", 4)
    tokens = [f"bad.{number}.token" for number in range(FLOOD)]
    with flood(fresh, tokens) as peers:
        assert "retry later" in refusal(peers[-1])
        honest_agent_links(fresh, tmp_path)
        assert tokens[-1] not in api.asked
    fresh.wait_idle()


def test_a_token_longer_than_any_is_never_sent_to_the_api(fresh: Stack, api: SlowApi) -> None:
    """A hello with 40 kB of token is refused here."""
    start(fresh, api)
    with flood(fresh, ["x" * 40_000]) as [peer]:
        assert "at most 16384 are allowed" in refusal(peer)
    assert api.asked == []
