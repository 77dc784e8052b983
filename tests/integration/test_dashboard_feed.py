"""The feed of a running program: what viewers are told, how many there may be, who is cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clients import Target
from dashboard_bed import Watcher, ask, deaf
from stack import Stack, client_context

import isthmus
from isthmus.frame.admin import ports
from isthmus.frame.admin.answers import Watched
from isthmus.frame.admin.ports import AdminAccess, Port, serve
from isthmus.frame.dashboard import feed, routes, viewers
from isthmus.frame.dashboard.routes import Dashboard, dashboard_routes
from isthmus.frame.model.history import History, Tally
from isthmus.frame.model.snapshot import ServerView, Totals, TunnelState, TunnelView
from isthmus.values import AgentId, ServerId, TunnelId


def test_a_page_is_told_everything_and_then_what_changes(stack: Stack) -> None:
    with Target() as target, Watcher(stack.server.admin_port) as page:
        assert page.status == 200
        assert page.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        name, hello = page.event()
        assert (name, hello) == (
            "hello",
            {
                "version": isthmus.__version__,
                "everySeconds": 1,
                "sources": [
                    {
                        "id": "0",
                        "program": "server",
                        "instance": stack.server.id,
                        "address": "",
                        "canEnd": True,
                    }
                ],
            },
        )
        name, full = page.event()
        assert name == "full" and full["source"] == "0"
        assert full["snapshot"].keys() == stack.snapshot().keys()
        assert full["snapshot"]["tunnels"] == []
        assert full["audit"] == {"enabled": False, "records": []}
        assert isinstance(full["history"], list) and full["at"].endswith("Z")

        with stack.tunnel("uds", target.name) as client, target.accept() as far:
            new = page.until(lambda _, it: "set" in it.get("tunnels", {}), "a new tunnel")
            (row,) = new["tunnels"]["set"]
            assert row["target"] == target.name and row["frontend"] == "http-connect"
            client.send(b"x" * 1000)
            far.read_exactly(1000)
            moved = page.until(lambda _, it: "tunnels" in it, "moved bytes")
            assert moved["tunnels"] == {"moved": [[row["id"], 1000, 0]]}
            assert "totals" in moved["snapshot"] and "moved" in moved["links"]
            far.send(b"y" * 50)
            client.read_exactly(50)
            moved = page.until(lambda _, it: "tunnels" in it, "moved bytes")
            assert moved["tunnels"] == {"moved": [[row["id"], 1000, 50]]}
            assert page.tunnels()[0]["bytesToClient"] == 50
        gone = page.until(lambda _, it: "gone" in it.get("tunnels", {}), "the tunnel is gone")
        assert gone["tunnels"]["gone"] == [row["id"]]
        assert gone["snapshot"]["recentEndings"][0]["bytesToTarget"] == 1000
        assert page.tunnels() == []
        quiet = page.until(lambda _, it: "snapshot" not in it, "a quiet second")
        assert quiet.keys() <= {"source", "at", "links", "history"}


def test_a_newcomer_gets_a_full_and_the_others_go_on(stack: Stack) -> None:
    with Target() as target, Watcher(stack.server.admin_port) as first:
        first.next("full")
        with stack.tunnel("uds", target.name) as client, target.accept() as far:
            client.send(b"abc")
            far.read_exactly(3)
            first.until(lambda *_: bool(first.tunnels()), "a tunnel")
            with Watcher(stack.server.admin_port) as second:
                assert second.event()[0] == "hello" and second.event()[0] == "full"
                client.send(b"def")
                far.read_exactly(3)
                for page in (first, second):
                    page.until(
                        lambda *_, page=page: page.tunnels()[0]["bytesToTarget"] == 6, "6 bytes"
                    )
            first.next("delta")


def test_history_and_audit_come_as_they_grow(fresh: Stack, tmp_path: Path) -> None:
    server = fresh.add_server(audit_log_path=str(tmp_path / "audit.log"))
    fresh.add_agent()
    with Target() as target, Watcher(server.admin_port) as page:
        full = page.next("full")
        assert full["audit"] == {"enabled": True, "records": []}
        known = len(full["history"])
        tally = Tally(dials=7, failures={"refused": 2})
        fresh.do(lambda: server.health.history.take(tally, at=datetime(2026, 1, 1, tzinfo=UTC)))
        grown = page.until(lambda _, it: "history" in it, "a step")
        assert grown["history"][0]["number"] == known + 1
        assert page.pictures["0"].full()["history"][known]["failures"] == {"refused": 2}
        with fresh.tunnel("uds", target.name), target.accept():
            pass
        said = page.until(lambda _, it: "audit" in it, "an audit record")
        assert target.name in json.dumps(said["audit"][0])
        with Watcher(server.admin_port) as other:
            records = other.next("full")["audit"]["records"]
        mine = page.pictures["0"].full()["audit"]["records"]
        assert records[: len(mine)] == mine


def test_an_agent_has_a_page_too(stack: Stack) -> None:
    with Watcher(stack.agent.admin_port) as page:
        assert page.next("hello")["sources"][0]["program"] == "agent"
        assert page.next("full")["snapshot"]["kind"] == "AgentSnapshot"


# Programs that there are not: large ones, broken ones.


class Pretended:
    """A program of which a test says what it looks like."""

    def __init__(self, tunnels: int = 0) -> None:
        self.tunnels = tunnels
        self.taken = 0
        self.broken = False

    def snapshot(self, limit: int) -> ServerView:
        self.taken += 1
        if self.broken:
            raise RuntimeError("no snapshot today")
        rows = tuple(self._row(number) for number in range(self.tunnels))
        return ServerView(
            server_id=ServerId("one"), version="1", uptime_s=1.0, draining=False,
            totals=Totals(dials=self.taken), agents=(), links=(), tunnels=rows,
        )  # fmt: skip

    def _row(self, number: int) -> TunnelView:
        return TunnelView(
            id=TunnelId(number), frontend="http-connect", requester="me", target="pod:80",
            agent_id=AgentId("a"), link_id=1, state=TunnelState.STALLED, age_s=1.0,
            bytes_to_target=self.taken, bytes_to_client=0, stalled=f"{self.taken} {'x' * 300}",
        )  # fmt: skip

    def watched(self) -> Watched:
        return Watched(
            program="server", instance="one", settings=None, live=list, ready=list,
            metrics=bytes, open_metrics=bytes, snapshot=self.snapshot, history=History(),
        )  # fmt: skip


@contextlib.contextmanager
def served(stack: Stack, watched: Watched) -> Iterator[int]:
    """A page of its own port; stopped as programs do it."""

    async def start() -> tuple[Dashboard, Port]:
        made = dashboard_routes(watched)
        port = await serve(
            made.routes,
            host="127.0.0.1",
            port=0,
            host_flag="--h",
            port_flag="--p",
            access=AdminAccess(),
        )
        return made, port

    made, port = stack.run(start())
    try:
        yield port.number
    finally:
        stack.do(made.close)
        stack.run(port.close())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed that hardly rests."""
    monkeypatch.setattr(feed, "EVERY_S", 0.02)
    monkeypatch.setattr(feed, "_REST", 0)


def sampling(stack: Stack) -> bool:
    return stack.do(
        lambda: any(task.get_name() == "dashboard" for task in asyncio.all_tasks(stack.loop))
    )


def test_nothing_is_sampled_while_nobody_looks(fresh: Stack, quick: None) -> None:
    program = Pretended()
    with served(fresh, program.watched()) as port:
        assert ask(port, "/ui/").status in (200, 404)
        assert not sampling(fresh) and program.taken == 0
        with Watcher(port) as page, Watcher(port) as other:
            for one in (page, other):
                one.next("full")
                one.next("delta")
            assert sampling(fresh)
        fresh.wait(lambda: not any(
            task.get_name() == "dashboard" for task in asyncio.all_tasks(fresh.loop)
        ), "the sampler rests")  # fmt: skip
        taken = program.taken
        with Watcher(port) as page:
            assert page.next("full")["snapshot"]["totals"]["dials"] == taken + 1


def test_all_viewers_share_one_sampler(fresh: Stack, quick: None) -> None:
    program = Pretended()
    with served(fresh, program.watched()) as port, contextlib.ExitStack() as open_ones:
        pages = [open_ones.enter_context(Watcher(port)) for _ in range(5)]
        for page in pages:
            page.next("delta")
        names = fresh.do(lambda: [task.get_name() for task in asyncio.all_tasks(fresh.loop)])
        assert names.count("dashboard") == 1


def test_there_is_room_for_32(fresh: Stack) -> None:
    with served(fresh, Pretended().watched()) as port, contextlib.ExitStack() as open_ones:
        pages = [open_ones.enter_context(Watcher(port)) for _ in range(viewers.MOST_VIEWERS)]
        assert all(page.status == 200 for page in pages) and len(pages) == 32
        with Watcher(port) as late:
            assert late.status == 503 and late.headers["Retry-After"] == "5"
            assert late.text().startswith("32 pages are already open")
            assert "Content-Security-Policy" in late.headers
        pages[0].close()

        def let_in() -> bool:
            with Watcher(port) as again:
                return again.status == 200

        while not let_in():  # the test's own time limit bounds it
            pass
        pages[1].next("full")


def test_a_viewer_that_does_not_read_is_cut_and_the_others_go_on(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "EVERY_S", 0.1)
    monkeypatch.setattr(feed, "_REST", 0)
    monkeypatch.setattr(routes, "STALLED_S", 1000.0)
    program = Pretended(tunnels=2000)
    with served(fresh, program.watched()) as port, deaf(port) as sock:
        fresh.wait(lambda: program.taken > 0, "it is a viewer")
        with Watcher(port) as page:
            page.next("full")
            read = 0
            while streams_of(fresh) > 1:
                page.event()
                read += 1
            before = program.taken
            while program.taken < before + 3:
                page.event()
        assert read > 1
        assert was_cut(sock)


def streams_of(stack: Stack) -> int:
    """How many connections are being answered."""

    def count() -> int:
        names = [
            frame.f_code.co_qualname
            for task in asyncio.all_tasks(stack.loop)
            for frame in task.get_stack()
        ]
        return names.count("RequestHandler.start")

    return stack.do(count)


def was_cut(sock: socket.socket) -> bool:
    """Read what the kernel still has: it stops in the middle."""
    got = b"".join(iter(lambda: sock.recv(1 << 20), b""))
    assert got.startswith(b"HTTP/1.1 200 ")
    return not got.endswith(b"0\r\n\r\n")


def test_one_that_stops_reading_in_the_middle_is_cut_by_time(
    fresh: Stack, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "MOST_BEHIND_BYTES", 1 << 40)
    monkeypatch.setattr(routes, "STALLED_S", 0.2)
    with served(fresh, Pretended(tunnels=2000).watched()) as port, deaf(port) as sock:
        fresh.wait(lambda: sampling_now(fresh), "it is a viewer")
        fresh.wait(lambda: not sampling_now(fresh), "it was cut")
        assert was_cut(sock)


def sampling_now(stack: Stack) -> bool:
    return any(task.get_name() == "dashboard" for task in asyncio.all_tasks(stack.loop))


def test_silence_is_broken(fresh: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "rest_s", lambda took_s: 1000.0)
    monkeypatch.setattr(routes, "ALIVE_S", 0.05)
    with served(fresh, Pretended().watched()) as port, Watcher(port) as page:
        page.next("full")
        assert [page.line() for _ in range(4)] == [": alive", "", ": alive", ""]


def test_streams_end_cleanly_when_the_program_stops(fresh: Stack) -> None:
    server = fresh.add_server()
    with Watcher(server.admin_port) as page, Watcher(server.admin_port) as other:
        for one in (page, other):
            one.next("full")
        stopping = threading.Thread(target=lambda: fresh.stop(server))
        stopping.start()
        for one in (page, other):
            while not one.ended:  # the end of the last chunk: nobody was cut
                one.line()
        stopping.join()


def test_a_viewer_that_does_not_read_does_not_delay_the_end(
    fresh: Stack, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "SHUTDOWN_S", 1000.0)  # what a port would wait for it
    monkeypatch.setattr(routes, "STALLED_S", 1000.0)
    program = Pretended(tunnels=5000)
    with contextlib.ExitStack() as later:
        with served(fresh, program.watched()) as port:
            sock = later.enter_context(deaf(port))
            fresh.wait(lambda: program.taken > 3, "it has more to read than fits")
        assert was_cut(sock)


def test_a_mistake_of_ours_ends_the_streams_and_pages_come_again(
    fresh: Stack, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    program = Pretended()
    with served(fresh, program.watched()) as port:
        with Watcher(port) as page:
            page.next("full")
            program.broken = True
            while not page.ended:
                page.line()
        assert "dashboard feed failed" in caplog.text
        program.broken = False
        with Watcher(port) as page:
            page.next("delta")


# Who is answered.


def test_with_a_token_the_page_is_open_and_the_feed_is_not(fresh: Stack, tmp_path: Path) -> None:
    token = "a-token-of-a-test-0123456789"
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    server = fresh.add_server(admin_token_file=str(file))
    assert ask(server.admin_port, "/ui/").status == 200
    with Watcher(server.admin_port) as page:
        assert page.status == 401 and page.headers["WWW-Authenticate"] == "Bearer"
    with Watcher(server.admin_port, token=token) as page:
        assert page.next("hello")["sources"][0]["instance"] == server.id


def test_by_https_with_a_certificate(fresh: Stack) -> None:
    files = fresh.files
    server = fresh.add_server(
        admin_cert=str(files.server_cert), admin_key=str(files.server_key),
        admin_client_ca=str(files.client_ca_cert),
    )  # fmt: skip
    with Watcher(server.admin_port, tls=client_context(files)) as page:
        assert page.next("hello")["sources"][0]["instance"] == server.id
        page.next("delta")


def test_pages_of_other_sites_are_refused(stack: Stack) -> None:
    for site in ("cross-site", "same-site"):
        with Watcher(stack.server.admin_port, headers={"Sec-Fetch-Site": site}) as page:
            assert page.status == 403 and page.text() == "cross-site requests are not allowed\n"
    with Watcher(stack.server.admin_port, headers={"Sec-Fetch-Site": "same-origin"}) as page:
        assert page.status == 200
    reply = ask(stack.server.admin_port, "/ui/events", Host="evil.example")
    assert reply.status == 403


def test_events_are_json_in_one_line(stack: Stack) -> None:
    with Watcher(stack.server.admin_port) as page:
        lines = [page.line() for _ in range(6)]
    assert lines[0] == "event: hello" and lines[2] == "" and lines[3] == "event: full"
    assert json.loads(lines[4].removeprefix("data: "))["source"] == "0"
