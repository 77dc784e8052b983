"""Connecting to a server: nothing is left behind when whoever asked gives up."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest

from isthmus.links import agent_side
from isthmus.links.agent_side import AgentGreeting, LinkOpening, ServerHooks, connect
from isthmus.links.link import LinkTerms
from isthmus.net.connect import Connected, Connecting, literal
from isthmus.net.poller import Poller
from isthmus.values import AgentId


def test_cancelled_when_just_connected_the_socket_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        socks: list[socket.socket] = []

        class Raced(Connecting):
            """Connects, and is cancelled before the task that waits is told."""

            def __init__(self, *args: Any, connected: Connected, **more: Any) -> None:
                def both(sock: socket.socket, events: int) -> None:
                    connected(sock, events)
                    socks.append(sock)
                    task.cancel()

                super().__init__(*args, connected=both, **more)

        monkeypatch.setattr(agent_side, "Connecting", Raced)
        with socket.create_server(("127.0.0.1", 0)) as server:
            task = asyncio.create_task(
                connect(
                    LinkTerms(loop=loop, poller=poller),
                    ServerHooks(on_dial=lambda _: None),
                    LinkOpening(
                        context=ssl.create_default_context(),
                        server_hostname="localhost",
                        greeting=AgentGreeting(agent_id=AgentId("agent")),
                    ),
                    literal(*server.getsockname()),
                )
            )
            with pytest.raises(asyncio.CancelledError):
                await task
        async with asyncio.timeout(20):
            while socks[0].fileno() >= 0:
                await asyncio.sleep(0)
        assert len(poller) == 0
        poller.shut_down()

    asyncio.run(main())
