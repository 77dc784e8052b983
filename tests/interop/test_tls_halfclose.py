"""Half-closes, cuts and resets of a TLS end against Go's crypto/tls, in both roles.

``tls.Conn.CloseWrite`` sends close_notify and keeps reading, which ``openssl s_client`` cannot.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.poller import Poller
from isthmus.net.tls import TlsEnd
from isthmus.testing import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import Ending, join

pytestmark = pytest.mark.interop

PATIENCE_S = 30.0
SIZE = 3 * 1024 * 1024
_BLOCK = bytes((i * 31 + (i >> 8) * 7) & 0xFF for i in range(65521))
SENT_BY_GO = (_BLOCK * (SIZE // len(_BLOCK) + 1))[:SIZE]
REPLY = bytes(range(256)) * 8192
ROLES = ["client", "server"]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("halfclose") / "pki", one_ca=True)


class Meeting:
    """Our end, joined to one in memory, connected to a Go process in the other role."""

    def __init__(self, binary: Path, files: pki.PkiFiles, role: str, act: str, tls12: bool) -> None:
        self.binary, self.files, self.role, self.act, self.tls12 = binary, files, role, act, tls12
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.sink = MemoryEnd()

    async def begin(self) -> None:
        if self.role == "client":  # Go's role
            with socket.create_server(("127.0.0.1", 0)) as listener:
                listener.setblocking(False)
                await self._start("-address", f"127.0.0.1:{listener.getsockname()[1]}")
                near, _ = await asyncio.wait_for(self.loop.sock_accept(listener), PATIENCE_S)
            context = server_context(self._ours("server"))
            self.end = TlsEnd(near, self.poller, context)
        else:
            await self._start()
            assert self.process.stdout is not None
            port = int(await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S))
            near = socket.create_connection(("127.0.0.1", port))
            near.setblocking(False)
            context = client_context(self._ours("client"))
            self.end = TlsEnd(near, self.poller, context, server_hostname="localhost")
            self.end.begin()
        join(self.end, self.sink)
        await self.until(lambda: self.end.secured)

    def _ours(self, kind: str) -> TlsFiles:
        base = self.files.directory / kind
        return TlsFiles(f"{base}.crt", f"{base}.key", str(self.files.ca_cert))

    async def _start(self, *more: str) -> None:
        base = self.files.directory / self.role
        self.process = await asyncio.create_subprocess_exec(
            *(str(self.binary), "-role", self.role, "-act", self.act, "-size", str(SIZE)),
            *("-cert", f"{base}.crt", "-key", f"{base}.key", "-ca", str(self.files.ca_cert)),
            *(("-tls12",) if self.tls12 else ()),
            *more,
            stdout=asyncio.subprocess.PIPE,
        )

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.001)

    async def result(self) -> dict[str, Any]:
        """What Go received, and how that ended."""
        out, _ = await asyncio.wait_for(self.process.communicate(), PATIENCE_S)
        made: dict[str, Any] = json.loads(out)
        return made

    async def finish(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.communicate()
        self.end.abort(Ending.CANCELLED)
        self.poller.shut_down()


@pytest.fixture(params=ROLES)
def meet(
    request: pytest.FixtureRequest, halfclose: Path, files: pki.PkiFiles
) -> Callable[..., None]:
    def run(test: Callable[[Meeting], Awaitable[None]], act: str, *, tls12: bool = False) -> None:
        async def main() -> None:
            meeting = Meeting(halfclose, files, request.param, act, tls12)
            await meeting.begin()
            try:
                await test(meeting)
            finally:
                await meeting.finish()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    return run


Meet = Callable[..., None]


@pytest.mark.parametrize("tls12", [False, True])
def test_go_half_closes_and_the_reply_still_comes(meet: Meet, tls12: bool) -> None:
    async def test(meeting: Meeting) -> None:
        await meeting.until(lambda: meeting.sink.eofs)
        assert meeting.sink.received == SENT_BY_GO
        assert meeting.end.half_closed
        meeting.sink.feed(REPLY)
        meeting.sink.feed_eof()
        result = await meeting.result()
        assert result["error"] == ""
        assert result["digest"] == hashlib.sha256(REPLY).hexdigest()
        await meeting.until(lambda: meeting.end.ending)
        assert meeting.end.ending is Ending.CLEAN
        assert meeting.sink.eofs == 1

    meet(test, "ask", tls12=tls12)


@pytest.mark.parametrize("tls12", [False, True])
def test_we_half_close_and_the_reply_of_go_still_comes(meet: Meet, tls12: bool) -> None:
    async def test(meeting: Meeting) -> None:
        meeting.sink.feed(REPLY)
        meeting.sink.feed_eof()
        await meeting.until(lambda: meeting.end.ending)
        assert meeting.end.ending is Ending.CLEAN
        assert meeting.sink.received == SENT_BY_GO
        result = await meeting.result()
        assert result["error"] == ""
        assert result["digest"] == hashlib.sha256(REPLY).hexdigest()

    meet(test, "answer", tls12=tls12)


def test_tcp_cut_by_go_is_an_abort_here(meet: Meet) -> None:
    async def test(meeting: Meeting) -> None:
        await meeting.until(lambda: meeting.end.ending)
        assert meeting.end.ending is meeting.sink.aborted is Ending.RESET
        assert meeting.sink.eofs == 0
        assert meeting.sink.received == SENT_BY_GO
        assert (await meeting.result())["error"]

    meet(test, "cut")


def test_our_abort_is_an_error_at_go(meet: Meet) -> None:
    async def test(meeting: Meeting) -> None:
        # Go's handshake is done when its bytes are here; before that it would fail as one.
        await meeting.until(lambda: len(meeting.sink.received) == SIZE)
        meeting.sink.feed(b"half a message")
        meeting.end.abort(Ending.ADMIN)
        result = await meeting.result()
        assert "reset" in result["error"] or "EOF" in result["error"]

    meet(test, "read")
