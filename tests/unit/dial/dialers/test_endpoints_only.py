"""What an agent's lists leave of a name's addresses, and that nothing else is connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from isthmus.dial.dialers.direct import DirectDialer, EndpointsOnly
from isthmus.dial.settings_endpoint_lists import EndpointRefusal
from isthmus.errors import DialFailure
from isthmus.net.connect import Address
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.options import compose
from isthmus.tunnel.end import Ending
from isthmus.values import HostPort

LIMIT_S = 10.0


class Rebinding(asyncio.SelectorEventLoop):
    """A loop whose resolver answers otherwise each time it is asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        super().__init__()
        self.answers = list(answers)


class Rebound(EndpointsOnly):
    """Looks names up in what the loop says next."""

    async def _find(self, name: str, client: Hashable) -> Sequence[str]:
        assert isinstance(self._loop, Rebinding)
        return self._loop.answers.pop(0)


def made(
    loop: asyncio.AbstractEventLoop, denied: list[str], **flags: tuple[str, ...]
) -> EndpointsOnly:
    def hear(target: HostPort, refusal: EndpointRefusal) -> None:
        denied.append(refusal.entry)

    settings = compose(AgentSettings, ca_cert="ca.crt", **flags)  # type: ignore[arg-type]
    return Rebound(loop, settings.endpoints.endpoint_lists, settings.aliases, denied=hear)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (["192.0.2.1", "169.254.169.254", "fe80::1%lo", "fd00::1"], ["192.0.2.1", "fd00::1"]),
        (["169.254.169.254"], DialFailure.DENIED),
        (["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"], DialFailure.DENIED),
    ],
)
def test_every_address_is_looked_at(answer: list[str], found: list[str] | DialFailure) -> None:
    loop, denied = Rebinding(answer), list[str]()
    got: asyncio.Future[Any] = loop.create_future()

    def take(addresses: Sequence[Address]) -> None:
        got.set_result([address[0] for _, address in addresses])

    try:
        resolver = made(loop, denied)
        resolver.lookup(
            HostPort("rebound.example", 80), take, lambda failure, _: got.set_result(failure)
        )
        assert loop.run_until_complete(asyncio.wait_for(got, LIMIT_S)) == found
        assert denied == (["169.254.0.0/16"] if found is DialFailure.DENIED else [])
    finally:
        loop.close()


def dial(loop: asyncio.AbstractEventLoop, resolver: EndpointsOnly, target: HostPort) -> str:
    """Dial and give the address that was reached, or the failure and its detail."""
    poller = Poller(loop)
    got: asyncio.Future[str] = loop.create_future()

    def reached(end: SocketEnd) -> None:
        got.set_result(end.sock.getpeername()[0])
        end.abort(Ending.CANCELLED)

    async def run() -> str:
        DirectDialer(loop, poller, resolver, resolver.refuse).dial(
            target,
            timeout_s=LIMIT_S,
            reached=reached,
            failed=lambda failure, detail: got.set_result(f"{failure.name}: {detail}"),
        )
        return await asyncio.wait_for(got, LIMIT_S)

    try:
        return loop.run_until_complete(run())
    finally:
        poller.shut_down()


def test_what_was_looked_at_is_what_is_connected_to() -> None:
    # A second lookup would get the denied address, and would be connected to it.
    loop, denied = Rebinding(["127.0.0.3", "127.0.0.2"], ["127.0.0.3"]), list[str]()
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        try:
            resolver = made(loop, denied, endpoint_deny=("127.0.0.3",))
            assert dial(loop, resolver, HostPort("rebound.example", port)) == "127.0.0.2"
            assert loop.answers == [["127.0.0.3"]]  # asked once
        finally:
            loop.close()


@pytest.mark.parametrize("host", ["127.0.0.3", "::ffff:127.0.0.3", "alias.example"])
def test_an_address_and_an_alias_are_refused_without_a_connection(host: str) -> None:
    loop, denied = Rebinding(), list[str]()
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        try:
            resolver = made(
                loop,
                denied,
                endpoint_deny=("127.0.0.3",),
                host_alias=("alias.example=127.0.0.3",),
            )
            said = dial(loop, resolver, HostPort(host, port))
        finally:
            loop.close()
        assert said.startswith("DENIED: 127.0.0.3 of the agent's --endpoint-deny has ")
        assert denied == ["127.0.0.3"]
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_name_that_is_denied_is_not_even_looked_up() -> None:
    loop, denied = Rebinding(), list[str]()
    try:
        resolver = made(loop, denied, endpoint_deny=("*.example",))
        said = dial(loop, resolver, HostPort("db.example", 80))
    finally:
        loop.close()
    assert said == "DENIED: *.example of the agent's --endpoint-deny has db.example:80"
