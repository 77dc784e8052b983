"""The test bed: makes every kind of end with a user at its far side, and cleans up after."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from callers import HALF_CLOSE, REQUEST, Answer, CallUser, Dialed, Linker, PayloadUser
from users import DEADLINE_S, MemoryUser, SocketUser, TlsUser, User, until

from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.poller import Poller
from isthmus.net.raw import RawSocket
from isthmus.net.socket_end import SocketEnd
from isthmus.net.tls import TlsEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import BaseEnd, Early, End, Ending, join
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import NOBODY, Handler, Http2Stream
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.linked_end import LinkedEnd
from isthmus.tunnel.payload import PayloadCall, PayloadEnd, PayloadStream
from isthmus.tunnel.proxy_end import ProxyEnd
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.wire.http2 import Headers

KINDS = (
    "tcp", "unix", "tls-server", "tls-client", "mux", "memory",
    "proxy", "link",  # konnectivity: a client's call, a link
    "payload", "payload-call",  # KEP-1281: the server's side and the client's
)  # fmt: skip
#: What a kind cannot do, and why; ``able`` and ``pairs`` leave it out.
CANNOT = {
    ("proxy", "half-close"): "CLOSE_RSP ends both directions of a konnectivity client",
    ("link", "stop its writer"): "konnectivity has no window per connection, only a budget",
}
#: These have a window, which their peers may use whatever the sink says.
WINDOWED = ("mux", "proxy", "link", "payload", "payload-call")
PAIRS = [(a, b) for a in KINDS for b in KINDS]
SMALL_BUFFER = 16 * 1024


@dataclass(frozen=True)
class Certificates:
    """The two sides of mutual TLS."""

    server: ssl.SSLContext
    client: ssl.SSLContext

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        """Make a PKI in the directory and load it."""
        made = pki.init(directory / "pki", one_ca=True)
        ca = str(made.ca_cert)
        server = TlsFiles(str(made.server_cert), str(made.server_key), ca)
        client = TlsFiles(str(made.client_cert), str(made.client_key), ca)
        return cls(server_context(server), client_context(client))


def able(ability: str, kinds: Sequence[str] = KINDS) -> list[str]:
    """The kinds that can do this."""
    return [kind for kind in kinds if (kind, ability) not in CANNOT]


def pairs(a: str = "", b: str = "") -> list[tuple[str, str]]:
    """Every pair of kinds of which the first and the second can do what is asked of them."""
    return [(one, two) for one in able(a) for two in able(b)]


class Carrier(RawSocket):
    """The smallest thing that can carry a session over a socket."""

    __slots__ = ("session",)

    session: Session

    def readable(self) -> None:
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            return self.broken()
        if not data:
            return self.broken()
        self.session.receive(memoryview(data))
        self.poller.again(self.read_again)

    def drained(self) -> None:
        self.session.resume()

    def broken(self) -> None:
        self.close()
        self.session.lost(Ending.LINK_LOST)

    def send(self, data: bytes) -> bool:
        return self.closed or self.put(data)

    def wake(self) -> None:
        self.poller.flush_later(self.session.flush)

    def wake_in_time(self) -> None:
        self.wake()


class Http2Carrier(Carrier):
    """The same for an HTTP/2 connection."""

    __slots__ = ()

    session: Http2Connection  # type: ignore[assignment]  # fed and flushed like the other

    def broken(self) -> None:
        self.close()
        self.session.lost("connection lost")

    def wake(self) -> None:  # also from inside the making of the session, which greets
        self.poller.flush_later(self._flush_session)

    def _flush_session(self) -> None:
        self.session.flush()


@dataclass
class Side:
    """One end under test, who is behind it, and what it reported."""

    kind: str
    end: Any  # every end, with the fields of its own kind
    user: User
    done: list[Ending] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end.on_done = self._on_done

    def _on_done(self, end: End, ending: Ending) -> None:
        assert end is self.end
        self.done.append(ending)

    @property
    def kept_bytes(self) -> int:
        """What this end keeps in memory."""
        match self.end:
            case Stream() | ProxyEnd() | LinkedEnd() | PayloadStream():
                return self.end.backlog_bytes  # what it holds is kept by its sink
            case RawSocket():
                return self.end.out_bytes
            case _:
                return len(self.end.received)


class Bed:
    """Makes sides on one poller; leaving it checks that nothing is left behind."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.small = False
        self.users: list[User] = []
        self.ends: list[BaseEnd] = []
        self.carriers: list[Carrier] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.failures: list[str] = []

    async def __aenter__(self) -> Bed:
        self._handler = logging.Handler()
        self._handler.emit = self._note  # type: ignore[method-assign]  # the shortest handler
        logging.getLogger("isthmus.net").addHandler(self._handler)
        self.loop.set_exception_handler(lambda _, context: self.failures.append(str(context)))
        return self

    def _note(self, record: logging.LogRecord) -> None:
        self.failures.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for user in self.users:
            user.close()
        for end in self.ends:
            end.abort(Ending.CANCELLED)
        for carrier in self.carriers:
            carrier.broken()
        await until(lambda: self.all_closed)
        assert len(self.poller) == 0
        self.poller.shut_down()
        logging.getLogger("isthmus.net").removeHandler(self._handler)
        assert not self.failures

    @property
    def all_closed(self) -> bool:
        """Every descriptor of ends and carriers has been closed."""
        sockets = [*self.ends, *self.carriers]
        return all(x.sock.fileno() == -1 for x in sockets if isinstance(x, RawSocket))

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Run beside the test; ended with the bed."""
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    # Making sides.

    async def side(self, kind: str, early: Early | None = None) -> Side:
        """Make one end of this kind, connected and shaken hands, not joined."""
        user: User
        end: BaseEnd
        match kind:
            case "tcp":
                near, far = self.tcp_pair()
                end, user = SocketEnd(near, self.poller, early), SocketUser(far)
            case "unix":
                near, far = self.unix_pair()
                end, user = SocketEnd(near, self.poller, early), SocketUser(far)
            case "tls-server" | "tls-client":
                end, user = await self._tls(kind, early)
            case "mux":
                end, user = await self._stream(early)
            case "proxy":
                end, user = await self._call(early)
            case "link":
                end, user = await self._linked(early)
            case "payload":
                end, user = await self._payload(early)
            case "payload-call":
                end, user = await self._payload_call(early)
            case _:
                end = user = MemoryUser(early)
        self.ends.append(end)
        self.users.append(user)
        return Side(kind, end, user)

    async def pair(self, a: str, b: str) -> tuple[Side, Side]:
        """Make two sides and join their ends."""
        one, two = await self.side(a), await self.side(b)
        join(one.end, two.end)
        return one, two

    def tcp_pair(self) -> tuple[socket.socket, socket.socket]:
        """Connect two TCP sockets."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = socket.socket()
            self._shrink(listener)
            self._shrink(far)
            far.connect(listener.getsockname())
            near, _ = listener.accept()
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near, far

    def unix_pair(self) -> tuple[socket.socket, socket.socket]:
        """Connect two UNIX sockets."""
        near, far = socket.socketpair()
        for sock in (near, far):
            sock.setblocking(False)
            self._shrink(sock)
        return near, far

    def _shrink(self, sock: socket.socket) -> None:
        if self.small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)

    def tls_parts(self, kind: str, early: Early | None = None) -> tuple[TlsEnd, TlsUser]:
        """Make a TLS end and its user; neither has said anything yet."""
        near, far = self.tcp_pair()
        ours, theirs = self.certificates.server, self.certificates.client
        name: str | None = "localhost"
        if kind == "tls-client":
            ours, theirs = theirs, ours
        end = TlsEnd(
            near, self.poller, ours, early, server_hostname=name if kind == "tls-client" else None
        )
        return end, TlsUser(far, theirs, None if kind == "tls-client" else name)

    async def _tls(self, kind: str, early: Early | None) -> tuple[TlsEnd, TlsUser]:
        end, user = self.tls_parts(kind, early)
        if kind == "tls-client":
            end.begin()
        async with asyncio.timeout(DEADLINE_S):
            await user.shake_hands()
        await until(lambda: end.secured)
        return end, user

    async def _stream(self, early: Early | None) -> tuple[Stream, MemoryUser]:
        accepted: list[Stream] = []
        near, far = socket.socketpair()
        sessions = []
        # Without growth the window stays at 256 KiB and the bytes under way can be counted.
        limits = Limits(growth_pool_bytes=0) if self.small else Limits()
        for sock, client in ((near, True), (far, False)):
            sock.setblocking(False)
            carrier = Carrier(sock, self.poller)
            self.carriers.append(carrier)
            carrier.session = Session(
                carrier,
                client=client,
                clock=self.loop.time,
                on_stream=accepted.append,
                limits=limits,
            )
            sessions.append(carrier.session)
        stream = sessions[0].open(early)
        assert stream is not None
        await until(lambda: accepted)
        user = MemoryUser()
        join(accepted[0], user)
        self.ends += [accepted[0], user]
        return stream, user

    def _http2(self, on_request: Callable[[Http2Stream, Headers], Handler]) -> Http2Connection:
        """Connect two HTTP/2 connections; gives the client's."""
        sockets = socket.socketpair()
        connections = []
        for sock, client in zip(sockets, (True, False), strict=True):
            sock.setblocking(False)
            carrier = Http2Carrier(sock, self.poller)
            self.carriers.append(carrier)
            carrier.session = Http2Connection(
                carrier, client=client, clock=self.loop.time, on_request=on_request
            )
            connections.append(carrier.session)
        return connections[0]

    async def _call(self, early: Early | None) -> tuple[ProxyEnd, CallUser]:
        ends: list[ProxyEnd] = []

        def accept(stream: Http2Stream, headers: Headers) -> ProxyEnd:
            end = ProxyEnd(stream, self.loop.time)
            end.init_end(early)
            end.client = Dialed(end)
            ends.append(end)
            return end

        user = CallUser(self._http2(accept))
        await until(lambda: user.connect_id)
        ends[0]._settling = None  # what is held until then is tested with the end itself
        return ends[0], user

    async def _payload(self, early: Early | None) -> tuple[PayloadEnd, PayloadUser]:
        ends: list[PayloadEnd] = []

        def accept(stream: Http2Stream, headers: Headers) -> PayloadEnd:
            ends.append(PayloadEnd(stream, half_closes=True, early=early))
            ends[0].accept()
            return ends[0]

        user = PayloadUser(server=False)
        user.begin(self._http2(accept))
        await until(lambda: user.answered)
        return ends[0], user

    async def _payload_call(self, early: Early | None) -> tuple[PayloadCall, PayloadUser]:
        user, answer = PayloadUser(server=True), Answer()
        end = PayloadCall(answer, early=early)
        stream = self._http2(user.accept).open(NOBODY)
        assert stream is not None
        end.call(stream, (*REQUEST, HALF_CLOSE))
        await until(lambda: answer.answered)
        return end, user

    async def _linked(self, early: Early | None) -> tuple[LinkedEnd, MemoryUser]:
        server, agent = Linker(agent=False), Linker(agent=True)
        agent.begin(self._http2(server.accept))
        await until(lambda: server.link)
        assert server.link is not None
        answers: list[str | None] = []
        end = server.link.dial("target:1", 1, answers.append, early)
        await until(lambda: answers and agent.user)
        assert answers == [None] and agent.user is not None
        self.ends += [agent.user, agent.user.peer]  # type: ignore[list-item]  # a LinkedEnd
        return end, agent.user


def run(certificates: Certificates, test: Callable[[Bed], Awaitable[None]]) -> None:
    """Run one test on uvloop, in a bed of its own."""

    async def main() -> None:
        async with asyncio.timeout(3 * DEADLINE_S), Bed(certificates) as bed:
            await test(bed)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def sees_reset(side: Side) -> None:
    """Check that the user of this side sees its connection reset, as its kind can say it."""
    try:
        while await asyncio.wait_for(side.user.recv(), DEADLINE_S):
            pass
    except ssl.SSLError as exc:
        assert side.kind.startswith("tls") and not isinstance(exc, ssl.SSLZeroReturnError)
    except ConnectionResetError:
        pass
    else:
        # A UNIX socket cannot be told to reset: it closes.
        assert side.kind == "unix", f"a clean end of file at {side.kind}"


async def is_quiet(count: Callable[[], int]) -> None:
    """Wait until a count has stopped growing for a while.

    Stopping to look too early makes a test weaker, never wrong: it only bounds what was counted.
    """
    last, same = -1, 0
    while same < 20:
        now = count()
        last, same = now, same + 1 if now == last else 0
        await asyncio.sleep(0.002)
