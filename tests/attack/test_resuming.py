"""Attacks on links that survive: stolen tokens, other identities, impossible offsets, floods."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authorities import Authority, Pair
from clients import LIMIT_S, Client, Target, TlsClient
from cutting_relay import CuttingRelay
from stack import Stack

from isthmus.links.server_side import AgentLink
from isthmus.programs.server import resuming as server_resuming
from isthmus.programs.server.metrics import ResumeRefusal
from isthmus.tools.pki import making as pki
from isthmus.wire.alpn import alpn_resuming
from isthmus.wire.link import take_message, to_bytes
from isthmus.wire.link_pb2 import Resume, Resumed


class Bed:
    """A link with a tunnel, and connections that want to have it."""

    def __init__(self, stack: Stack, own: Pair, other: Pair, relay: CuttingRelay) -> None:
        self.stack = stack
        self.own = own
        self.other = other
        self.relay = relay

    @property
    def link(self) -> AgentLink:
        return self.stack.do(lambda: next(iter(self.stack.server.agents)))

    def message(self, **other: Any) -> Resume:
        """What the agent itself would say."""
        link = self.link
        assert link.key is not None and link.lasting is not None
        said: dict[str, Any] = {
            "link": link.key.link,
            "token": link.key.token,
            "epoch": link.key.epoch + 1,
            "received": link.lasting.replaceable.sent,  # type: ignore[attr-defined]
        }
        return Resume(**(said | other))

    def connect(self, shown: Pair) -> TlsClient:
        context = ssl.create_default_context(cafile=str(self.stack.files.ca_cert))
        context.load_cert_chain(shown.cert, shown.key)
        context.set_alpn_protocols([alpn_resuming(self.stack.server.id)])
        sock = socket.create_connection(("127.0.0.1", self.stack.server.agent_port), LIMIT_S)
        try:
            return TlsClient(sock, context, "localhost")
        except BaseException:
            sock.close()
            raise

    def answer(self, shown: Pair, raw: bytes) -> Resumed | None:
        """Say something on a new connection; None: it was closed without an answer."""
        with self.connect(shown) as peer:
            peer.send(raw)
            return read_answer(peer)

    def refusals(self) -> dict[ResumeRefusal, int]:
        found = self.stack.server.agent_door.resumable._metrics.resumes_refused
        return {why: number for why, number in found.items() if number}


def read_answer(peer: Client) -> Resumed | None:
    buffer = bytearray()
    while True:
        try:
            data = peer.recv()
        except (OSError, ssl.SSLError):
            return None
        buffer += data
        message = take_message(buffer, Resumed)
        if message is not None or not data:
            return message


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    files = pki.init(tmp_path / "pki", one_ca=True)
    authority = Authority(files, tmp_path / "theirs")
    own, other = authority.issue("edge-7"), authority.issue("edge-8")
    with Stack(files) as stack:
        server = stack.add_server(agent_names=("edge-*",))
        with CuttingRelay(server.agent_port) as relay:
            stack.add_agent(proxy_server_port=relay.port, agent_cert=own.cert, agent_key=own.key)
            yield Bed(stack, own, other, relay)


def still_works(bed: Bed) -> None:
    """The link was not touched: no resume, and a tunnel by it carries bytes."""
    assert bed.link.resumes == 0 and not bed.link.suspended
    with Target() as target, bed.stack.tunnel("uds", target.name) as near, target.accept() as far:
        near.send(b"x")
        assert far.read_exactly(1) == b"x"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"link": b"another link"}, ResumeRefusal.UNKNOWN),
        ({"link": b""}, ResumeRefusal.UNKNOWN),
        ({"token": bytes(32)}, ResumeRefusal.TOKEN),
        ({"token": b""}, ResumeRefusal.TOKEN),
        ({"epoch": 0}, ResumeRefusal.TOKEN),
    ],
)
def test_a_wrong_key_changes_nothing(bed: Bed, wrong: dict[str, Any], why: ResumeRefusal) -> None:
    answer = bed.answer(bed.own, to_bytes(bed.message(**wrong)))
    assert answer is not None and answer.refusal == why.value and not answer.later
    assert bed.refusals() == {why: 1}
    still_works(bed)


def test_a_stolen_token_is_good_for_its_owner_only(bed: Bed) -> None:
    answer = bed.answer(bed.other, to_bytes(bed.message()))
    assert answer is not None and answer.refusal == ResumeRefusal.IDENTITY.value
    still_works(bed)


def test_a_token_is_good_once(bed: Bed) -> None:
    message = bed.message()
    bed.relay.shut = True
    with Target() as target, bed.stack.tunnel("uds", target.name), bed.connect(bed.own) as first:
        first.send(to_bytes(bed.message()))
        answer = read_answer(first)
        assert answer is not None and not answer.refusal and answer.next_token != message.token
        assert bed.answer(bed.own, to_bytes(message)).refusal == ResumeRefusal.TOKEN.value  # type: ignore[union-attr]
        # The answer may have been lost: until a byte arrives the token is good for a later epoch.
        again = bed.message(token=message.token)
        later = bed.answer(bed.own, to_bytes(again))
        assert later is not None and not later.refusal


@pytest.mark.parametrize("beyond", [-(10**6), 1, 2**40])
def test_an_impossible_offset_ends_the_link(bed: Bed, beyond: int) -> None:
    with Target() as target, bed.stack.tunnel("uds", target.name) as near, target.accept() as far:
        far.send(bytes(2_000_000))
        near.read_exactly(2_000_000)
        bed.stack.wait(lambda: bed_kept(bed) < 100_000, "the agent acknowledged it")
        message = bed.message()
        message.received = max(0, message.received + beyond)
        answer = bed.answer(bed.own, to_bytes(message))
        assert answer is not None and answer.refusal == ResumeRefusal.OFFSET.value
        while near.recv():
            pass
    bed.stack.wait(lambda: bed.stack.is_linked(bed.stack.agent), "the agent links anew")


def bed_kept(bed: Bed) -> int:
    return sum(link.kept_bytes for link in bed.stack.server.links)


def test_more_than_a_message_breaks_the_protocol(bed: Bed) -> None:
    assert bed.answer(bed.own, to_bytes(bed.message()) + b"x") is None
    assert bed.answer(bed.own, b"\xff" * 100) is None
    assert bed.answer(bed.own, to_bytes(Resume(bearer_token="x" * 20_000))) is None
    still_works(bed)


def test_two_at_once_and_one_of_them_has_it(bed: Bed) -> None:
    with bed.connect(bed.own) as one, bed.connect(bed.own) as two:
        message = to_bytes(bed.message())
        one.send(message)
        two.send(message)
        answers = [read_answer(one), read_answer(two)]
    assert sorted(answer.refusal for answer in answers if answer is not None) == [
        "", ResumeRefusal.TOKEN.value,
    ]  # fmt: skip


def test_a_flood_of_resumes_costs_whoever_sends_it(bed: Bed) -> None:
    wrong = to_bytes(bed.message(token=bytes(32)))
    for _ in range(50):
        assert bed.answer(bed.other, wrong) is not None
    assert bed.refusals() == {ResumeRefusal.TOKEN: 50}
    still_works(bed)


def test_nobody_hoards_suspended_links(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_resuming, "MOST_SUSPENDED", 2)
    door = bed.stack.server.agent_door
    for number in range(4):
        with CuttingRelay(bed.stack.server.agent_port) as relay:
            agent = bed.stack.add_agent(
                proxy_server_port=relay.port,
                agent_cert=bed.own.cert,
                agent_key=bed.own.key,
                agent_id=f"hoarder-{number}",
                linked=False,
            )
            bed.stack.wait(lambda: len(agent.servers.links) == 1, "it is linked")  # type: ignore[union-attr]  # noqa: B023
    bed.stack.wait(lambda: len(door.resumable) == 2, "two wait, the others ended")


def test_another_process_of_the_agent_ends_what_the_last_one_had(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.link.instance = "a process that is gone"
    with Target() as target, bed.stack.tunnel("uds", target.name) as near, target.accept():
        bed.relay.shut = True
        bed.relay.cut()
        bed.stack.wait(lambda: len(bed.stack.server.agent_door.resumable) == 1, "it is suspended")
        bed.stack.add_agent(
            agent_cert=bed.own.cert, agent_key=bed.own.key, agent_id=bed.stack.agent.id
        )
        while near.recv():
            pass
    assert len(bed.stack.server.agent_door.resumable) == 0


def test_a_token_shows_nowhere(bed: Bed) -> None:
    key = bed.link.key
    assert key is not None
    assert key.token.hex() not in repr(key) + repr(bed.link)
    assert str(key.token) not in repr(key) + repr(vars(bed.link))
