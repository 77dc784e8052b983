"""What agents that are not ours may say to a server, and what it answers; one at a time."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import pytest
from linkbench import GRPC, Bench, run
from rawcalls import Call, Caller, until

from isthmus.errors import LinkStage
from isthmus.net.contexts import TlsFiles, client_context
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import join
from isthmus.values import DialId, DialRequest, HostPort, Identity
from isthmus.wire.grpc import Status
from isthmus.wire.http2 import ErrorCode
from isthmus.wire.link_pb2 import DialResult
from isthmus.wire.packet import (
    CLOSE_REQ,
    DATA,
    DIAL_REQ,
    close_response,
    data_packet,
    dial_response,
    drain,
)

PATH = b"/AgentService/Connect"
ID = (b"agentid", b"go-agent")


def context(files: pki.PkiFiles, alpn: tuple[str, ...] = GRPC) -> ssl.SSLContext:
    tls = TlsFiles(str(files.agent_cert), str(files.agent_key), str(files.ca_cert))
    return client_context(tls, alpn=alpn)


async def connect(bench: Bench, alpn: tuple[str, ...] = GRPC, *, speak: bool = True) -> Caller:
    sock = socket.create_connection(bench.address[1][:2], 20)
    caller = Caller(bench.poller, sock, context(bench.files, alpn), speak=speak)
    await until(lambda: caller.secure)
    return caller


async def calling(bench: Bench, *headers: tuple[bytes, bytes]) -> tuple[Caller, Call]:
    """A call whose answer has come."""
    caller = await connect(bench)
    call = caller.call(PATH, *headers)
    await until(lambda: call.heard.headers)
    return caller, call


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ((), "expected one agentID, got 0"),
        ((ID, ID), "expected one agentID, got 2"),
        (((b"agentid", b""),), "expected one agentID, got 1"),
        (
            (ID, (b"agentidentifiers", b"host=a"), (b"agentidentifiers", b"host=b")),
            "expected one agentIdentifiers, got 2",
        ),
        (
            (ID, (b"isthmus-network", b"a"), (b"isthmus-network", b"b")),
            "expected one network, got 2",
        ),
    ],
)
def test_an_agent_must_say_who_it_is_once(
    files: pki.PkiFiles, headers: tuple[tuple[bytes, bytes], ...], text: str
) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, *headers)
        assert call.response[b":status"] == b"200"
        assert call.status == (Status.INVALID_ARGUMENT, text)
        assert not bench.ready
        caller.close()

    run(files, test)


@pytest.mark.parametrize(
    ("path", "other", "http", "status"),
    [
        (b"/AgentService/Other", {}, b"200", Status.UNIMPLEMENTED),
        (b"/ProxyService/Proxy", {}, b"200", Status.UNIMPLEMENTED),
        (PATH, {"content_type": b"text/html"}, b"415", Status.INVALID_ARGUMENT),
        (PATH, {"method": b"GET"}, b"405", Status.INTERNAL),
    ],
)
def test_what_is_not_the_call_is_refused(
    files: pki.PkiFiles, path: bytes, other: dict[str, bytes], http: bytes, status: Status
) -> None:
    async def test(bench: Bench) -> None:
        caller = await connect(bench)
        call = caller.call(path, ID, **other)
        await until(lambda: call.heard.headers)
        assert call.response[b":status"] == http
        assert call.status[0] is status
        assert not bench.ready and not bench.gone
        # The connection is as good as before.
        again = caller.call(PATH, ID)
        await until(lambda: again.heard.headers and bench.ready)
        caller.close()

    run(files, test)


def test_an_agent_as_gos_is_welcome_with_headers_only(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        claims = (b"agentidentifiers", b"host=Node1&ipv4=10.0.0.9&default-route=true")
        caller, call = await calling(bench, ID, claims, (b"user-agent", b"grpc-go/1.7"))
        assert call.response == {
            b":status": b"200",
            b"content-type": b"application/grpc",
            b"serverid": b"server",
            b"servercount": b"3",
        }
        (link,) = bench.ready
        assert (link.agent_id, link.version) == ("go-agent", "grpc-go/1.7")
        assert link.identifiers.host == ("node1",) and link.identifiers.default_route
        caller.close()

    run(files, test)


def test_unknown_identifiers_are_left_out_and_the_rest_is_used(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, _ = await calling(bench, ID, (b"agentidentifiers", b"what=ever&host=n1"))
        assert bench.ready[0].identifiers.host == ("n1",)
        caller.close()

    run(files, test)


def test_bad_identifiers_are_refused_by_name(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller = await connect(bench)
        call = caller.call(PATH, ID, (b"agentidentifiers", b"ipv4=x&host=n1"))
        await until(lambda: call.heard.headers)
        status, text = call.status
        assert status is Status.INVALID_ARGUMENT and "ipv4=x" in text
        await until(lambda: bench.gone)
        assert not bench.ready and "ipv4=x" in bench.gone[0].closed_because
        caller.close()

    run(files, test)


def test_one_connection_carries_one_agent(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, first = await calling(bench, ID)
        second = caller.call(PATH, (b"agentid", b"other"))
        await until(lambda: second.over)
        assert second.status[0] is Status.ALREADY_EXISTS
        assert not first.over and len(bench.ready) == 1
        assert bench.ready[0].agent_id == "go-agent"
        caller.close()

    run(files, test)


def test_two_agents_may_have_one_id_on_their_own_connections(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        first, _ = await calling(bench, ID)
        second, _ = await calling(bench, ID)
        assert [link.agent_id for link in bench.ready] == ["go-agent", "go-agent"]
        assert all(link.takes_dials for link in bench.ready)
        first.close()
        second.close()

    run(files, test)


@pytest.mark.parametrize("token", [b"Bearer abc.def", b"abc.def", b"Bearer  abc.def "])
def test_the_token_is_what_follows_bearer(files: pki.PkiFiles, token: bytes) -> None:
    async def test(bench: Bench) -> None:
        tokens: list[str] = []

        def admit(link: object, token: str, decided: Callable[[str], None]) -> None:
            tokens.append(token)
            decided("")

        bench.admit = admit
        caller, _ = await calling(bench, ID, (b"authorization", token.strip()))
        assert tokens == ["abc.def"]
        caller.close()

    run(files, test)


@pytest.mark.parametrize("alpn", [GRPC, ("http/1.1",)])
def test_a_peer_that_does_not_begin_with_the_preface_is_dropped(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        caller = await connect(bench, alpn, speak=False)
        caller.carrier.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: caller.over and bench.gone)
        assert bench.gone[0].stage is LinkStage.PROTOCOL

    run(files, test)


def dial(bench: Bench, answers: list[DialResult | None], dial_id: int = 7) -> object:
    return bench.ready[0].open_dial(
        DialRequest(HostPort("2001:db8::1", 443), Identity("who")),
        dial_id=DialId(dial_id),
        timeout_s=5.0,
        told=answers.append,
    )


def test_an_agent_without_our_half_close_is_told_by_packets_it_knows(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        answers: list[DialResult | None] = []
        end = dial(bench, answers)
        await until(lambda: call.packets)
        asked = call.packets[0]
        assert (asked.type, asked.dialRequest.protocol) == (DIAL_REQ, "tcp")
        assert asked.dialRequest.address == "[2001:db8::1]:443"
        assert not asked.dialRequest.isthmus_dial, "nothing that it would not understand"
        call.send(dial_response(asked.dialRequest.random, 5), data_packet(5, b"220 hello"))
        await until(lambda: answers)
        client = MemoryEnd()
        join(end, client)  # type: ignore[arg-type]  # an end, by what was asked
        await until(lambda: client.received == b"220 hello")
        client.feed(b"up")
        await until(lambda: len(call.packets) == 2)
        assert (call.packets[1].type, call.packets[1].data.data) == (DATA, b"up")
        call.send(close_response(5))
        await until(lambda: client.eofs)
        client.feed_eof()
        assert bench.ready[0].load == 0
        assert all(packet.type in (DIAL_REQ, DATA, CLOSE_REQ) for packet in call.packets)
        caller.close()

    run(files, test)


def test_packets_nobody_asked_for_disturb_nothing(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        call.send(
            data_packet(77, b"who is this"),
            close_response(78),
            dial_response(999, 79),  # an answer to no dial: the connection is closed there
            dial_response(998, error="no"),
        )
        await until(lambda: len(call.packets) == 2)
        assert {(it.type, it.closeRequest.connectID) for it in call.packets} == {
            (CLOSE_REQ, 77),
            (CLOSE_REQ, 79),
        }
        assert bench.ready[0].takes_dials
        caller.close()

    run(files, test)


def test_drain_is_heard(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        call.send(drain())
        await until(lambda: bench.ready[0].draining)
        assert not bench.ready[0].takes_dials
        caller.close()

    run(files, test)


def test_packets_that_are_none_end_that_link_and_no_other(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        good, _ = await calling(bench, ID)
        bad, call = await calling(bench, (b"agentid", b"bad"))
        call.send(b"\0\0\0\0\3\xff\xff\xff")
        await until(lambda: bench.gone)
        assert bench.gone == [bench.ready[1]]
        assert bench.gone[0].stage is LinkStage.PROTOCOL
        assert bench.ready[0].takes_dials
        good.close()
        bad.close()

    run(files, test)


@pytest.mark.parametrize("how", ["end", "reset", "gone"])
def test_the_end_of_the_call_is_the_end_of_the_link(files: pki.PkiFiles, how: str) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        answers: list[DialResult | None] = []
        assert dial(bench, answers) is not None
        if how == "end":
            call.stream.end()
        elif how == "reset":
            call.stream.reset(ErrorCode.CANCEL)
        else:
            caller.close()
        await until(lambda: bench.gone)
        assert answers == [None]  # to be tried elsewhere
        caller.close()

    run(files, test)
