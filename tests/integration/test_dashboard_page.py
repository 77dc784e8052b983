"""The page's files and headers on a running program, and ending a tunnel from it."""

from __future__ import annotations

import gzip
import json
import socket
from importlib.resources import files

import pytest
from clients import LIMIT_S, Target
from dashboard_bed import ask, end_tunnel
from stack import Stack

from isthmus.frame.admin.answers import POLICY
from isthmus.frame.dashboard.routes import file_routes

ASSETS = files("isthmus.frame.dashboard") / "assets"


def paths() -> list[str]:
    return sorted(file_routes("/ui/"))


def test_every_answer_has_the_headers_of_a_safe_page(stack: Stack) -> None:
    port = stack.server.admin_port
    answers = {path: ask(port, path) for path in paths()}
    answers["events from elsewhere"] = ask(port, "/ui/events", Sec_Fetch_Site="cross-site")
    answers["head"] = ask(port, "/ui/events", method="HEAD")
    answers["end, no body"] = ask(port, "/ui/end", method="POST", X_Isthmus_Intent="end")
    answers["end, no such"] = end_tunnel(port, "0", 99_999)
    for name, reply in answers.items():
        assert reply.headers["Content-Security-Policy"] == POLICY, name
        assert reply.headers["X-Content-Type-Options"] == "nosniff", name
        assert reply.headers["Referrer-Policy"] == "no-referrer", name
        assert reply.headers["Cross-Origin-Opener-Policy"] == "same-origin", name
    assert "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'" in POLICY
    # Nothing comes from anywhere but this origin: no host, no scheme, no data: either.
    sources = {word for part in POLICY.split(";") for word in part.split()[1:]}
    assert sources == {"'none'", "'self'"} and "frame-ancestors 'none'" in POLICY


def test_the_page_and_its_files(stack: Stack) -> None:
    port = stack.server.admin_port
    moved = ask(port, "/ui")
    assert (moved.status, moved.headers["Location"]) == (308, "ui/")
    root = ask(port, "/")
    assert (root.status, root.headers["Location"]) == (308, "ui/")
    assert ask(stack.server.health_port, "/").status == 404  # which has no dashboard
    page = ask(port, "/ui/")
    assert page.status == 200 and page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.body == (ASSETS / "index.html").read_bytes() == ask(port, "/ui/index.html").body
    for path in paths():
        if path.endswith(".js"):
            assert ask(port, path).headers["Content-Type"] == "text/javascript; charset=utf-8"
    head = ask(port, "/ui/", method="HEAD")
    assert head.status == 200 and head.body == b""
    assert int(head.headers["Content-Length"]) == len(page.body)


def test_files_are_sent_once_and_small(stack: Stack) -> None:
    port = stack.server.admin_port
    plain = ask(port, "/ui/main.js")
    small = ask(port, "/ui/main.js", Accept_Encoding="gzip, deflate, br")
    assert gzip.decompress(small.body) == plain.body and len(small.body) < len(plain.body)
    assert small.headers["Content-Encoding"] == "gzip" and small.headers["Vary"]
    assert "Content-Encoding" not in plain.headers
    tags = plain.headers["ETag"], small.headers["ETag"]
    assert tags[0] != tags[1]
    again = ask(port, "/ui/main.js", If_None_Match=f'"other", W/{tags[0]}')
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tags[0])
    assert ask(port, "/ui/main.js", If_None_Match='"other"').status == 200
    refused = ask(port, "/ui/main.js", Accept_Encoding="gzip;q=0")
    assert "Content-Encoding" not in refused.headers


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../cli/main.py",
        "/ui/..%2froutes.py",
        "/ui/%2e%2e/routes.py",
        "/ui//etc/passwd",
        "/ui/....//routes.py",
        "/ui/__init__.py",
        "/ui/main.js/",
        "/ui/MAIN.JS",
        "/ui/main.js%00",
        "/ui/nothing.html",
        "/uix",
    ],
)
def test_only_names_of_the_list_are_served(stack: Stack, path: str) -> None:
    with socket.create_connection(("127.0.0.1", stack.server.admin_port), LIMIT_S) as sock:
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        sock.sendall(request.encode())
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404 "), answer[:200]


# Ending a tunnel.


def test_a_tunnel_is_ended_from_the_page(stack: Stack) -> None:
    port = stack.server.admin_port
    with Target() as target, stack.tunnel("uds", target.name) as client, target.accept() as far:
        (row,) = stack.snapshot()["tunnels"]
        reply = end_tunnel(port, "0", row["id"])
        assert reply.status == 200
        assert json.loads(reply.body) == {"ended": row["id"], "connectionId": row["connectionId"]}
        with pytest.raises(ConnectionResetError):
            far.recv()
        assert client.recv() == b""  # a UNIX socket cannot be reset
    ended = stack.snapshot()["recentEndings"][0]
    assert ended["connectionId"] == row["connectionId"] and "operator" in ended["by"]


def test_who_does_not_mean_it_ends_nothing(stack: Stack) -> None:
    port = stack.server.admin_port
    body = '{"source":"0","tunnel":1}'
    with Target() as target, stack.tunnel("uds", target.name), target.accept():
        (row,) = stack.snapshot()["tunnels"]
        wanted = {"source": "0", "tunnel": row["id"]}
        for headers in (
            {},
            {"X_Isthmus_Intent": "read"},
            {"X_Isthmus_Intent": "end", "Sec_Fetch_Site": "cross-site"},
            {"X_Isthmus_Intent": "end", "Origin": "http://evil.example"},
        ):
            reply = ask(port, "/ui/end", method="POST", body=json.dumps(wanted), **headers)
            assert reply.status == 403, headers
        assert end_tunnel(port, "1", row["id"]).status == 404
        assert ask(port, "/ui/end").status == 405
        for broken in ("", "[]", "{", '{"source":0,"tunnel":1}', '{"source":"0","tunnel":"1"}',
                       '{"source":"0","tunnel":true}', '{"source":"0","tunnel":-1}',
                       "[" * 4000, body + " " * 5000):  # fmt: skip
            reply = ask(port, "/ui/end", method="POST", body=broken, X_Isthmus_Intent="end")
            assert reply.status == 400, broken[:40]
        assert [it["id"] for it in stack.snapshot()["tunnels"]] == [row["id"]]
