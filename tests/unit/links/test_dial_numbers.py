"""Dials of konnectivity's packets have numbers: no two may have one in the life of a link."""

from __future__ import annotations

import pytest
from linkbench import GRPC, Bench, run

from isthmus.errors import DialFailure
from isthmus.links.link import Link
from isthmus.tools.pki import making as pki
from isthmus.values import DialId, DialRequest, HostPort, Identity
from isthmus.wire.link import TO_WIRE
from isthmus.wire.link_pb2 import DialResult

OWN, FOREIGN = "0a1b2c3d", "ffffffff"


def ask(link: Link, port: int, dial_id: int, connection_id: str) -> list[DialResult | None]:
    answers: list[DialResult | None] = []
    end = link.open_dial(
        DialRequest(HostPort("10.0.0.1", port), Identity("who"), connection_id=connection_id),
        dial_id=DialId(dial_id),
        timeout_s=5,
        told=answers.append,
    )
    assert end is not None
    return answers


def test_what_another_server_has_numbered_is_not_taken_for_our_own(files: pki.PkiFiles) -> None:
    # A relayed dial is called what the other server calls it, and that one counts from 1, too.
    async def test(bench: Bench) -> None:
        bench.settings["process"] = OWN
        link, _ = await bench.linked(GRPC)
        ours = ask(link, 1001, 7, f"{OWN}-5")
        theirs = ask(link, 1002, 5, f"{FOREIGN}-5")
        await bench.until(lambda: len(bench.dials) == 2)
        first, second = sorted(bench.dials, key=lambda dial: dial.port)
        assert first.connection_id != second.connection_id
        first.refuse(DialFailure.REFUSED, "")
        await bench.until(lambda: ours)
        assert ours[0] is not None and ours[0].failure == TO_WIRE[DialFailure.REFUSED]
        assert not theirs
        second.accept("10.0.0.1:1002")
        await bench.until(lambda: theirs)
        assert theirs[0] is not None and not theirs[0].failure

    run(files, test)


@pytest.mark.parametrize("connection_id", ["theirs-xyz", "no number", "-", f"{OWN}-" + "f" * 50])
def test_whatever_another_server_calls_it_it_can_be_asked(
    files: pki.PkiFiles, connection_id: str
) -> None:
    async def test(bench: Bench) -> None:
        bench.settings["process"] = OWN
        link, _ = await bench.linked(GRPC)
        ask(link, 1001, 1, connection_id)
        await bench.until(lambda: bench.dials)

    run(files, test)
