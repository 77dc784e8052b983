"""Agents that open dials as they should not, and servers that answer so: nothing leaks."""

from __future__ import annotations

import pytest
from linkbench import GRPC, Bench, run
from rawcalls import until
from test_grpc_agent import GO, serving, welcome
from test_grpc_server import ID, calling

from isthmus.errors import DialFailure, LinkStage
from isthmus.links.link import Link
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.linked_end import FIRST_OF_SERVER
from isthmus.values import DialId, DialRequest, HostPort, Identity
from isthmus.wire.grpc import MESSAGE_HEAD
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.link_pb2 import DialResult
from isthmus.wire.packet import (
    CLOSE_REQ,
    CLOSE_RSP,
    DIAL_CLS,
    DIAL_REQ,
    DIAL_RSP,
    close_dial,
    close_request,
    close_response,
    data_packet,
    dial_request,
    dial_response,
    parse,
)

HALF_CLOSE = (b"isthmus-half-close", b"1")


def ask(link: Link, answers: list[DialResult | None], dial_id: int = 7) -> BaseEnd:
    end = link.open_dial(
        DialRequest(HostPort("10.0.0.1", 443), Identity("who")),
        dial_id=DialId(dial_id),
        timeout_s=5.0,
        told=answers.append,
    )
    assert end is not None
    return end


def packets_in(raw: bytes) -> list[Packet]:
    found = []
    while raw:
        end = MESSAGE_HEAD + int.from_bytes(raw[1:MESSAGE_HEAD], "big")
        found.append(parse(raw[MESSAGE_HEAD:end]))
        raw = raw[end:]
    return found


# What an agent may send to a server.


def test_what_an_agent_that_says_nothing_of_itself_opens_is_asked_for_all_the_same(
    files: pki.PkiFiles,
) -> None:
    """Whoever decides has to know of it: to refuse it, and to write it down."""

    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        assert bench.ready[0].features is None
        call.send(dial_request("tcp", "10.0.0.1:443", 5))
        await until(lambda: bench.dials)
        assert bench.dials[0].connection_id == "dial-5"
        bench.dials[0].refuse(DialFailure.DENIED, "the gate is off")
        await until(lambda: call.packets)
        (packet,) = call.packets
        assert (packet.type, packet.dialResponse.random) == (DIAL_RSP, 5)
        assert packet.dialResponse.error == (
            "dial tcp 10.0.0.1:443: denied by policy: the gate is off"
        )
        assert bench.ready[0].load == 0
        caller.close()

    run(files, test)


@pytest.mark.parametrize(
    ("said", "called"), [(b"0b0b0b0b", "0b0b0b0b-5"), (b"x y", "dial-5"), (b"x" * 65, "dial-5")]
)
def test_what_ids_begin_with_is_a_word(files: pki.PkiFiles, said: bytes, called: str) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID, (b"isthmus-process", said))
        call.send(dial_request("tcp", "10.0.0.1:443", 5))
        await until(lambda: bench.dials)
        assert bench.dials[0].connection_id == called
        caller.close()

    run(files, test)


def test_a_number_in_use_is_refused(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        call.send(*[dial_request("tcp", f"10.0.0.{n}:443", 5) for n in (1, 2, 3)])
        await until(lambda: len(call.packets) == 2)
        assert {it.dialResponse.error for it in call.packets} == {
            "dial tcp: this random number is in use"
        }
        (incoming,) = bench.dials
        assert incoming.host == "10.0.0.1" and bench.ready[0].load == 1
        target = MemoryEnd()
        join(incoming.accept("10.0.0.1:443"), target)
        await until(lambda: len(call.packets) == 3)
        assert call.packets[-1].dialResponse.connectID == FIRST_OF_SERVER
        call.send(dial_request("tcp", "10.0.0.9:443", 5))  # free again
        await until(lambda: len(bench.dials) == 2)
        caller.close()
        await until(lambda: target.aborted)

    run(files, test)


def test_an_agent_has_so_many_dials_and_connections_and_no_more(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        bench.settings["limits"] = Limits(max_streams=3)
        caller, call = await calling(bench, ID)
        call.send(*[dial_request("tcp", "10.0.0.1:443", n) for n in range(1, 51)])
        await until(lambda: len(call.packets) == 47)
        assert all("too many open files" in it.dialResponse.error for it in call.packets)
        assert len(bench.dials) == bench.ready[0].load == 3
        bench.dials[0].accept("10.0.0.1:443")
        call.send(dial_request("tcp", "10.0.0.1:443", 99))
        await until(lambda: len(call.packets) == 49)
        assert bench.ready[0].load == 3
        call.send(close_dial(2), close_request(FIRST_OF_SERVER))
        await until(lambda: bench.ready[0].load == 1)
        caller.close()

    run(files, test)


def test_what_cannot_be_a_target_is_asked_for_and_refused_in_few_words(
    files: pki.PkiFiles,
) -> None:
    """Who refuses all else refuses it, too, and writes it down."""

    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        for number, address in enumerate(("nonsense", "2130706433:80", "x" * 50_000, "")):
            call.send(dial_request("tcp", address, number))
        call.send(dial_request("u" * 50_000, "10.0.0.1:53", 9))
        await until(lambda: len(bench.dials) == 5)
        assert [(it.host[:20], it.port) for it in bench.dials] == [
            ("nonsense", 0), ("2130706433:80", 0), ("x" * 20, 0), ("", 0), ("u" * 20, 0),
        ]  # fmt: skip
        for dial in bench.dials:
            dial.refuse(DialFailure.DENIED, "it is not listed")
        await until(lambda: len(call.packets) == 5)
        assert call.packets[0].dialResponse.error == (
            "dial tcp nonsense: denied by policy: it is not listed"
        )
        assert all(0 < len(it.dialResponse.error) < 1000 for it in call.packets)
        assert bench.ready[0].load == 0
        caller.close()

    run(files, test)


def test_data_and_closes_for_what_an_agent_does_not_own(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        ours, unknown = FIRST_OF_SERVER + 5, FIRST_OF_SERVER + 6
        call.send(data_packet(ours, b"x"), data_packet(ours, b"y"), close_request(unknown))
        call.send(close_response(ours), close_dial(77), data_packet(8, b"x"))
        await until(lambda: len(call.packets) == 3)
        told = [(p.type, p.closeResponse.connectID, p.closeResponse.error) for p in call.packets]
        assert told == [
            (CLOSE_RSP, ours, "unrecognized connectID"),
            (CLOSE_RSP, unknown, "Unknown connectID"),
            (CLOSE_REQ, 0, ""),
        ]
        assert call.packets[2].closeRequest.connectID == 8
        assert bench.ready[0].ready and bench.ready[0].load == 0
        caller.close()

    run(files, test)


def test_a_connection_ends_only_by_the_packets_of_its_own_direction(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID, HALF_CLOSE)
        call.send(dial_request("tcp", "10.0.0.1:443", 5))
        await until(lambda: bench.dials)
        target = MemoryEnd()
        join(bench.dials[0].accept("10.0.0.1:443"), target)
        answers: list[DialResult | None] = []
        near = ask(bench.ready[0], answers)
        await until(lambda: len(call.packets) == 2)
        call.send(dial_response(7, 1))
        await until(lambda: answers)
        client = MemoryEnd()
        join(near, client)
        # Each is the other direction's.
        call.send(close_response(FIRST_OF_SERVER), close_request(1))
        call.send(data_packet(FIRST_OF_SERVER, b"to the target"), data_packet(1, b"to the client"))
        await until(lambda: target.received and client.received)
        assert not (target.eofs or target.aborted or client.eofs or client.aborted)
        call.send(close_request(FIRST_OF_SERVER), close_response(1, "reset"))
        await until(lambda: target.aborted and client.aborted)
        assert bench.ready[0].load == 0 and bench.ready[0].ready
        caller.close()

    run(files, test)


@pytest.mark.parametrize("in_use", [False, True])
def test_an_agent_that_gives_a_number_of_the_servers_is_dropped(
    files: pki.PkiFiles, in_use: bool
) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        target = MemoryEnd()
        call.send(dial_request("tcp", "10.0.0.1:443", 5))
        await until(lambda: bench.dials)
        join(bench.dials[0].accept("10.0.0.1:443"), target)
        answers: list[DialResult | None] = []
        ask(bench.ready[0], answers)
        call.send(dial_response(7, FIRST_OF_SERVER + (0 if in_use else 1)))
        await until(lambda: bench.gone)
        assert bench.gone[0].stage is LinkStage.PROTOCOL
        assert "an id of our range" in bench.gone[0].closed_because
        assert answers == [None] and target.aborted is Ending.PROTOCOL
        caller.close()

    run(files, test)


def test_what_ours_would_not_say_about_a_dial_ends_the_link(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID, HALF_CLOSE)
        call.send(dial_request("tcp", "10.0.0.1:443", 5, b"\xff\xff"))
        await until(lambda: bench.gone)
        assert bench.gone[0].stage is LinkStage.PROTOCOL and not bench.dials
        assert bench.gone[0].load == 0
        caller.close()

    run(files, test)


def test_an_agent_that_opens_and_leaves(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        cancelled: list[int] = []
        call.send(*[dial_request("tcp", "10.0.0.1:443", n) for n in range(1, 101)])
        await until(lambda: len(bench.dials) == 100)
        for number, incoming in enumerate(bench.dials):
            incoming.on_cancelled = lambda number=number: cancelled.append(number)
        caller.close()
        await until(lambda: bench.gone)
        assert sorted(cancelled) == list(range(100)) and bench.gone[0].load == 0
        for incoming in bench.dials:
            incoming.refuse(DialFailure.DENIED, "too late")

    run(files, test)


def test_a_number_taken_back_and_used_again_is_not_answered_for_the_first(
    files: pki.PkiFiles,
) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        call.send(dial_request("tcp", "10.0.0.1:443", 5), close_dial(5))
        call.send(dial_request("tcp", "10.0.0.2:443", 5))
        await until(lambda: len(bench.dials) == 2)
        first, second = bench.dials
        # Whoever dials did not hear in time that nobody wants it.
        late = MemoryEnd()
        join(first.accept("10.0.0.1:443"), late)
        first.refuse(DialFailure.REFUSED, "")
        assert late.aborted is Ending.CANCELLED and bench.ready[0].load == 1
        second.refuse(DialFailure.DENIED, "no")
        await until(lambda: call.packets)
        (answer,) = call.packets
        assert "denied by policy" in answer.dialResponse.error and bench.ready[0].load == 0
        caller.close()

    run(files, test)


def test_a_dial_accepted_after_its_link_is_gone(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        caller, call = await calling(bench, ID)
        call.send(dial_request("tcp", "10.0.0.1:443", 5))
        await until(lambda: bench.dials)
        caller.close()
        await until(lambda: bench.gone)
        target = MemoryEnd()
        join(bench.dials[0].accept("10.0.0.1:443"), target)
        assert target.aborted is not None and bench.gone[0].load == 0

    run(files, test)


# What a server may send to an agent.


def test_a_server_that_knows_nothing_of_it_is_told_that_the_dial_is_over(
    files: pki.PkiFiles,
) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            assert link.features is None
            answers: list[DialResult | None] = []
            end = ask(link, answers)
            assert link.load == 1
            await bench.until(lambda: server.heard.received)
            end.abort(Ending.TIMED_OUT)
            assert link.load == 0
            await bench.until(lambda: len(packets_in(bytes(server.heard.received))) == 2)
            asked, over = packets_in(bytes(server.heard.received))
            assert (asked.type, asked.dialRequest.address) == (DIAL_REQ, "10.0.0.1:443")
            assert not asked.dialRequest.isthmus_dial  # it would have no use for it
            assert (over.type, over.closeDial.random) == (DIAL_CLS, asked.dialRequest.random)
            server.send(dial_response(7, FIRST_OF_SERVER), dial_response(7, error="after all"))
            await bench.until(lambda: len(packets_in(bytes(server.heard.received))) == 3)
            late = packets_in(bytes(server.heard.received))[2]
            assert (late.type, late.closeRequest.connectID) == (CLOSE_REQ, FIRST_OF_SERVER)
            assert answers == [] and link.ready

    run(files, test)


@pytest.mark.parametrize("number", [1, FIRST_OF_SERVER - 1])
def test_a_server_that_gives_a_number_of_the_agents_is_left(
    files: pki.PkiFiles, number: int
) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            answers: list[DialResult | None] = []
            ask(link, answers)
            server.send(dial_response(7, number))
            await bench.until(lambda: link.closed_because)
            assert link.stage is LinkStage.PROTOCOL and answers == [None]

    run(files, test)


def test_a_server_that_answers_without_a_connection(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            answers: list[DialResult | None] = []
            ask(link, answers)
            server.send(dial_response(7))
            await bench.until(lambda: answers)
            assert answers[0] is not None
            assert answers[0].detail == "the server answered without a connection id"
            assert link.ready and link.load == 0

    run(files, test)


def test_features_in_several_headers(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        def answer(stream: Http2Stream) -> None:
            named = ((b"isthmus-features", b"A, B"), (b"isthmus-features", b"C,,\xff,D E"))
            stream.send_headers((*GO, *named))

        async with serving(bench, answer) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            assert link.features == {"A", "B", "C"}

    run(files, test)
