"""The gRPC frontend by raw calls over real sockets; whoever dials behind it only takes notes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rawcalls import Call, Caller, until

from isthmus.dial.frontends import grpc_proxy
from isthmus.dial.frontends.backend import Request
from isthmus.dial.frontends.grpc_proxy import GrpcFrontend
from isthmus.errors import DialFailure
from isthmus.logs import OncePer
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.net.rules_slots import AdmissionRefusal
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import join
from isthmus.values import HostPort
from isthmus.wire.grpc import Status
from isthmus.wire.http2 import ErrorCode
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import (
    CLOSE_RSP,
    DATA,
    DIAL_RSP,
    close_dial,
    close_request,
    data_packet,
    dial_request,
)
from isthmus.wire.payload import CONNECT_OPTIONS, connect_options
from isthmus.wire.request_metadata import HALF_CLOSE

PATH = b"/ProxyService/Proxy"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"))


class Dial:
    """A dial that a test answers."""

    def __init__(self, request: Request, target: HostPort) -> None:
        self.request = request
        self.target = target
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def reach(self) -> MemoryEnd:
        """Answer it: a target that the test plays."""
        end = self.request.established()
        assert end is not None
        far = MemoryEnd()
        join(end, far)
        return far


class Notes:
    """A backend that takes notes; ``at_once`` answers inside ``dial``."""

    def __init__(self) -> None:
        self.dials: list[Dial] = []
        self.statuses: list[int] = []
        self.failures: list[ssl.SSLError] = []
        self.no_places: list[AdmissionRefusal] = []
        self.left = 0
        self.at_once: Callable[[Dial], object] = lambda dial: None

    def dial(self, request: Request, target: HostPort) -> Dial:
        dial = Dial(request, target)
        self.dials.append(dial)
        self.at_once(dial)
        return dial

    def refused(self, status: int, request: Request | None = None, reason: str = "") -> None:
        self.statuses.append(status)

    def no_place(self, why: AdmissionRefusal, source: str) -> None:
        self.no_places.append(why)

    def handshake_failed(self, error: ssl.SSLError) -> None:
        self.failures.append(error)

    def abandoned(self) -> None:
        self.left += 1


class Bed:
    """A frontend and its clients."""

    def __init__(self, **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.notes = Notes()
        self.frontend = GrpcFrontend(self.poller, self.notes, once=OncePer(), **settings)
        self.callers: list[Caller] = []
        self.listeners: list[Listener] = []

    def connect(self, *, speak: bool = True) -> Caller:
        """A client over a UNIX socket."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.frontend.accept(theirs)
        self.callers.append(Caller(self.poller, ours, speak=speak))
        return self.callers[-1]

    def connect_tls(self, context: ssl.SSLContext) -> Caller:
        """A client over TCP."""
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
        self.listeners.append(Listener(self.loop, self.poller, sock, self.frontend.accept_tls))
        client = socket.create_connection(("127.0.0.1", self.listeners[-1].port), 20)
        self.callers.append(Caller(self.poller, client, context))
        return self.callers[-1]

    async def dialing(self, caller: Caller | None = None) -> tuple[Call, Dial]:
        """A call whose dial has begun."""
        before = len(self.notes.dials)
        call = (caller or self.connect()).call(PATH)
        call.send(dial_request("tcp", "10.0.0.1:443", 4711))
        await until(lambda: len(self.notes.dials) > before)
        return call, self.notes.dials[-1]

    async def opened(self, caller: Caller | None = None) -> tuple[Call, MemoryEnd, int]:
        """A tunnel: its call, its target and its connect id."""
        call, dial = await self.dialing(caller)
        far = dial.reach()
        await until(lambda: call.packets)
        return call, far, call.packets[0].dialResponse.connectID

    async def close(self) -> None:
        self.frontend.close()
        for caller in self.callers:
            caller.close()
        for listener in self.listeners:
            listener.stop()
        await until(lambda: len(self.poller) == 0)
        assert not self.frontend.connections
        assert not len(self.frontend.strangers) and not len(self.frontend.goodbyes)
        self.poller.shut_down()


def run(test: Callable[[Bed], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        bed = Bed(**settings)
        try:
            async with asyncio.timeout(30):
                await test(bed)
        finally:
            await bed.close()

    asyncio.run(main())


def last(call: Call) -> Packet:
    return call.packets[-1]


# Tunnels.


def test_a_tunnel_from_dial_to_close() -> None:
    async def test(bed: Bed) -> None:
        call, dial = await bed.dialing()
        assert dial.target == HostPort("10.0.0.1", 443)
        assert str(dial.request.requester) == f"uid:{os.getuid()}"
        assert dial.request.frontend == "grpc"
        far = dial.reach()
        await until(lambda: call.packets)
        answer = last(call)
        assert (answer.type, answer.dialResponse.random) == (DIAL_RSP, 4711)
        assert answer.dialResponse.connectID > 0 and not answer.dialResponse.error
        connect_id = answer.dialResponse.connectID
        call.send(data_packet(connect_id, b"question"))
        await until(lambda: far.received == b"question")
        far.feed(b"answer")
        await until(lambda: len(call.packets) == 2)
        assert (last(call).type, last(call).data.data) == (DATA, b"answer")
        assert last(call).data.connectID == connect_id
        call.send(close_request(connect_id))
        await until(lambda: call.over)
        assert (last(call).type, last(call).closeResponse.error) == (CLOSE_RSP, "")
        assert call.status == (Status.OK, "")
        assert far.eofs == 1 and far.aborted is None

    run(test)


def test_the_target_ends_the_call() -> None:
    async def test(bed: Bed) -> None:
        call, far, _ = await bed.opened()
        far.feed(b"bye")
        far.feed_eof()
        await until(lambda: call.over)
        assert [it.type for it in call.packets] == [DIAL_RSP, DATA, CLOSE_RSP]
        assert call.status == (Status.OK, "")

    run(test)


def test_one_connection_carries_many_calls_each_on_its_own() -> None:
    async def test(bed: Bed) -> None:
        caller = bed.connect()
        tunnels = [await bed.opened(caller) for _ in range(32)]
        assert len({connect_id for _, _, connect_id in tunnels}) == 32
        # As konnectivity's reusable tunnel ends each dial.
        for call, _, _ in tunnels[::2]:
            call.stream.reset(ErrorCode.CANCEL)
        for call, far, connect_id in tunnels[1::2]:
            call.send(data_packet(connect_id, b"%d" % connect_id))
            await until(partial(lambda far, said: far.received == said, far, b"%d" % connect_id))
        assert all(far.aborted for _, far, _ in tunnels[::2])
        assert not any(far.aborted for _, far, _ in tunnels[1::2])
        assert len(bed.frontend.connections) == 1 and not caller.over

    run(test)


# Dials that come to nothing.


@pytest.mark.parametrize("failure", DialFailure)
def test_why_a_dial_failed_is_said(failure: DialFailure) -> None:
    async def test(bed: Bed) -> None:
        call, dial = await bed.dialing()
        dial.request.dial_failed(failure, "because")
        await until(lambda: call.over)
        answer = last(call).dialResponse
        assert (answer.random, answer.connectID) == (4711, 0)
        assert answer.error == f"cannot dial 10.0.0.1:443: {failure.value}: because"
        assert call.status == (Status.OK, "")

    run(test)


@pytest.mark.parametrize("compat", ["", "konnectivity"])
@pytest.mark.parametrize("kind", ["packet", "payload"])
@pytest.mark.parametrize("asks", [False, True], ids=["go", "ours"])
def test_what_the_response_says_besides(compat: str, kind: str, asks: bool) -> None:
    """With compat nothing that Go's server does not say, unless the client asked for it."""

    async def test(bed: Bed) -> None:
        target = ((CONNECT_OPTIONS, connect_options(HostPort("10.0.0.1", 443))),)
        call = bed.connect().call(
            PATH,
            *(target if kind == "payload" else ()),
            *(((HALF_CLOSE, b"1"),) if asks else ()),
        )
        if kind == "packet":
            call.send(dial_request("tcp", "10.0.0.1:443", 4711))
        await until(lambda: bed.notes.dials)
        [dial] = bed.notes.dials
        dial.reach()
        await until(lambda: call.heard.headers)
        said = {b":status": b"200", b"content-type": b"application/grpc"}
        if not compat:
            said[b"isthmus-connection-id"] = dial.request.connection_id.encode()
        if asks:
            said[b"isthmus-half-close"] = b"1"
        assert call.response == said

    run(test, compat=compat)


def test_with_compat_no_agent_is_said_as_gos_server_says_it() -> None:
    async def test(bed: Bed) -> None:
        call, dial = await bed.dialing()
        dial.request.dial_failed(DialFailure.NO_AGENT, "")
        await until(lambda: call.over)
        assert last(call).dialResponse.error == "No agent available"

    run(test, compat="konnectivity")


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_an_answer_may_come_before_the_dial_returns(answer: str) -> None:
    async def test(bed: Bed) -> None:
        if answer == "yes":
            bed.notes.at_once = Dial.reach
        else:
            bed.notes.at_once = lambda dial: dial.request.dial_failed(DialFailure.NO_AGENT, "")
        call, dial = await bed.dialing()
        await until(lambda: call.packets)
        assert bool(last(call).dialResponse.error) == (answer == "no")
        call.stream.reset(ErrorCode.CANCEL)
        await until(lambda: not bed.callers[0].http2.streams)  # type: ignore[union-attr]  # begun
        assert not dial.cancelled and bed.notes.left == 0

    run(test)


@pytest.mark.parametrize(
    ("protocol", "address", "error"),
    [
        ("udp", "10.0.0.1:53", "protocol udp is not supported, only tcp"),
        ("tcp", "nonsense", "no port in 'nonsense'"),
        ("tcp", "10.0.0.1:0", "port out of range: 0"),
        ("tcp", "", "no port in ''"),
    ],
)
def test_what_cannot_be_dialed_is_refused_without_a_dial(
    protocol: str, address: str, error: str
) -> None:
    async def test(bed: Bed) -> None:
        call = bed.connect().call(PATH)
        call.send(dial_request(protocol, address, 1))
        await until(lambda: call.over)
        assert last(call).dialResponse.error == f"cannot dial {address}: {error}"
        assert not bed.notes.dials

    run(test)


@pytest.mark.parametrize("how", ["DIAL_CLS", "reset", "gone"])
def test_a_client_that_gives_up_takes_its_dial_back(how: str) -> None:
    async def test(bed: Bed) -> None:
        caller = bed.connect()
        call, dial = await bed.dialing(caller)
        if how == "DIAL_CLS":
            call.send(close_dial(4711))
        elif how == "reset":
            call.stream.reset(ErrorCode.CANCEL)
        else:
            caller.close()
        await until(lambda: dial.cancelled)
        assert bed.notes.left == 1
        assert dial.request.established() is None  # the answer was on its way
        dial.request.dial_failed(DialFailure.REFUSED, "")  # nor this
        assert len(bed.frontend.connections) == (how != "gone")

    run(test)


def test_data_before_the_dial_is_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bed: Bed) -> None:
        call = bed.connect().call(PATH)
        call.send(data_packet(5, b"who are you"), data_packet(6, b"again"))
        await until(lambda: len(call.packets) == 2)
        assert [(it.type, it.closeResponse.connectID) for it in call.packets] == [
            (CLOSE_RSP, 5),
            (CLOSE_RSP, 6),
        ]
        call.send(dial_request("tcp", "10.0.0.1:443", 1))
        await until(lambda: bed.notes.dials)

    with caplog.at_level(logging.WARNING, "isthmus.frontend"):
        run(test)
    assert len(caplog.records) == 1  # once a minute


# Requests that are none.


@pytest.mark.parametrize("path", [b"/AgentService/Connect", b"/", b"/ProxyService/Other"])
def test_an_unknown_method_is_unimplemented(path: bytes) -> None:
    async def test(bed: Bed) -> None:
        caller = bed.connect()
        call = caller.call(path)
        await until(lambda: call.heard.headers)
        assert call.response[b":status"] == b"200"
        assert call.status == (Status.UNIMPLEMENTED, f"unknown method {path.decode()}")
        await bed.opened(caller)  # the connection is as good as before

    run(test)


@pytest.mark.parametrize(
    ("other", "http", "status"),
    [
        ({"content_type": b"text/html"}, b"415", Status.INVALID_ARGUMENT),
        ({"method": b"GET"}, b"405", Status.INTERNAL),
    ],
)
def test_what_is_no_grpc_is_answered_in_words_when_it_was_heard(
    other: dict[str, bytes], http: bytes, status: Status
) -> None:
    async def test(bed: Bed) -> None:
        call = bed.connect().call(PATH, **other)
        call.send(b"a body that nobody reads" * 10_000)
        call.stream.end()
        await until(lambda: call.over)
        assert call.response[b":status"] == http
        assert call.response[b"grpc-status"] == b"%d" % status
        assert call.heard.received.endswith(b"\n") and len(call.heard.received) > 10
        assert not bed.notes.dials

    run(test)


def test_garbage_is_answered_with_goaway_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bed: Bed) -> None:
        good, _, _ = await bed.opened()
        for _ in range(3):
            bad = bed.connect(speak=False)
            bad.carrier.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(partial(getattr, bad, "over"))
        await until(lambda: len(bed.frontend.connections) == 1)
        assert not good.over

    with caplog.at_level(logging.WARNING, "isthmus.frontend"):
        run(test)
    assert len(caplog.records) == 1


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_proxy, "PREFACE_S", 0.05)

    async def test(bed: Bed) -> None:
        caller = bed.connect()
        silent = bed.connect(speak=False)
        await until(lambda: silent.over)
        await bed.opened(caller)
        assert len(bed.frontend.connections) == 1

    run(test)


def test_a_client_that_is_dead_is_dropped() -> None:
    async def test(bed: Bed) -> None:
        _, far, _ = await bed.opened()
        (connection,) = bed.frontend.connections
        assert connection.http2 is not None
        connection.http2.limits = replace(connection.http2.limits, dead_after_s=-1.0)
        bed.frontend._timer.cancel()
        bed.frontend._sweep()
        assert far.aborted and not bed.frontend.connections

    run(test)


# Draining and closing.


def test_a_draining_frontend_takes_no_new_calls_and_lets_old_ones_go_on() -> None:
    async def test(bed: Bed) -> None:
        caller = bed.connect()
        call, far, connect_id = await bed.opened(caller)
        bed.frontend.drain()
        assert caller.http2 is not None
        await until(lambda: caller.http2 and caller.http2.remote_draining)
        call.send(data_packet(connect_id, b"still here"))
        await until(lambda: far.received == b"still here")
        late = bed.connect()
        await until(lambda: late.http2 and late.http2.remote_draining)

    run(test)


def test_closing_resets_what_is_open() -> None:
    async def test(bed: Bed) -> None:
        call, far, _ = await bed.opened()
        _, dial = await bed.dialing()
        bed.frontend.close()
        assert far.aborted and dial.cancelled
        await until(lambda: call.over and bed.callers[0].over)

    run(test)


# TLS.


def tls_of(files: pki.PkiFiles) -> dict[str, Any]:
    tls = TlsFiles(str(files.server_cert), str(files.server_key), str(files.client_ca_cert))
    context = server_context(tls, alpn=("h2",))
    return {"context": lambda: context}


def test_a_tls_client_is_known_by_its_certificate(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        tls = TlsFiles(str(files.client_cert), str(files.client_key), str(files.ca_cert))
        caller = bed.connect_tls(client_context(tls, alpn=("h2",)))
        await until(lambda: caller.secure)
        call, dial = await bed.dialing(caller)
        assert str(dial.request.requester) == "certificate:isthmus-client"
        far = dial.reach()
        await until(lambda: call.packets)
        far.feed(b"hello")
        await until(lambda: len(call.packets) == 2)

    run(test, **tls_of(files))


def test_a_client_without_a_certificate_is_reported_and_gone(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        caller = bed.connect_tls(ssl.create_default_context(cafile=str(files.ca_cert)))
        await until(lambda: bed.notes.failures)
        await until(lambda: caller.over)
        await until(lambda: not bed.frontend.connections)

    run(test, **tls_of(files))


def test_too_many_that_say_nothing_are_refused(
    files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_proxy, "MOST_STRANGERS", 1)

    async def test(bed: Bed) -> None:
        bed.connect(speak=False)  # of this machine: it takes no place of those out there
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
        bed.listeners.append(Listener(bed.loop, bed.poller, sock, bed.frontend.accept_tls))
        address = ("127.0.0.1", bed.listeners[-1].port)
        with socket.create_connection(address, 20):
            await until(lambda: len(bed.frontend.connections) == 2)
            with socket.create_connection(address, 20):
                await until(lambda: bed.notes.no_places)
        assert bed.notes.no_places == [AdmissionRefusal.CROWD]

    run(test, **tls_of(files))
