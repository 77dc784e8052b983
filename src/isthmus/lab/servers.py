"""The small servers of a lab, one process per host: http, https, echo, source, sink, who.

``python -m isthmus.lab.servers --name HOST http=8080 echo=7 ...`` serves until SIGTERM. Servers are
ends like all others (tunnel/end.py): each client's socket is joined to one. ``who`` reports the
client's address, by TCP and by UDP on the same port.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import h11
from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.lab.python import module
from isthmus.lab.topology import LabHost, Serve, Serving
from isthmus.net.deadlines import Deadlines
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.net.tls import TlsEnd
from isthmus.tunnel.end import BaseEnd, Early, End, Ending, join

MAX_CONNECTIONS = 2000
#: A connection that moves no byte for this long is reset; this is also the interval of checks.
IDLE_S = 600.0
_CHUNK = bytes(range(256)) * 256
#: The amount that a source sends in one turn, however fast the client reads, for fairness.
_CHUNKS_PER_TURN = 16

_MOST_BYTES = 2048
#: Datagrams answered in one turn, for fairness to the other servers.
_PER_TURN = 64
_PORT_TAKEN = "already in use"


def command(host: LabHost, *, cert: str, key: str) -> list[str]:
    """The command for the servers of a host; empty if it has none."""
    if not host.serves:
        return []
    argv = module("isthmus.lab.servers", "--name", host.name)
    if any(serve.kind is Serving.HTTPS for serve in host.serves):
        argv += ["--cert", cert, "--key", key]
    return argv + [f"{serve.kind.value}={serve.port}" for serve in host.serves]


class PageAnswer(NamedTuple):
    """The answer to a request."""

    status: int
    content_type: str
    body: bytes


class HttpEnd(Early):
    """Answers HTTP/1 requests with the result of ``page(method, path)``."""

    __slots__ = ("_http", "_over", "_page", "_request")

    def __init__(self, page: Callable[[str, str], PageAnswer]) -> None:
        super().__init__()
        self._http = h11.Connection(h11.SERVER)
        self._page = page
        self._request = ("", "")
        self._over = False

    @override
    def write(self, data: bytes) -> bool:
        self.bytes_written += len(data)
        return self._take(data)

    @override
    def write_eof(self) -> None:
        self._take(b"")

    @override
    def resume_reading(self) -> None:
        """The client has read its answers: handle its next request."""
        self.peer.resume_reading()

    def _take(self, data: bytes) -> bool:
        more = True
        try:
            if not self._over:
                self._http.receive_data(data)
            while not self._over:
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    break
                more = self._happened(event)
        except h11.RemoteProtocolError as exc:
            self._refuse(exc)
        return more

    def _happened(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> bool:
        match event:
            case h11.Request():
                self._request = event.method.decode(), event.target.decode()
                if self._http.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    return self.peer.write(self._http.send(go_on) or b"")
            case h11.EndOfMessage():
                more = self._answer(self._page(*self._request))
                if self._http.our_state is h11.DONE:
                    self._http.start_next_cycle()
                else:
                    self._end()
                return more
            case h11.ConnectionClosed():
                self._end()
            case _:  # a part of a body, which is ignored
                pass
        return True

    def _answer(self, page: PageAnswer) -> bool:
        size = str(len(page.body))
        head = h11.Response(
            status_code=page.status,
            reason=HTTPStatus(page.status).phrase,
            headers=[("Content-Type", page.content_type), ("Content-Length", size)],
        )
        sent = [self._http.send(head)]
        if self._request[0] != "HEAD":
            sent.append(self._http.send(h11.Data(data=page.body)))
        sent.append(self._http.send(h11.EndOfMessage()))
        return self.peer.write(b"".join(part for part in sent if part))

    def _refuse(self, why: h11.RemoteProtocolError) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._request = ("", "")
            status = why.error_status_hint
            self._answer(PageAnswer(status, "text/plain; charset=utf-8", f"{why}\n".encode()))
        self._end()

    def _end(self) -> None:
        self._over = True
        self.peer.write_eof()


class SourceEnd(Early):
    """Sends as fast as the client reads, until the client half-closes."""

    __slots__ = ("_over", "_poller")

    def __init__(self, poller: Poller) -> None:
        super().__init__()
        self._poller = poller
        self._over = False

    @override
    def start(self) -> None:
        self.resume_reading()

    @override
    def write(self, data: bytes) -> bool:
        return True  # the client's data is ignored

    @override
    def write_eof(self) -> None:
        self._over = True
        self.peer.write_eof()

    @override
    def abort(self, reason: Ending) -> None:
        self._over = True

    @override
    def resume_reading(self) -> None:
        """Send as much as fits; the rest when there is room, or in the next turn."""
        for _ in range(_CHUNKS_PER_TURN):
            if self._over or not self.peer.write(_CHUNK):
                return
        self._poller.again(self.resume_reading)


class SinkEnd(Early):
    """Reads everything, and sends the number of bytes at the end."""

    __slots__ = ()

    @override
    def write(self, data: bytes) -> bool:
        self.bytes_written += len(data)
        return True

    @override
    def write_eof(self) -> None:
        self.peer.write(f"{self.bytes_written}\n".encode())
        self.peer.write_eof()


class WhoEnd(Early):
    """Sends one line, and half-closes."""

    __slots__ = ("_line",)

    def __init__(self, line: bytes) -> None:
        super().__init__()
        self._line = line

    @override
    def start(self) -> None:
        self.peer.write(self._line)
        self.peer.write_eof()

    @override
    def write(self, data: bytes) -> bool:
        return True  # the client's data is ignored


class WhoSocket:
    """Answers every datagram with ``answer`` of its sender, ADDRESS:PORT."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, port: int, answer: Callable[[str], bytes]
    ) -> None:
        """Bind the port, and start serving.

        Raises:
            ConfigError: the port cannot be bound.
        """
        self._loop = loop
        self._answer = answer
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]
        loop.add_reader(self._socket.fileno(), self._read)

    def stop(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        # An error belongs to an earlier answer that reached no socket.
        with contextlib.suppress(OSError):
            for _ in range(_PER_TURN):
                _, sender = self._socket.recvfrom(_MOST_BYTES)
                seen = f"{sender[0].removeprefix('::ffff:')}:{sender[1]}"
                self._socket.sendto(self._answer(seen), sender)


def _bound(port: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        if dual:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::" if dual else "0.0.0.0", port))
    except OSError as exc:
        sock.close()
        why = _PORT_TAKEN if exc.errno == errno.EADDRINUSE else exc.strerror or str(exc)
        raise ConfigError(f"who: cannot listen on UDP port {port}: {why}") from exc
    return sock


@dataclass(slots=True, eq=False)
class _Open:
    a: BaseEnd
    b: End
    done: Callable[[], None]
    left: int
    moved_bytes: int = -1


class JoinedEnds:
    """The joined pairs: a limited number, and each is reset after a time without traffic."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        at_most: int = MAX_CONNECTIONS,
        idle_s: float = IDLE_S,
    ) -> None:
        self._at_most = at_most
        self._open: set[_Open] = set()
        self._idle: Deadlines[_Open] = Deadlines(loop, idle_s, self._look)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self._at_most

    def join(self, a: BaseEnd, b: End, done: Callable[[], None] = lambda: None) -> None:
        """Join two ends and keep them until they are done; ``done`` is called then."""
        real = {end for end in (a, b) if isinstance(end, BaseEnd)}
        one = _Open(a, b, done, len(real))
        self._open.add(one)
        self._idle.add(one)
        for end in real:
            end.on_done = partial(self._end_done, one)
        join(a, b)

    def abort_all(self) -> None:
        """Reset everything, and stop watching."""
        self._idle.take_all()
        for one in list(self._open):
            one.a.abort(Ending.DRAINED)
            one.b.abort(Ending.DRAINED)

    def _end_done(self, one: _Open, end: End, ending: Ending) -> None:
        one.left -= 1
        if not one.left:
            self._open.discard(one)
            self._idle.remove(one)
            one.done()

    def _look(self, one: _Open) -> None:
        moved = one.a.bytes_written + one.b.bytes_written
        if moved == one.moved_bytes:
            one.a.abort(Ending.TIMED_OUT)
            one.b.abort(Ending.TIMED_OUT)
        else:
            one.moved_bytes = moved
            self._idle.add(one)


class LabServers:
    """The servers of one host, on all its addresses."""

    def __init__(self, name: str, *, context: ssl.SSLContext | None = None) -> None:
        """``context`` is needed for https."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._name = name
        self._context = context
        self._poller = Poller(loop)
        self._listeners: list[Listener] = []
        self._datagrams: list[WhoSocket] = []
        self.connections = JoinedEnds(loop)

    def serve(self, serve: Serve) -> int:
        """Bind a port, 0 for any, and start serving; returns the port.

        Raises:
            ConfigError: the port cannot be bound.
        """
        accept = partial(self._accept, serve.kind)
        for sock in bind_tcp("", serve.port, flag=serve.kind.value):
            self._listeners.append(Listener(self._loop, self._poller, sock, accept))
        port = self._listeners[-1].port
        if serve.kind is Serving.WHO:
            self._datagrams.append(WhoSocket(self._loop, port, partial(who, self._name)))
        return port

    async def stop(self) -> None:
        for listener in self._listeners:
            listener.stop()
        for datagrams in self._datagrams:
            datagrams.stop()
        self.connections.abort_all()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes sockets
        self._poller.shut_down()

    def _accept(self, kind: Serving, sock: socket.socket) -> None:
        if self.connections.full:
            SocketEnd(sock, self._poller).abort(Ending.STALLED)
            return
        try:
            peer, here = written(sock.getpeername()), written(sock.getsockname())
        except OSError:  # reset before accept
            sock.close()
            return
        if kind is Serving.HTTPS:
            assert self._context is not None
            client: BaseEnd = TlsEnd(sock, self._poller, self._context)
        else:
            client = SocketEnd(sock, self._poller)
        self.connections.join(client, self._server_of(kind, client, peer, here))

    def _server_of(self, kind: Serving, client: BaseEnd, peer: str, here: str) -> End:
        match kind:
            case Serving.HTTP | Serving.HTTPS:
                return HttpEnd(partial(self._page, peer, here))
            case Serving.ECHO:
                return client  # an end that is its own peer is an echo, including half-close
            case Serving.SOURCE:
                return SourceEnd(self._poller)
            case Serving.SINK:
                return SinkEnd()
            case Serving.WHO:
                return WhoEnd(who(self._name, peer))

    def _page(self, peer: str, here: str, method: str, path: str) -> PageAnswer:
        if method == "CONNECT":
            return PageAnswer(405, "text/plain; charset=utf-8", b"not a proxy\n")
        text = f"from {self._name}\nasked for: {path}\nby: {peer}\nat: {here}\n"
        return PageAnswer(200, "text/plain; charset=utf-8", text.encode())


def written(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """A socket's address as ADDRESS:PORT; IPv4 addresses of a dual-stack listener as IPv4."""
    host = plain(address[0])
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


def who(name: str, peer: str) -> bytes:
    """The line that a host of this name sends to a client at ADDRESS:PORT."""
    return f"{name} saw {peer.rpartition(':')[0].strip('[]')}\n".encode()


def plain(address: str) -> str:
    """Write an IPv4-mapped address of a dual-stack socket as IPv4."""
    return address.removeprefix("::ffff:") if "." in address else address


async def until_told(ready: str) -> None:
    """Print a program's ready line, and wait until SIGTERM or SIGINT."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    sys.stdout.write(f"{ready}\n")
    sys.stdout.flush()
    await told.wait()


async def _run(name: str, serves: Sequence[Serve], context: ssl.SSLContext | None) -> None:
    servers = LabServers(name, context=context)
    try:
        for serve in serves:
            servers.serve(serve)
        await until_told("servers: ready")
    finally:
        await servers.stop()


def _serve_of(text: str) -> Serve:
    kind, _, port = text.partition("=")
    with contextlib.suppress(ValueError):
        if 0 < int(port) < 65536:
            return Serve(kind=Serving(kind), port=int(port))
    kinds = ", ".join(one.value for one in Serving)
    raise argparse.ArgumentTypeError(f"{text!r} is not KIND=PORT, with a KIND of {kinds}")


def _context_of(cert: str, key: str) -> ssl.SSLContext:
    # Imported here because only https needs it and it is slow.
    from isthmus.net.contexts import TlsFiles, server_context

    if not cert or not key:
        raise ConfigError("https needs --cert and --key")
    return server_context(TlsFiles(cert, key, "", ("--cert", "--key", "")))


def main(args: Sequence[str] | None = None) -> int:
    """Serve until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m isthmus.lab.servers", description=__doc__)
    parser.add_argument("--name", required=True, help="The name of this host in its pages")
    parser.add_argument("--cert", default="", help="The certificate of https")
    parser.add_argument("--key", default="", help="Its key")
    parser.add_argument("serves", nargs="+", type=_serve_of, metavar="KIND=PORT", help="What where")
    told = parser.parse_args(args)
    try:
        is_tls = any(serve.kind is Serving.HTTPS for serve in told.serves)
        context = _context_of(told.cert, told.key) if is_tls else None
        asyncio.run(_run(told.name, told.serves, context))
    except ConfigError as exc:
        sys.stderr.write(f"servers: {exc}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
