"""A reader that stops: only its own writer stops, what is held stays bounded, and it is said."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from clients import MIB, Client, Target
from stack import Stack, metric

from isthmus.app import tunnels
from isthmus.core.snapshot import why_stalled


def pour(sender: Client) -> tuple[threading.Thread, Callable[[], int]]:
    """Send for ever in a thread; the second value tells how much went out."""
    sent = [0]

    def send() -> None:
        try:
            while True:
                sent[0] += sender.sock.send(b"z" * 65536)
        except OSError:
            pass

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread, lambda: sent[0]


def until_it_stands(stack: Stack, sent: Callable[[], int]) -> int:
    """Wait until nothing more is taken; what was."""
    last = [0, -1]

    def stands() -> bool:
        last[0], last[1] = last[1], sent()
        return last[0] == last[1] > 0 and threading.Event().wait(0.2) is False and sent() == last[1]

    stack.wait(lambda: True, "the loop runs")
    from stack import wait_until

    wait_until(stands, "the writer stands still")
    return sent()


@pytest.fixture
def quick_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel counts as stalled after a tenth of a second instead of five."""

    def quickly(**held: object) -> str:
        return why_stalled(**held, after_s=0.1)  # type: ignore[arg-type]

    monkeypatch.setattr(tunnels, "why_stalled", quickly)


@pytest.mark.parametrize("kind", ["uds", "tls"])
def test_a_client_that_does_not_read(stack: Stack, kind: str, quick_verdict: None) -> None:
    with (
        Target() as target,
        stack.tunnel(kind, target.name) as stalled,
        target.accept() as far,
        stack.tunnel(kind, target.name) as other,
        target.accept() as other_far,
    ):
        thread, sent = pour(far)
        taken = until_it_stands(stack, sent)
        # Kernel buffers, one stream's largest window on the server, one read on the agent.
        assert taken < 32 * MIB
        held = metric(stack.metrics(), "isthmus_server_held_bytes")
        assert 0 < held <= 4 * MIB
        for _ in range(100):  # the other tunnel of the same link does not notice
            other.send(b"ping")
            assert other_far.read_exactly(4) == b"ping"
            other_far.send(b"x" * 100_000)
            assert other.read_exactly(100_000) == b"x" * 100_000
        stack.wait(lambda: any(view.stalled for view in stack.server.tunnels.views(10)), "it is said")
        states = {t["id"]: t for t in stack.snapshot()["tunnels"]}
        said = [t["stalled"] for t in states.values() if t["state"] == "stalled"]
        assert len(said) == 1
        assert said[0].startswith("client stopped reading; ") and " bytes held for " in said[0]
        # The agent sees the same tunnel wait for credit.
        seen = [t["stalled"] for t in stack.snapshot(stack.agent)["tunnels"] if t["stalled"]]
        assert len(seen) == 1 and "no credit on the link" in seen[0]
        # It goes on when the reader does.
        assert len(stalled.read_exactly(taken)) == taken
        stack.wait(lambda: sent() > taken, "the writer goes on")
        far.sock.shutdown(socket.SHUT_RDWR)
        thread.join(20)
        assert not thread.is_alive()


def test_a_target_that_does_not_read(stack: Stack, quick_verdict: None) -> None:
    with (
        Target() as target,
        stack.tunnel("uds", target.name) as client,
        target.accept() as far,
        stack.tunnel("uds", target.name) as other,
        target.accept() as other_far,
    ):
        thread, sent = pour(client)
        taken = until_it_stands(stack, sent)
        assert taken < 32 * MIB
        other.send(b"ping")
        assert other_far.read_exactly(4) == b"ping"
        stack.wait(lambda: any(view.stalled for view in stack.agent.tunnels.views(10)), "it is said")
        seen = [t["stalled"] for t in stack.snapshot(stack.agent)["tunnels"] if t["stalled"]]
        assert len(seen) == 1 and seen[0].startswith("target stopped reading; ")
        assert len(far.read_exactly(taken)) == taken
        stack.wait(lambda: sent() > taken, "the writer goes on")
        client.sock.shutdown(socket.SHUT_RDWR)
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["uds", "tls"])
def test_a_stalled_client_that_leaves_frees_everything(stack: Stack, kind: str) -> None:
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        thread, sent = pour(far)
        until_it_stands(stack, sent)
        client.close()
        thread.join(20)
        assert not thread.is_alive()
    stack.wait_idle()
    assert metric(stack.metrics(), "isthmus_server_held_bytes") == 0
