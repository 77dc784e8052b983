"""A gate that is on at one side of a link only: said at connect time, once per server and state."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import cast

import pytest

from isthmus.links.agent_side import ServerLink
from isthmus.programs.agent.server_links import GateWatch
from isthmus.settings.gates import CLUSTER_TO_MASTER

ON, OFF = frozenset({CLUSTER_TO_MASTER}), frozenset({"SomethingElse"})


@dataclass
class Linked:
    """What is looked at of a link."""

    server_id: str
    features: frozenset[str] | None
    peer_address: str = "192.0.2.1:8091"


def told(
    caplog: pytest.LogCaptureFixture, steps: list[list[Linked]], *, on_here: bool
) -> list[tuple[str, str]]:
    """The servers that were complained about, and how loudly, when links changed like this."""
    links: list[Linked] = []
    looks = 0

    def looked() -> None:
        nonlocal looks
        looks += 1

    async def main() -> None:
        watch = GateWatch(
            asyncio.get_running_loop(),
            on_here=on_here,
            links=lambda: cast(list[ServerLink], links),
            then=looked,
        )
        for step in steps:
            links[:] = step
            watch.changed()
            watch.changed()  # many changes at once are one look
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        watch.changed()
        watch.stop()
        await asyncio.sleep(0)

    with caplog.at_level(logging.DEBUG, "isthmus.agent"):
        asyncio.run(main())
    assert looks == len(steps)
    return [(vars(it)["fields"]["server_id"], it.levelname) for it in caplog.records]


def test_on_here_and_off_there_is_a_warning_until_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = [
        [Linked("a", OFF), Linked("b", ON)],
        [Linked("a", OFF), Linked("c", frozenset())],
        [Linked("a", ON), Linked("d", None)],
        [Linked("a", OFF)],
    ]
    said = told(caplog, steps, on_here=True)
    assert said == [("a", "WARNING"), ("c", "WARNING"), ("a", "WARNING")]
    assert caplog.messages[0] == (
        "the feature gate EnableClusterToMasterTraffic is on here and off at the server: it carries"
        " no connections from this node"
    )


def test_off_here_and_on_there_is_only_said(caplog: pytest.LogCaptureFixture) -> None:
    steps = [[Linked("a", ON), Linked("b", OFF), Linked("c", None)], [Linked("a", ON)]]
    assert told(caplog, steps, on_here=False) == [("a", "INFO")]
    assert "is off here and on at the server" in caplog.text
