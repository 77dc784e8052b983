"""One plain HTTP request and its answer, between a client and a destination.

Heads are rewritten, bodies are passed on as they come: what one side does not take stops the other.
A connection to a destination may carry another request of the same client after this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11

from isthmus.errors import DialFailure
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.tunnel.end import BaseEnd, Early, Ending, join
from isthmus.wire.http_connect import MAX_HEAD_BYTES
from isthmus.wire.http_forward import PlainRequest, end_to_end, has_both_lengths, trailers

if TYPE_CHECKING:
    from isthmus.programs.https_proxy.frontend import HttpClient

_SWITCHING = 101
_PROXY_AUTHENTICATION = 407


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
        """Another request can be sent on it."""
        return self.end.ending is None and not self.eof and self.aborted is None

    def write(self, data: bytes) -> bool:
        """Pass an answer on. Between two requests there is nothing to be said."""
        if self.exchange is not None:
            return self.exchange.received(data)
        self.drop()
        return True

    def write_eof(self) -> None:
        """The destination is done."""
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
        """The destination takes more."""
        if self.exchange is not None:
            self.exchange.client.read_on()

    def drop(self) -> None:
        """Let go of it."""
        self.exchange = None
        if self.end.ending is None:
            self.end.abort(Ending.CANCELLED)


class Exchange:
    """A request that was read, until its answer is whole."""

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
        """``http`` is the client's connection, which has given the request's head."""
        self.client = client
        self._http = http
        self.request = request
        self.proxy = proxy
        self.upstream: PlainUpstream | None = None
        self.request_done = False
        self.reused = False
        self._heard = False
        #: The head of the answer has gone to the client.
        self.answered = False

    @property
    def key(self) -> object:
        """What the connection leads to."""
        return self.proxy if self.proxy is not None else self.request.target

    @property
    def takes_body(self) -> bool:
        """What the client sends now is this request's."""
        return self.upstream is not None and not self.request_done

    @property
    def is_whole(self) -> bool:
        """Nothing of the request is still to come."""
        return self.request_done or not self.request.has_body

    # From the client.

    def begin(self, upstream: PlainUpstream, *, fresh: bool) -> bool:
        """Send the request on a connection; False when the destination takes no more for now."""
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
                self._http.next_event()  # its end, which it has without another byte
            self.request_done = True
        self.client.owner.carried(to_target=len(sent))
        upstream.end.write(sent)
        if fresh:
            join(upstream.end, upstream)
        else:
            upstream.end.resume_reading()
        return self.take(b"") if self.takes_body else True

    def take(self, data: bytes) -> bool:
        """Pass bytes of the body on; False when the destination takes no more for now."""
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
        """Pass an answer on; no bytes are its end. False when the client takes no more for now."""
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
            self.broke(fault or "closed the connection before it had answered")
        elif self._over:
            self._finish(upstream)
        return more

    @property
    def _over(self) -> bool:
        return self.answered and self._http.our_state not in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def _pass_on(self, event: object, parts: list[bytes]) -> bool:
        """Pass one event on; whether there may be another."""
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
                # Of a request that is not whole nobody knows where the next one would begin.
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
            return True  # RFC 9110 §15.2: such a client knows none of them
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
        """The destination's connection is of no more use."""
        upstream, self.upstream = self.upstream, None
        if upstream is None:
            return
        upstream.drop()
        if self.answered:
            self.client.cut(why)
        else:
            self.client.unanswered(self, why, may_repeat=not self._heard)

    def refused(self, why: str) -> None:
        """The answer is not for the client."""
        self.drop()
        self.client.complain(why)
        self.client.dial_failed(DialFailure.DENIED, why)

    def drop(self) -> None:
        """Nobody waits any more."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.drop()


def _end(event: h11.EndOfMessage, takes_trailers: bool) -> h11.EndOfMessage:
    return h11.EndOfMessage(headers=trailers(event.headers) if takes_trailers else [])
