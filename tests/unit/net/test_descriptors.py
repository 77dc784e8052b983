"""Descriptors that are kept back from peers, and who gets them."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from isthmus.errors import DialFailure
from isthmus.net import descriptors
from isthmus.net.connect import Connecting, literal
from isthmus.net.poller import Poller


@pytest.mark.parametrize(
    ("limit", "kept"), [(64, 8), (256, 32), (1024, 128), (4096, 256), (1_048_576, 256)]
)
def test_an_eighth_and_not_more_than_256(limit: int, kept: int) -> None:
    assert descriptors.kept_back(limit) == kept


def test_the_last_ones_are_not_for_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        assert descriptors.for_a_peer(sock) is sock
        monkeypatch.setattr(descriptors, "descriptors", lambda: sock.fileno() + 1)
        monkeypatch.setattr(descriptors, "_edge", 0)
        assert descriptors.as_it_is(sock) is sock
        with pytest.raises(OSError) as caught:
            descriptors.for_a_peer(sock)
        assert caught.value.errno == errno.EMFILE and sock.fileno() == -1


@pytest.mark.parametrize("for_peer", [True, False])
def test_a_link_may_take_what_a_dial_may_not(
    for_peer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        said: list[object] = []
        monkeypatch.setattr(descriptors, "descriptors", lambda: 1)
        monkeypatch.setattr(descriptors, "_edge", 0)

        def connected(sock: socket.socket, events: int) -> None:
            said.append("connected")
            sock.close()

        with socket.create_server(("127.0.0.1", 0)) as target:
            Connecting(
                loop, poller, [literal(*target.getsockname())], timeout_s=20.0,
                connected=connected, failed=lambda failure, _: said.append(failure),
                for_peer=for_peer,
            )  # fmt: skip
            async with asyncio.timeout(20):
                while not said:
                    await asyncio.sleep(0.001)
        assert said == [DialFailure.TOO_MANY if for_peer else "connected"]
        poller.shut_down()

    asyncio.run(work())
