"""A reader that stops: only its own writer stops, what is held stays bounded, and it is said."""

from __future__ import annotations

import contextlib
import re
import threading

import pytest
from clients import LIMIT_S, MIB, Client, Target
from stack import Program, Stack, metric, wait_until

from isthmus.dial import rules_stalls as stalls
from isthmus.frame import tunnels
from isthmus.frame.tunnels import why_slow, why_stalled

# Kernel buffers on the way, one stream's largest window, one read on the other side.
MOST_BYTES = 32 * MIB
KINDS = pytest.mark.parametrize("kind", ["uds", "tls"])


@pytest.fixture(autouse=True)
def quick_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel counts as stalled after a tenth of a second instead of five."""

    def quickly(**held: object) -> str:
        return why_stalled(**held, after_s=0.1)  # type: ignore[arg-type]

    def slow_quickly(**held: object) -> str:
        return why_slow(**held, after_s=0.0)  # type: ignore[arg-type]

    monkeypatch.setattr(tunnels, "why_stalled", quickly)
    monkeypatch.setattr(tunnels, "why_slow", slow_quickly)
    # Rates of a test are those of a busy machine.
    monkeypatch.setattr(stalls, "SLOW_BELOW_BYTES_S", float("inf"))


def why(stack: Stack, program: Program) -> list[str]:
    """What a program says of its stalled tunnels."""
    views = stack.do(lambda: program.tunnels.views(10))
    return [view.stalled for view in views if view.stalled]


def pour_until_it_stands(stack: Stack, sender: Client, near: Program) -> int:
    """Send until the program on this side has no credit left; how much went out."""
    sent = 0

    def stands() -> bool:
        nonlocal sent
        try:
            while sent < 2 * MOST_BYTES:
                sent += sender.sock.send(b"z" * 65536)
        except BlockingIOError:
            return any("no credit" in text for text in why(stack, near))
        raise AssertionError("a reader that stopped does not stop its writer")

    sender.sock.setblocking(False)
    wait_until(stands, "the writer stands still")
    sender.sock.settimeout(LIMIT_S)
    return sent


@KINDS
def test_a_client_that_does_not_read(stack: Stack, kind: str) -> None:
    with (
        Target() as target,
        stack.tunnel(kind, target.name) as stalled,
        target.accept() as far,
        stack.tunnel(kind, target.name) as other,
        target.accept() as other_far,
    ):
        sent = pour_until_it_stands(stack, far, stack.agent)
        assert sent < MOST_BYTES
        assert 0 < metric(stack.metrics(), "isthmus_server_held_bytes") <= 4 * MIB
        for _ in range(100):  # the other tunnel of the same link does not notice
            other.send(b"ping")
            assert other_far.read_exactly(4) == b"ping"
            other_far.send(b"x" * 100_000)
            assert other.read_exactly(100_000) == b"x" * 100_000
        wait_until(lambda: bool(why(stack, stack.server)), "the server says it")
        (view,) = [t for t in stack.snapshot()["tunnels"] if t["state"] == "stalled"]
        assert view["stalled"].startswith("client stopped reading; ")
        assert "iB held for " in view["stalled"]
        # It goes on when the reader does.
        assert len(stalled.read_exactly(sent)) == sent
        far.send(b"and on")
        assert stalled.read_exactly(6) == b"and on"
        wait_until(lambda: not why(stack, stack.server), "nothing stalls any more")
        assert metric(stack.metrics(), "isthmus_server_held_bytes") == 0


def pour_for_ever(sender: Client) -> threading.Thread:
    """Send in a thread until the connection is gone."""

    def pour() -> None:
        with contextlib.suppress(OSError):
            while True:
                sender.sock.sendall(b"z" * 65536)

    thread = threading.Thread(target=pour, daemon=True)
    thread.start()
    return thread


@KINDS
def test_a_client_that_reads_steadily_is_slow_and_has_not_stopped(stack: Stack, kind: str) -> None:
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        sending = pour_for_ever(far)
        wait_until(lambda: bool(why(stack, stack.server)), "it stands while nobody reads")

        def is_slow() -> bool:
            # Whatever time has passed: something was taken since the last look.
            taken = 0
            while taken < MIB // 4:  # a TCP peer says that there is room by large steps alone
                taken += len(client.recv())
            (view,) = stack.do(lambda: stack.server.tunnels.views(10))
            assert view.stalled == ""
            return bool(view.slow)

        wait_until(is_slow, "it is called slow")
        (view,) = stack.snapshot()["tunnels"]
        if view["state"] != "stalled":  # nobody has read meanwhile
            assert view["state"] == "slow"
            assert re.match(
                r"client reads slowly, [0-9.]+[KM]iB/s; [0-9.]+[KM]iB held$", view["slow"]
            )
        client.close()
        sending.join(LIMIT_S)
        assert not sending.is_alive()


@KINDS
def test_a_target_that_does_not_read(stack: Stack, kind: str) -> None:
    with (
        Target() as target,
        stack.tunnel("uds", target.name) as client,
        target.accept() as far,
        stack.tunnel(kind, target.name) as other,
        target.accept() as other_far,
    ):
        sent = pour_until_it_stands(stack, client, stack.server)
        assert sent < MOST_BYTES
        other.send(b"ping")
        assert other_far.read_exactly(4) == b"ping"
        wait_until(lambda: bool(why(stack, stack.agent)), "the agent says it")
        (said,) = why(stack, stack.agent)
        assert said.startswith("target stopped reading; ")
        assert len(far.read_exactly(sent)) == sent
        client.send(b"and on")
        assert far.read_exactly(6) == b"and on"


@KINDS
def test_a_stalled_client_that_leaves_frees_everything(stack: Stack, kind: str) -> None:
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        pour_until_it_stands(stack, far, stack.agent)
        client.close()
        with pytest.raises(ConnectionResetError):
            far.recv()
    stack.wait_idle()
    assert metric(stack.metrics(), "isthmus_server_held_bytes") == 0
