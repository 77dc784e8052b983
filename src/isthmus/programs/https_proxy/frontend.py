"""The HTTP proxy frontend: CONNECT, and plain requests to the host in their URL.

CONNECT opens a tunnel as in every frontend. Plain requests follow one another on a client's
connection, each to its own destination; an Exchange is one of them.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Protocol

import h11

from isthmus.dial.frontends.statuses import explain, status_for
from isthmus.errors import DialFailure
from isthmus.net.charging import charge_tunnel
from isthmus.net.connect import Dialing, Failed, Reached
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.sidecar.frontend import SidecarClient, SidecarOwner
from isthmus.programs.sidecar.metrics import Unserved
from isthmus.tunnel.end import BaseEnd, Early, Ending, join
from isthmus.values import HostPort
from isthmus.wire.http_connect import MAX_HEAD_BYTES, BadRequest, HeadReader, reply
from isthmus.wire.http_forward import (
    PlainRequest,
    end_to_end,
    has_both_lengths,
    password_in,
    read_request,
    trailers,
)

# The text of goproxy, which HyperShift's sidecar sends.
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_CONNECT = b"CONNECT "
_QUIET_S = 60.0
_log = logging.getLogger("isthmus.http_proxy")
_ASKS = [("Proxy-Authenticate", 'Basic realm="isthmus"')]
_SWITCHING = 101
_PROXY_AUTHENTICATION = 407


class HttpOwner(SidecarOwner, Protocol):
    """What HTTP clients need of the sidecar."""

    draining: bool

    def keep(self, client: SidecarClient) -> bool:
        """Keep a client for another request; False if the sidecar is draining."""

    def proxy_for(self, target: HostPort) -> ProxyAddress | None:
        """The proxy for plain requests to a target."""

    def dial_plain(
        self, target: HostPort, proxy: ProxyAddress | None, *, reached: Reached, failed: Failed
    ) -> Dialing:
        """Open a connection for plain requests: to the proxy, or to the target."""

    def answered(self, status: int) -> None:
        """Count the answer to a plain request."""

    def carried(self, *, to_target: int = 0, to_client: int = 0) -> None:
        """Count bytes of plain requests and of their answers."""

    def reused(self) -> None:
        """Count a request sent on the connection of the previous one."""

    def sent_again(self) -> None:
        """Count a request sent on a new connection because the reused one had closed."""


class HttpClient(SidecarClient):
    """One client of the HTTP proxy: a tunnel, or a sequence of requests."""

    __slots__ = ("_exchange", "_head", "_http", "_kept", "_served", "_unread")

    frontend = "http-proxy"
    owner: HttpOwner

    def __init__(self, owner: HttpOwner, sock: socket.socket) -> None:
        self._http = _connection()
        self._head: HeadReader | None = None  # of a CONNECT that arrives in pieces
        self._exchange: Exchange | None = None
        self._kept: PlainUpstream | None = None
        self._served = False  # it had an answer, and may send another request
        self._unread = 0  # what h11 holds of an incomplete head, or after a complete one
        super().__init__(owner, sock)

    @property
    def leaves(self) -> bool:
        """Whether this answer is the last on its connection."""
        return self.owner.draining or self.eof

    # As the peer of its end.

    def write(self, data: bytes) -> bool:
        """Pass a body on, or keep bytes that come early."""
        exchange = self._exchange
        if exchange is not None and exchange.takes_body:
            return exchange.take(data)
        self.buffer += data
        if self.end is not None and self._dial is None and exchange is None:
            self.heard()
        self.charge(self._unread)
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        """Take a half-close: after a whole request it is one, before that the client is gone."""
        Early.write_eof(self)
        if self.end is None:
            return
        if self._exchange is not None:
            # Undecided while dialing: the rest of the body may be in the kept bytes.
            if self._dial is None:
                self._check_whole(self._exchange)
        elif self._dial is None:
            if self._served and not (self.buffer or self._unread):
                self.no_more()
            else:
                self.unserved(Unserved.LEFT)

    def _check_whole(self, exchange: Exchange) -> None:
        """End a client that half-closed in the middle of its request."""
        if self.eof and self._exchange is exchange and not exchange.is_whole:
            self.unserved(Unserved.LEFT)

    def resume_reading(self) -> None:
        """The client can take more of its answer."""
        if self._exchange is not None and self._exchange.upstream is not None:
            self._exchange.upstream.end.resume_reading()

    def read_on(self) -> None:
        """The destination can take more of the body."""
        if self.end is not None and len(self.buffer) < self.limit:
            self.end.resume_reading()

    # Reading.

    def heard(self) -> None:
        """Parse the head of the next request."""
        if self._unread:  # h11 holds the beginning of a head
            self._read(self._take_plain)
            return
        if self._head is not None:
            self._read(self._take_connect)
            return
        self._skip_blank_lines()
        if self.buffer == b"\r":
            return
        start = bytes(self.buffer[: len(_CONNECT)])
        if _CONNECT.startswith(start) and len(start) < len(_CONNECT):
            return
        # Bytes that are not HTTP too: h11's error is better.
        connects = start == _CONNECT or not start[:1].isalpha()
        self._read(self._take_connect if connects else self._take_plain)

    def _read(self, take: Callable[[], None]) -> None:
        try:
            take()
        except BadRequest as exc:
            self.unserved(Unserved.BAD_REQUEST, exc.reason, exc.to_bytes())
        except h11.RemoteProtocolError as exc:
            self.broke_rules(exc)

    def _skip_blank_lines(self) -> None:
        # RFC 9112 §2.2: empty lines before a request are ignored.
        while self.buffer.startswith(b"\r\n"):
            del self.buffer[:2]

    def _take_connect(self) -> None:
        head = self._head or HeadReader()
        request = head.take(self.buffer)
        self._head = head if request is None else None
        if request is not None and self._may(list(request.headers)):
            self._drop_kept()
            self.connect(request.target)

    def _take_plain(self) -> None:
        self._http.receive_data(bytes(self.buffer))
        self.buffer.clear()
        event = self._http.next_event()
        self._unread = len(self._http.trailing_data[0])
        if not isinstance(event, h11.Request) or not self._may(list(event.headers)):
            return
        request = read_request(event)
        self.target = request.target
        self.owner.asked(self)
        exchange = Exchange(self, self._http, request, self.owner.proxy_for(request.target))
        self._exchange = exchange
        kept, self._kept = self._kept, None
        if kept is not None:
            if kept.is_open and kept.key == exchange.key and request.may_be_repeated:
                self.owner.reused()
                self._begin(exchange, kept, fresh=False)
                return
            self.part_with(kept.end)
        self._dial_for(exchange)

    def _may(self, headers: list[tuple[bytes, bytes]]) -> bool:
        wanted = self.owner.credentials()
        given = password_in(headers) if wanted is not None else None
        if wanted is None or (given is not None and wanted.match(*given)):
            return True
        answer = reply(407, "this proxy requires a user name and a password", headers=_ASKS)
        self.unserved(Unserved.WRONG_PASSWORD, answer=answer)
        return False

    def broke_rules(self, error: h11.RemoteProtocolError) -> None:
        """Refuse a client whose request is not HTTP."""
        status = error.error_status_hint if error.error_status_hint in (400, 431, 501) else 400
        bad = BadRequest(status, f"malformed request: {str(error)[:200]}")
        begun = self._exchange is not None and self._exchange.answered
        self.unserved(Unserved.BAD_REQUEST, bad.reason, b"" if begun else bad.to_bytes())

    # Plain requests.

    def _dial_for(self, exchange: Exchange) -> None:
        dial = self.owner.dial_plain(
            exchange.request.target,
            exchange.proxy,
            reached=self._there,
            failed=self.dial_failed,
        )
        if self._exchange is exchange and exchange.upstream is None:  # otherwise it has ended
            self._dial = dial

    def _there(self, far: BaseEnd) -> None:
        self._dial = None
        exchange = self._exchange
        if self.end is None or exchange is None:
            far.abort(Ending.CANCELLED)
            return
        self._begin(exchange, PlainUpstream(far, exchange.key), fresh=True)

    def _begin(self, exchange: Exchange, upstream: PlainUpstream, *, fresh: bool) -> None:
        if self.payer is not None and self.end is not None:
            charge_tunnel(self.end, upstream.end, self.payer)
        more = exchange.begin(upstream, fresh=fresh)
        self._unread = 0
        if exchange.takes_body and self.buffer:
            body = bytes(self.buffer)
            self.buffer.clear()
            more = exchange.take(body)
        self.charge()
        self._check_whole(exchange)
        if more:
            self.read_on()

    def answered(self, status: int) -> None:
        """The destination has answered."""
        self.owner.answered(status)

    def exchanged(self, http: h11.Connection, kept: PlainUpstream | None) -> None:
        """The answer is complete: wait for the next request, or close."""
        self._exchange = None
        self._kept = kept
        whole = http.our_state is h11.DONE and http.their_state is h11.DONE
        if self.eof or not whole or not self.owner.keep(self):
            self.no_more()
            return
        self._served = True
        self.buffer[:0] = http.trailing_data[0]
        self._http = _connection()
        self._unread = 0
        if self.payer is not None and self.end is not None:
            self.end.charge_to(self.payer)
        if self.buffer:
            self.heard()
        self.charge(self._unread)
        self.read_on()

    def unanswered(self, exchange: Exchange, why: str, *, may_repeat: bool) -> None:
        """The destination closed without an answer; a reused connection may simply have expired."""
        if self._exchange is not exchange:
            return
        if may_repeat and exchange.request.may_be_repeated and exchange.reused:
            self.owner.sent_again()
            exchange.reused = False
            self._dial_for(exchange)
        else:
            self.complain(why)
            answer = reply(502, f"{self.target} did not answer: {why}")
            self.unserved(Unserved.NO_DESTINATION, why, answer)

    def complain(self, why: str) -> None:
        """Log, rate-limited, that a destination was reached and has not answered."""
        assert self.target is not None
        self.owner.once.log(
            ("answer", self.target.host), _QUIET_S, _log, logging.WARNING,
            "plain request without a complete answer", target=str(self.target), reason=why,
        )  # fmt: skip

    def switched(self, far: BaseEnd, answer: bytes, early: bytes) -> None:
        """The destination switches protocols: from here on this is a tunnel."""
        self._exchange = None
        end, self.end = self.end, None
        assert end is not None
        self.buffer[:0] = early
        end.write(answer)
        self.owner.carried(to_client=len(answer))
        self.owner.joined(self, end, far)

    def part_with(self, end: BaseEnd) -> None:
        """Close the connection to a destination that is no longer needed."""
        if end.ending is None:
            self.owner.say_goodbye(end)

    # Ending.

    def say_established(self, end: SocketEnd, far: BaseEnd) -> None:
        """Answer 200 without headers."""
        end.write(ESTABLISHED)

    def say_failed(self, failure: DialFailure, detail: str) -> bytes:
        """The status and the error text."""
        assert self.target is not None
        return reply(status_for(failure), explain(failure, self.target, detail))

    def too_late(self) -> bytes:
        """The status for it."""
        return reply(408, "the request head did not arrive in time")

    def dial_failed(self, failure: DialFailure, detail: str) -> None:
        """The target of a plain request cannot be reached."""
        self._failed(failure, detail)

    def cut(self, why: str) -> None:
        """An answer was cut off: reset the client too, so that it notices."""
        self.complain(why)
        self.unserved(Unserved.NO_DESTINATION, why)

    def no_more(self) -> None:
        """End a client that has received its answers."""
        self._drop_kept()
        super().no_more()

    def unserved(self, why: Unserved, detail: str = "", answer: bytes = b"") -> None:
        """End a client and its pending dial or exchange."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.drop()
        self._drop_kept()
        super().unserved(why, detail, answer)

    def _drop_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None and kept.end.ending is None:
            self.part_with(kept.end)


def _connection() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)


class PlainUpstream(Early):
    """A connection to a destination or a proxy, and the exchange on it; the peer of its end."""

    __slots__ = ("end", "exchange", "http", "key")

    def __init__(self, end: BaseEnd, key: object) -> None:
        """``key`` is the same for requests that may share a connection."""
        super().__init__()
        self.end = end
        self.key = key
        self.exchange: Exchange | None = None
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent on it."""
        return self.end.ending is None and not self.eof and self.aborted is None

    def write(self, data: bytes) -> bool:
        """Pass an answer on. Between two requests a destination must not send anything."""
        if self.exchange is not None:
            return self.exchange.received(data)
        self.drop()
        return True

    def write_eof(self) -> None:
        """The destination has closed its side."""
        super().write_eof()
        if self.exchange is not None:
            self.exchange.received(b"")
        else:
            self.end.write_eof()

    def abort(self, reason: Ending) -> None:
        """The connection broke."""
        super().abort(reason)
        if self.exchange is not None:
            self.exchange.broke("the connection broke")

    def resume_reading(self) -> None:
        """The destination can take more."""
        if self.exchange is not None:
            self.exchange.client.read_on()

    def drop(self) -> None:
        """Close it."""
        self.exchange = None
        if self.end.ending is None:
            self.end.abort(Ending.CANCELLED)


class Exchange:
    """A request whose head was read, until its answer is complete."""

    __slots__ = (
        "_heard",
        "_http",
        "answered",
        "client",
        "proxy",
        "request",
        "request_done",
        "reused",
        "upstream",
    )

    def __init__(
        self,
        client: HttpClient,
        http: h11.Connection,
        request: PlainRequest,
        proxy: ProxyAddress | None,
    ) -> None:
        """``http`` is the client's connection, from which the request's head was read."""
        self.client = client
        self._http = http
        self.request = request
        self.proxy = proxy
        self.upstream: PlainUpstream | None = None
        self.request_done = False
        self.reused = False
        self._heard = False
        #: Whether the head of the answer was sent to the client.
        self.answered = False

    @property
    def key(self) -> object:
        """What the connection leads to."""
        return self.proxy if self.proxy is not None else self.request.target

    @property
    def takes_body(self) -> bool:
        """Whether what the client sends now belongs to this request."""
        return self.upstream is not None and not self.request_done

    @property
    def is_whole(self) -> bool:
        """Whether the request has arrived completely."""
        return self.request_done or not self.request.has_body

    # From the client.

    def begin(self, upstream: PlainUpstream, *, fresh: bool) -> bool:
        """Send the request on a connection; False if the destination is full."""
        self.upstream = upstream
        upstream.exchange = self
        self.reused = not fresh
        if not fresh:
            upstream.http.start_next_cycle()
        proxy = self.proxy
        head = self.request.to_send(
            proxy=proxy is not None, authorization=proxy.authorization if proxy else None
        )
        sent = upstream.http.send(head)
        assert sent is not None
        if not self.request.has_body:
            sent += upstream.http.send(h11.EndOfMessage()) or b""
            if self._http.their_state is h11.SEND_BODY:
                self._http.next_event()  # the end of a request without a body
            self.request_done = True
        self.client.owner.carried(to_target=len(sent))
        upstream.end.write(sent)
        if fresh:
            join(upstream.end, upstream)
        else:
            upstream.end.resume_reading()
        return self.take(b"") if self.takes_body else True

    def take(self, data: bytes) -> bool:
        """Pass bytes of the body on; False if the destination is full."""
        upstream = self.upstream
        assert upstream is not None
        parts: list[bytes] = []
        try:
            if data:
                self._http.receive_data(data)
            while not self.request_done:
                event = self._http.next_event()
                if isinstance(event, h11.Data):
                    parts.append(upstream.http.send(h11.Data(data=event.data)) or b"")
                elif isinstance(event, h11.EndOfMessage):
                    parts.append(upstream.http.send(_end(event, self.request.chunked)) or b"")
                    self.request_done = True
                else:
                    break
        except h11.RemoteProtocolError as exc:
            self.client.broke_rules(exc)
            return True
        except h11.LocalProtocolError as exc:
            self.broke(str(exc))
            return True
        body = b"".join(parts)
        if not body:
            return True
        self.client.owner.carried(to_target=len(body))
        return upstream.end.write(body)

    # From the destination.

    def received(self, data: bytes) -> bool:
        """Pass an answer on; empty bytes are its end. False if the client is full."""
        upstream, end = self.upstream, self.client.end
        if upstream is None or end is None:
            return True
        self._heard = self._heard or bool(data)
        parts: list[bytes] = []
        fault = ""
        try:
            upstream.http.receive_data(data)
            going = True
            while going:
                going = self._pass_on(upstream.http.next_event(), parts)
        except (h11.RemoteProtocolError, h11.LocalProtocolError) as exc:
            fault = str(exc)
        if self.upstream is None:  # it was refused, or became a tunnel
            return True
        answer = b"".join(parts)
        self.client.owner.carried(to_client=len(answer))
        more = end.write(answer) if answer else True
        if fault or (not data and upstream.http.their_state is not h11.DONE and not self._over):
            self.broke(fault or "closed the connection before it answered")
        elif self._over:
            self._finish(upstream)
        return more

    @property
    def _over(self) -> bool:
        return self.answered and self._http.our_state not in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def _pass_on(self, event: object, parts: list[bytes]) -> bool:
        """Pass one event on; True if there may be another."""
        http = self._http
        sent: bytes | None = None
        match event:
            case h11.InformationalResponse():
                return self._inform(event, parts)
            case h11.Response():
                if self.proxy is not None and event.status_code == _PROXY_AUTHENTICATION:
                    self.refused(f"proxy {self.proxy}: answered 407: --http-proxy needs a password")
                    return False
                if has_both_lengths(event.headers):
                    # RFC 9112 §6.3: it might be an attempt at response splitting.
                    raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
                self.answered = True
                self.client.answered(event.status_code)
                headers = end_to_end(event.headers)
                # After an incomplete request, the beginning of the next one is unknown.
                if self.client.leaves or not self.request_done:
                    headers.append((b"Connection", b"close"))
                sent = http.send(
                    h11.Response(
                        status_code=event.status_code, headers=headers, reason=event.reason
                    )
                )
            case h11.Data():
                sent = http.send(h11.Data(data=event.data))
            case h11.EndOfMessage():
                sent = http.send(_end(event, http.their_http_version != b"1.0"))
                parts.append(sent or b"")
                return False
            case _:
                return False
        parts.append(sent or b"")
        return True

    def _inform(self, event: h11.InformationalResponse, parts: list[bytes]) -> bool:
        headers = end_to_end(event.headers)
        if event.status_code == _SWITCHING:
            upgrade = [value for name, value in event.headers if name == b"upgrade"]
            headers += [(b"Connection", b"Upgrade"), *((b"Upgrade", each) for each in upgrade)]
        elif self._http.their_http_version == b"1.0":
            return True  # RFC 9110 §15.2: an HTTP/1.0 client knows none of them
        sent = self._http.send(
            h11.InformationalResponse(
                status_code=event.status_code, headers=headers, reason=event.reason
            )
        )
        parts.append(sent or b"")
        if event.status_code != _SWITCHING:
            return True
        upstream, self.upstream = self.upstream, None
        assert upstream is not None
        upstream.exchange = None
        self.client.answered(event.status_code)
        parts.append(upstream.http.trailing_data[0])
        self.client.switched(upstream.end, b"".join(parts), self._http.trailing_data[0])
        return False

    # The end of it.

    def _finish(self, upstream: PlainUpstream) -> None:
        self.upstream = upstream.exchange = None
        http = upstream.http
        reusable = http.our_state is h11.DONE and http.their_state is h11.DONE
        self.client.exchanged(self._http, upstream if reusable and upstream.is_open else None)
        if not reusable:
            self.client.part_with(upstream.end)

    def broke(self, why: str) -> None:
        """The connection to the destination cannot be reused."""
        upstream, self.upstream = self.upstream, None
        if upstream is None:
            return
        upstream.drop()
        if self.answered:
            self.client.cut(why)
        else:
            self.client.unanswered(self, why, may_repeat=not self._heard)

    def refused(self, why: str) -> None:
        """The answer must not reach the client."""
        self.drop()
        self.client.complain(why)
        self.client.dial_failed(DialFailure.DENIED, why)

    def drop(self) -> None:
        """The client is gone."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.drop()


def _end(event: h11.EndOfMessage, takes_trailers: bool) -> h11.EndOfMessage:
    return h11.EndOfMessage(headers=trailers(event.headers) if takes_trailers else [])
