"""Asking a ``who`` server for the address that it sees us with: by TCP, or in a datagram."""

from __future__ import annotations

import asyncio

from isthmus.lab.pipes import Dialer, opened
from isthmus.lab.topology import UDP
from isthmus.net.poller import Poller
from isthmus.values import HostPort

_MOST_BYTES = 2048
_QUESTION = b"who\n"


async def ask(dialer: Dialer, poller: Poller, target: str, *, timeout_s: float) -> bytes:
    """Ask at host:port, or at udp://host:port, which no dialer leads to; what was answered.

    Raises:
        DialError, OSError: nobody was reached, or the answer was cut off.
        ValueError: it is no such target.
    """
    if target.startswith(UDP):
        return await ask_by_udp(HostPort.parse(target.removeprefix(UDP)))
    answer = b""
    async with opened(dialer, poller, HostPort.parse(target), timeout_s=timeout_s) as pipe:
        while len(answer) < _MOST_BYTES and (data := await pipe.read(_MOST_BYTES)):
            answer += data
    return answer


async def ask_by_udp(target: HostPort) -> bytes:
    """Ask in a datagram; whoever waits for the answer limits the time.

    Raises:
        OSError: nobody is there, or it cannot be sent.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Question(answered), remote_addr=(target.host, target.port)
    )
    try:
        transport.sendto(_QUESTION)
        return await answered
    finally:
        transport.close()


class _Question(asyncio.DatagramProtocol):
    """Waits for one answer, or for the word that there is nobody."""

    def __init__(self, answered: asyncio.Future[bytes]) -> None:
        self._answered = answered

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self._answered.done():
            self._answered.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self._answered.done():
            self._answered.set_exception(exc)
