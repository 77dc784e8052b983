"""Who is answered on an admin port and who may change something, over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import Ask, asking, listen, watched

from isthmus.frame.admin import guard as guard_module
from isthmus.frame.admin.answers import Routes
from isthmus.frame.admin.guard import OperatorToken
from isthmus.frame.admin.routes import admin_routes
from isthmus.net.poller import OUT, Poller
from isthmus.values import TunnelId

TOKEN = "abcdefghijklmnopqrstuvwxyz-0123"
INTENT = {"X-Isthmus-Intent": "end"}
ME = pwd.getpwuid(os.geteuid()).pw_name
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
POST = (
    "POST /tunnels/7/end HTTP/1.1\r\nHost: localhost\r\nX-Isthmus-Intent: end\r\n"
    "Content-Length: 0\r\n\r\n"
)


class Ended:
    """What was ended, and by whom; the tunnel 7 can be."""

    def __init__(self) -> None:
        self.by: list[tuple[int, str]] = []

    def __call__(self, tunnel: TunnelId, by: str) -> str | None:
        if tunnel != 7:
            return None
        self.by.append((tunnel, by))
        return "c-7"


def routes(ended: Ended) -> Routes:
    return admin_routes(watched(end_tunnel=ended))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


# Changes on loopback.


def test_who_runs_the_program_may_end_a_tunnel(caplog: pytest.LogCaptureFixture) -> None:
    ended = Ended()

    async def main() -> None:
        async with asking(routes(ended), admin=True) as ask:
            answer = await ask("/tunnels/7/end", "POST", headers=INTENT)
            assert (answer.status, json.loads(answer.text)) == (
                200,
                {"ended": 7, "connectionId": "c-7"},
            )
            answer = await ask("/tunnels/8/end", "POST", headers=INTENT)
            assert (answer.status, answer.text) == (404, "no such tunnel: 8\n")

    asyncio.run(main())
    assert ended.by == [(7, f"operator {ME}")]
    said = [it for it in caplog.records if it.getMessage() == "tunnel ended by an operator"]
    assert [vars(it)["fields"]["operator"] for it in said] == [f"operator {ME}"]


def refused(status: int, sentence: str, *, method: str = "POST", path: str = "/tunnels/7/end",
            **headers: str) -> None:  # fmt: skip
    """A request that changes nothing."""
    ended = Ended()

    async def main() -> None:
        async with asking(routes(ended), admin=True) as ask:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            answer = await ask(path, method, headers=named)
            assert answer.status == status, answer.text
            assert sentence in answer.text
            assert "Access-Control-Allow-Origin" not in answer.headers

    asyncio.run(main())
    assert not ended.by


def test_a_change_says_what_it_means() -> None:
    sentence = "changes require the header X-Isthmus-Intent: end\n"
    refused(403, sentence)
    refused(403, sentence, X_Isthmus_Intent="")
    refused(403, sentence, X_Isthmus_Intent="End")
    refused(403, sentence, X_Isthmus_Intent="end, end")


def test_a_page_of_another_site_changes_nothing() -> None:
    intent = {"X_Isthmus_Intent": "end"}
    sentence = "cross-site requests cannot make changes\n"
    refused(403, sentence, Origin="http://evil.example", **intent)
    refused(403, sentence, Origin="null", **intent)
    refused(403, sentence, Origin="http://[", **intent)
    refused(403, sentence, Origin="http://localhost:1", **intent)
    refused(403, sentence, Sec_Fetch_Site="cross-site", **intent)
    refused(403, sentence, Sec_Fetch_Site="same-site", **intent)
    # What a browser asks before it sends the header: never allowed.
    refused(405, "only POST\n", method="OPTIONS", Origin="http://evil.example",
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="x-isthmus-intent")  # fmt: skip
    # DNS rebinding: the name of the page, at our address.
    refused(403, "only requests for a loopback host name", Host="evil.example",
            Origin="http://evil.example", **intent)  # fmt: skip


def test_other_methods_and_garbage() -> None:
    intent = {"X_Isthmus_Intent": "end"}
    refused(405, "only POST\n", method="GET", **intent)
    refused(405, "only POST\n", method="DELETE", **intent)
    refused(405, "only GET and HEAD\n", path="/snapshot", **intent)
    for number in ("x", "-7", "7.0", "٧", "9" * 40, "%37x", "+7"):
        refused(400, "the tunnel id must be a whole number\n", path=f"/tunnels/{number}/end",
                **intent)  # fmt: skip
    for path in ("/tunnels/7", "/tunnels/7/end/", "/tunnels/7/8/end", "/tunnels/end", "/tunnels//"):
        refused(404, "404 page not found\n", path=path, **intent)


def test_the_same_origin_may() -> None:
    ended = Ended()

    async def main() -> None:
        port = await listen(routes(ended), admin=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        at = f"127.0.0.1:{port.number}"
        head = f"POST /tunnels/7/end HTTP/1.1\r\nHost: {at}\r\nOrigin: http://{at}\r\n"
        head += "Sec-Fetch-Site: same-origin\r\nX-Isthmus-Intent: end\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        assert b" 200 " in await reader.readuntil(b"\r\n")
        writer.close()
        await writer.wait_closed()
        await port.close()

    asyncio.run(main())
    assert len(ended.by) == 1


def test_a_port_without_a_guard_changes_nothing() -> None:
    ended = Ended()

    async def main() -> None:
        async with asking(routes(ended)) as ask:
            assert (await ask("/tunnels/7/end", "POST", headers=INTENT)).status == 404

    asyncio.run(main())
    assert not ended.by


async def post_as(uid: int, port: int) -> str:
    """Ask as another user of this machine; the status and the text."""
    curl = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "20"]
    asked = await asyncio.create_subprocess_exec(
        *curl, "--request", "POST", "--header", "X-Isthmus-Intent: end",
        "--write-out", "%{http_code}", f"http://127.0.0.1:{port}/tunnels/7/end",
        stdout=subprocess.PIPE, user=uid, cwd="/",
    )  # fmt: skip
    said, _ = await asked.communicate()
    return said.decode()


@as_root
@pytest.mark.parametrize(("uid", "may"), [(0, True), (65534, False)])
def test_another_user_of_the_machine_may_look_but_not_change(uid: int, may: bool) -> None:
    ended = Ended()

    async def main() -> None:
        port = await listen(routes(ended), admin=True)
        text = await post_as(uid, port.number)
        if may:
            assert text.endswith("200")
        else:
            user = pwd.getpwuid(uid).pw_name
            assert text.startswith("only root and the user of this program may make changes")
            assert f"this request is from {user};" in text and text.endswith("403")
        await port.close()

    asyncio.run(main())
    assert ended.by == ([(7, "operator root")] if may else [])


@as_root
def test_who_leaves_at_once_is_not_taken_for_root() -> None:
    """The kernel lists a closed socket under user 0, whoever closed it."""
    ended = Ended()
    leave = 'exec 3<>"/dev/tcp/127.0.0.1/$1"; printf %s "$0" >&3'

    async def main() -> None:
        async with asking(routes(ended), admin=True) as ask:
            number = (await ask("/healthz")).port
            for _ in range(10):
                asked = await asyncio.create_subprocess_exec(
                    "bash", "-c", leave, POST, str(number), user=65534, cwd="/"
                )
                assert await asked.wait() == 0
            # Accepted after them, so that they have been seen when this is answered.
            assert (await ask("/livez")).status == 200

    asyncio.run(main())  # which closes the port, and so waits for whoever is being answered
    assert not ended.by


def test_what_comes_through_this_program_is_not_from_an_operator() -> None:
    """A tunnel to the loopback of its own machine ends in a socket of the program's own user."""
    ended = Ended()

    async def main() -> None:
        with socket.socket() as ours:
            port = await listen(routes(ended), admin=True)
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            poller = Poller(loop)
            await loop.sock_connect(ours, ("127.0.0.1", port.number))
            poller.register(ours.fileno(), OUT, lambda mask: None)
            await loop.sock_sendall(ours, POST.encode())
            answer = (await loop.sock_recv(ours, 4096)).decode()
            assert answer.startswith("HTTP/1.1 403 ")
            assert "through a tunnel of this program" in answer
            poller.shut_down()
            await port.close()

    asyncio.run(main())
    assert not ended.by


def test_who_cannot_be_told_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "owner_of", lambda client, ours: None)
    refused(403, "cannot determine the user of the client", X_Isthmus_Intent="end")


# The token.


def with_token(token: Path, talk: Callable[[Ask, Ended], Any], **more: object) -> None:
    ended = Ended()

    async def main() -> None:
        async with asking(
            {**routes(ended), "/ui/": routes(ended)["/configz"]},
            admin=True,
            token=OperatorToken(str(token)),
            open_paths=("/ui/",),
            **more,
        ) as ask:
            await talk(ask, ended)

    asyncio.run(main())


def bearer(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


def test_a_token_is_wanted_for_everything_but_probes(token: Path) -> None:
    async def talk(ask: Ask, ended: Ended) -> None:
        for path in ("/healthz", "/livez", "/readyz", "/ready", "/ui/"):
            assert (await ask(path)).status == 200
        for path in ("/snapshot", "/history", "/audit", "/logs", "/configz", "/metrics", "/none",
                     "/ui/events"):  # fmt: skip
            answer = await ask(path)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), path
        assert (await ask("/snapshot", headers=bearer(TOKEN))).status == 200
        assert (await ask("/snapshot", headers={"Authorization": f"bearer  {TOKEN}"})).status == 200
        for wrong in (bearer(""), bearer(TOKEN[:-1]), bearer(f"{TOKEN}x"), bearer("\udcff"),
                      {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):  # fmt: skip
            assert (await ask("/snapshot", headers=wrong)).status == 401, wrong
        # Who shows it may come by any name, as through a port that is forwarded.
        named = {**bearer(TOKEN), "Host": "admin.example"}
        assert (await ask("/snapshot", headers=named)).status == 200

    with_token(token, talk)


def test_two_tokens_are_none(token: Path) -> None:
    async def main() -> None:
        port = await listen(routes(Ended()), admin=True, token=OperatorToken(str(token)))
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        line = f"Authorization: Bearer {TOKEN}\r\n"
        writer.write(f"GET /snapshot HTTP/1.1\r\nHost: x\r\n{line}{line}\r\n".encode())
        assert b" 40" in await reader.readuntil(b"\r\n")
        writer.close()
        await writer.wait_closed()
        await port.close()

    asyncio.run(main())


def test_who_shows_the_token_may_change(token: Path) -> None:
    async def talk(ask: Ask, ended: Ended) -> None:
        path = "/tunnels/7/end"
        assert (await ask(path, "POST", headers=INTENT)).status == 401
        assert (await ask("/ui/", "POST", headers=INTENT)).status == 401
        assert (await ask(path, "POST", headers=bearer(TOKEN))).status == 403
        assert not ended.by
        assert (await ask(path, "POST", headers={**INTENT, **bearer(TOKEN)})).status == 200
        assert ended.by == [(7, "operator with the token")]

    with_token(token, talk)


def test_a_new_token_counts_at_once(token: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(ask: Ask, ended: Ended) -> None:
        new = token.with_name("new")
        new.write_text("another-token-of-some-length")
        new.chmod(0o600)
        new.replace(token)
        assert (await ask("/snapshot", headers=bearer(TOKEN))).status == 401
        good = bearer("another-token-of-some-length")
        assert (await ask("/snapshot", headers=good)).status == 200
        token.write_text("short")  # cannot be used: the old one stays, said once
        for _ in range(3):
            assert (await ask("/snapshot", headers=good)).status == 200
        token.unlink()
        assert (await ask("/snapshot", headers=good)).status == 200

    with_token(token, talk)
    said = [it for it in caplog.records if "not reloaded" in it.getMessage()]
    assert len(said) == 2
    assert TOKEN not in caplog.text and "another-token" not in caplog.text


def test_who_asks_is_looked_for_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many who ask at once do not take the threads that everything else needs."""
    looking, most = 0, 0
    lock = threading.Lock()
    seen = threading.Event()

    def look(client: object, ours: object) -> None:
        nonlocal looking, most
        with lock:
            looking += 1
            most = max(most, looking)
        seen.wait(0.005)
        with lock:
            looking -= 1

    monkeypatch.setattr(guard_module, "owner_of", look)
    ended = Ended()

    async def main() -> None:
        port = await listen(routes(ended), admin=True)

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
            writer.write(POST.encode())
            answer = await reader.readline()
            writer.close()
            return answer

        answers = await asyncio.gather(*(ask() for _ in range(20)))
        assert {answer.split()[1] for answer in answers} == {b"403"}
        await port.close()

    asyncio.run(main())
    assert most == 1 and not ended.by
