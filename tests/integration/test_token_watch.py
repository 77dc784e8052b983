"""Agents whose tokens the API accepts no more are cut, and an API that is away cuts nobody."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from clients import Target, tunnel
from stack import Stack, metric, wait_until

from isthmus.programs.server import admission as admission_module

AUDIENCE = "system:konnectivity-server"
USER = "system:serviceaccount:kube-system:konnectivity-agent"


class TokenApi(ThreadingHTTPServer):
    """An API server that reviews tokens as a test says."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Review)
        self.good = True
        self.status = 201
        self.asked: list[str] = []


class _Review(BaseHTTPRequestHandler):
    server: TokenApi

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        api = self.server
        api.asked.append(asked["spec"]["token"])
        status: dict[str, Any] = {"authenticated": False, "error": "the account was deleted"}
        if api.good:
            status = {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": USER}}
        body = json.dumps({**asked, "status": status}).encode()
        if api.status != 201:
            body = json.dumps({"kind": "Status", "message": "not now", "reason": "x"}).encode()
        self.send_response(api.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def api() -> Iterator[TokenApi]:
    with TokenApi() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def jwt(expires_at: float | None = None) -> str:
    claims = {} if expires_at is None else {"exp": expires_at}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"header.{payload}.signature"


def linked(stack: Stack, api: TokenApi, path: Path, token: str, **settings: Any) -> None:
    """Start a server that asks for tokens, and an agent that has this one."""
    kubeconfig = path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "api", "user": "me"}}],
                "clusters": [
                    {"name": "api", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}
                ],
                "users": [{"name": "me", "user": {"token": "mine"}}],
            }
        )
    )
    (path / "token").write_text(token)
    given = {"agent_token_review_interval_s": 0.1, **settings}
    stack.add_server(
        cluster_ca_cert="",
        agent_namespace="kube-system",
        agent_service_account="konnectivity-agent",
        authentication_audience=AUDIENCE,
        kubeconfig=str(kubeconfig),
        **given,
    )
    stack.add_agent(service_account_token_path=str(path / "token"))


def asked_again(api: TokenApi, times: int = 2) -> None:
    seen = len(api.asked)
    wait_until(lambda: len(api.asked) >= seen + times, "the API is asked again")


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the API each time, and go on soon after an outage."""
    from isthmus.kube.tokens import TokenReviewer

    monkeypatch.setattr(TokenReviewer, "_recall", lambda self, key: None)
    monkeypatch.setattr(admission_module, "_TICK_S", 0.02)
    monkeypatch.setattr(admission_module, "_OUTAGE_S", 0.05)


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_a_token_that_is_taken_back(fresh: Stack, api: TokenApi, tmp_path: Path) -> None:
    linked(fresh, api, tmp_path, jwt())
    server = fresh.server
    with Target() as target, tunnel(fresh.uds(), target.name) as client, target.accept() as far:
        asked_again(api)
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
        api.good = False
        fresh.wait(lambda: not len(server.agents), "the link is cut")
        with pytest.raises(ConnectionError):
            far.read_exactly(1)
    assert metric(fresh.metrics(), 'isthmus_server_revocation_cuts_total{kind="token"}') == 1
    [ended] = fresh.snapshot()["recentEndings"]
    assert ended["by"] == "revocation"
    api.good = True
    fresh.wait(lambda: bool(len(server.agents)), "it may come again")
    fresh.wait_idle()


@pytest.mark.parametrize("status", [500, 403, 422])
def test_an_api_that_cannot_be_asked_cuts_nobody(
    fresh: Stack, api: TokenApi, tmp_path: Path, status: int
) -> None:
    linked(fresh, api, tmp_path, jwt())
    before = fresh.do(lambda: [it.id for it in fresh.server.agents])
    api.status, api.good = status, False
    asked_again(api, 3)
    assert fresh.do(lambda: [it.id for it in fresh.server.agents]) == before
    api.status, api.good = 201, True
    asked_again(api)
    assert fresh.do(lambda: [it.id for it in fresh.server.agents]) == before


def test_a_token_that_expires_is_asked_about_no_more_and_kept(
    fresh: Stack, api: TokenApi, tmp_path: Path
) -> None:
    linked(fresh, api, tmp_path, jwt(time.time() + admission_module.LAST_S + 2.0))
    server = fresh.server
    admission = server._admission
    assert admission is not None and admission.tokens is not None
    tokens = admission.tokens
    fresh.wait(lambda: not len(tokens), "nothing more is asked")
    assert len(api.asked) > 1  # for the last time, before that
    assert fresh.do(lambda: len(server.agents)) == 1


def test_a_token_that_expires_ends_its_link_where_that_is_wanted(
    fresh: Stack, api: TokenApi, tmp_path: Path
) -> None:
    expires = time.time() + 1.0
    linked(
        fresh, api, tmp_path, jwt(expires),
        agent_token_review_interval_s=3600.0, agent_token_expiry="cut",
    )  # fmt: skip
    before = fresh.do(lambda: [it.id for it in fresh.server.agents])
    seen = len(api.asked)
    api.good = False
    fresh.wait(lambda: not len(fresh.server.agents), "the link is cut")
    assert time.time() >= expires - 0.1  # not before: the API would have said the same
    assert len(api.asked) > seen
    (tmp_path / "token").write_text(jwt(time.time() + 3600.0))
    api.good = True
    fresh.wait(
        lambda: any(it.id not in before for it in fresh.server.agents), "it comes with a new one"
    )


def test_without_an_interval_it_is_asked_once(fresh: Stack, api: TokenApi, tmp_path: Path) -> None:
    linked(fresh, api, tmp_path, jwt(), agent_token_review_interval_s=0.0)
    assert fresh.server._admission is not None
    assert fresh.server._admission.tokens is None
