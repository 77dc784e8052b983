"""CONNECT over UDS and over TCP with mutual TLS: bytes, half-closes and resets, end to end."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from clients import Client, Target, full_target, head_for, status_of
from stack import Stack, counted, metric

KINDS = pytest.mark.parametrize("kind", ["uds", "tls"])
CUT = (ConnectionResetError, ssl.SSLError)


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """Everything here holds over both."""
    return str(request.param)


@KINDS
def test_bytes_both_ways(stack: Stack, kind: str) -> None:
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        client.send(b"ping")
        assert far.read_exactly(4) == b"ping"
        far.send(b"pong!")
        assert client.read_exactly(5) == b"pong!"


@KINDS
def test_by_a_name_that_only_the_agent_knows(fresh: Stack, kind: str) -> None:
    fresh.add_server()
    fresh.add_agent(host_alias=("demo.internal=127.0.0.1",))
    with (
        Target() as target,
        fresh.tunnel(kind, f"Demo.Internal.:{target.port}") as client,
        target.accept() as far,
    ):
        far.send(b"hello")
        assert client.read_exactly(5) == b"hello"
        assert fresh.snapshot()["tunnels"][0]["target"].lower().startswith("demo.internal")


@KINDS
def test_bytes_sent_with_the_head_are_the_first_of_the_tunnel(stack: Stack, kind: str) -> None:
    early = bytes(range(256)) * 800  # more than is kept before the dial is answered
    with Target() as target, stack.client(kind) as client:
        client.send(head_for(target.name) + early[:1000])
        with target.accept() as far:
            assert far.read_exactly(1000) == early[:1000]
            client.send(early[1000:])
            assert far.read_exactly(len(early) - 1000) == early[1000:]
            assert status_of(client.read_head()) == 200
            assert client.kept == b""


@KINDS
def test_a_head_that_comes_byte_by_byte(stack: Stack, kind: str) -> None:
    with Target() as target, stack.client(kind) as client:
        for byte in head_for(target.name) + b"x":
            client.send(bytes([byte]))
        with target.accept() as far:
            assert far.read_exactly(1) == b"x"
            assert status_of(client.read_head()) == 200


@KINDS
def test_a_target_that_speaks_first_and_closes(stack: Stack, kind: str) -> None:
    for _ in range(20):  # its bytes and FIN may come with the answer of the dial, or after
        with Target() as target, stack.client(kind) as client:
            client.send(head_for(target.name))
            with target.accept() as far:
                far.send(b"220 ready\r\n")
            assert status_of(client.read_head()) == 200
            assert client.read_to_end() == b"220 ready\r\n"
            client.half_close()


@KINDS
def test_the_client_half_closes_and_the_reply_still_comes(stack: Stack, kind: str) -> None:
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        client.send(b"question")
        client.half_close()
        assert far.read_to_end() == b"question"
        stack.wait(lambda: len(stack.server.tunnels) == 1, "the tunnel goes on")
        assert stack.snapshot()["tunnels"][0]["state"] == "half-closed"
        far.send(b"answer" * 100_000)
        far.half_close()
        assert client.read_to_end() == b"answer" * 100_000


@KINDS
def test_the_client_half_closes_before_the_answer(stack: Stack, kind: str) -> None:
    with Target() as target, stack.client(kind) as client:
        client.send(head_for(target.name) + b"question")
        client.half_close()
        with target.accept() as far:
            assert far.read_to_end() == b"question"
            far.send(b"answer")
        assert status_of(client.read_head()) == 200
        assert client.read_to_end() == b"answer"


@KINDS
def test_the_target_half_closes_and_still_hears(stack: Stack, kind: str) -> None:
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        far.send(b"that is all")
        far.half_close()
        assert client.read_to_end() == b"that is all"
        client.send(b"not from me")
        client.half_close()
        assert far.read_to_end() == b"not from me"


def last_ending(stack: Stack) -> dict[str, object]:
    stack.wait_idle()
    ending: dict[str, object] = stack.snapshot()["recentEndings"][0]
    return ending


def read_until_cut(client: Client) -> bytes:
    got = b""
    with pytest.raises(CUT):
        while data := client.recv():
            got += data
    return got


def test_a_reset_of_the_target_is_an_error_for_a_tls_client(stack: Stack) -> None:
    with Target() as target, stack.tunnel("tls", target.name) as client:
        far = target.accept()
        far.send(b"half a reply")
        assert client.read_exactly(12) == b"half a reply"
        far.reset()
        assert read_until_cut(client) == b""
        ending = last_ending(stack)
        assert (ending["ending"], ending["by"]) == ("reset by peer", "target")


def test_a_reset_of_the_target_closes_a_unix_client_and_the_snapshot_says_why(
    stack: Stack,
) -> None:
    with Target() as target, stack.tunnel("uds", target.name) as client:
        far = target.accept()
        far.reset()
        assert client.read_to_end() == b""
        ending = last_ending(stack)
        assert (ending["ending"], ending["by"]) == ("reset by peer", "target")
        assert ending["target"] == target.name


@pytest.mark.parametrize("kind", ["uds", "tls"])
def test_an_answer_just_before_a_reset_still_comes(stack: Stack, kind: str) -> None:
    answer = b"HTTP/1.1 413 Content Too Large\r\n\r\n"
    for _ in range(20):
        with Target() as target, stack.tunnel(kind, target.name) as client:
            with target.accept() as far:
                client.send(b"an upload that nobody will read")
                far.send(answer)
                far.reset()
            got = b""
            with contextlib.suppress(*CUT):  # an end of file on a UNIX socket
                while data := client.recv():
                    got += data
            assert got == answer


def test_a_reset_of_a_tls_client_reaches_the_target(stack: Stack) -> None:
    with Target() as target, stack.tunnel("tls", target.name) as client, target.accept() as far:
        client.reset()
        with pytest.raises(ConnectionResetError):
            far.recv()
        ending = last_ending(stack)
        assert (ending["ending"], ending["by"]) == ("reset by peer", "client")


def test_tcp_end_without_close_notify_is_a_reset(stack: Stack) -> None:
    with Target() as target, stack.tunnel("tls", target.name) as client, target.accept() as far:
        client.send(b"partly")
        assert far.read_exactly(6) == b"partly"
        client.close()
        with pytest.raises(ConnectionResetError):
            far.recv()


def test_a_unix_client_that_closes_with_bytes_unread_resets_the_target(stack: Stack) -> None:
    with Target() as target, stack.tunnel("uds", target.name) as client, target.accept() as far:
        far.send(b"unread")
        stack.wait(
            lambda: stack.server.tunnels.live_bytes()[1] == 6, "the bytes are on the way back"
        )
        client.close()
        # The server learns of the reset while it writes or reads; either way the target hears.
        with pytest.raises(ConnectionResetError):
            while True:
                far.send(b"more")
                assert far.recv() != b"", "a reset is not an end of file"


def test_who_asked_is_in_the_snapshot(stack: Stack) -> None:
    with Target() as target:
        with stack.tunnel("tls", target.name), target.accept():
            asked = stack.snapshot()["tunnels"][-1]["requester"]
            assert asked == "certificate:isthmus-client"
        stack.wait_idle()
        with stack.tunnel("uds", target.name), target.accept():
            assert stack.snapshot()["tunnels"][-1]["requester"].startswith("uid:")


@pytest.mark.parametrize("kind", ["uds", "tls"])
def test_a_client_that_leaves_while_its_dial_is_pending_takes_it_back(
    stack: Stack, kind: str
) -> None:
    left = 'konnectivity_network_proxy_server_dial_failure_count{reason="frontend_close"}'
    before = counted(stack.metrics(), left)
    with full_target() as target, getattr(stack, kind)() as client:
        client.send(head_for(target.name))
        stack.wait(lambda: len(stack.server.dialer.pending) == 1, "the dial is under way")
        client.reset()  # which a UNIX socket cannot say: it closes
        stack.wait(lambda: len(stack.server.dialer.pending) == 0, "the dial is taken back")
        stack.wait(lambda: len(stack.agent.poller) == 1, "the agent stopped dialing")
    assert metric(stack.metrics(), left) == before + 1
