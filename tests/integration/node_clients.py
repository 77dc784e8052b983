"""Connections of nodes, as an agent's link carries them: a dial is opened by hand.

What accepts connections on a node is another part of the agent; here a test's own socket is joined
to the stream, so that the test talks to the destination as a node would.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from concurrent.futures import Future
from typing import Self

from clients import LIMIT_S, Client
from stack import Stack

from isthmus.errors import DialFailure
from isthmus.net.socket_end import SocketEnd
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.values import DialId, DialRequest, HostPort, Identity
from isthmus.wire.link import failure_of
from isthmus.wire.link_pb2 import DialResult

_numbers = itertools.count(1_000_000)
CLIENT = "10.9.8.7:4321"


class NodeDial:
    """A dial that the first agent opens over its first link."""

    def __init__(
        self,
        stack: Stack,
        host: str,
        port: int,
        *,
        timeout_s: float = LIMIT_S,
        connection_id: str = "",
    ) -> None:
        self._stack = stack
        self._told: Future[DialResult | None] = Future()
        self._end: BaseEnd | None = None
        self.number = next(_numbers)

        def told(result: DialResult | None) -> None:
            if not self._told.done():
                self._told.set_result(result)

        def open_it() -> None:
            servers = stack.agent.servers
            assert servers is not None
            link = next(iter(servers.links.values()))
            self._end = link.open_dial(
                DialRequest(
                    _asked(host, port),
                    Identity(CLIENT),
                    connection_id=connection_id or f"node-{self.number:x}",
                ),
                dial_id=DialId(self.number),
                timeout_s=timeout_s,
                told=told,
            )

        stack.do(open_it)
        assert self._end is not None, "the link cannot open a dial"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.take_back()

    def answer(self) -> DialResult | None:
        """What the server says; None if the stream ended without an answer."""
        return self._told.result(LIMIT_S)

    def refusal(self) -> tuple[DialFailure, str]:
        """Why the server refuses."""
        result = self.answer()
        assert result is not None
        failure = failure_of(result)
        assert failure is not None, "it was reached"
        end = self._end
        assert end is not None
        self._stack.do(end.write_eof)  # both sides are done with the stream
        return failure, result.detail

    def take_back(self) -> None:
        """Nobody waits for it any more."""
        end = self._end
        assert end is not None
        self._stack.do(lambda: end.abort(Ending.CANCELLED))

    def joined(self) -> Client:
        """The connection of a node to the destination that was reached."""
        result = self.answer()
        assert result is not None and failure_of(result) is None, result
        with socket.create_server(("127.0.0.1", 0)) as door:
            near = socket.create_connection(door.getsockname(), LIMIT_S)
            far, _ = door.accept()
        far.setblocking(False)
        end = self._end
        assert end is not None
        self._stack.do(lambda: join(SocketEnd(far, self._stack.agent.poller), end))
        return Client(near)


def node(stack: Stack, host: str, port: int) -> Client:
    """Connect as a node does, or fail."""
    return NodeDial(stack, host, port).joined()


def refused(stack: Stack, host: str, port: int) -> tuple[DialFailure, str]:
    """Why a node does not get there."""
    return NodeDial(stack, host, port).refusal()


def _asked(host: str, port: int) -> HostPort:
    """What is asked for, also what a well-behaved agent would not ask."""
    with contextlib.suppress(ValueError):
        return HostPort(host, port)
    asked = HostPort("placeholder", 1)
    object.__setattr__(asked, "host", host)
    object.__setattr__(asked, "port", port)
    return asked
