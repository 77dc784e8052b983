"""What an agent says when a feature gate is on at one side of a link only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from isthmus.frame.gate_state import GateState, Known, state_of
from isthmus.links.agent_side import ServerLink
from isthmus.logs import log
from isthmus.settings.gates import CLUSTER_TO_MASTER

_log = logging.getLogger("isthmus.agent")
_GATE = f"the feature gate {CLUSTER_TO_MASTER}"
_SAID = {
    GateState.HERE_ONLY: (
        logging.WARNING,
        f"{_GATE} is on here and off at the server: it carries no connections from this node",
    ),
    # Most agents need none of it: not all that a server can do is for each of them.
    GateState.THERE_ONLY: (
        logging.INFO,
        f"{_GATE} is off here and on at the server: no connections from this node are taken",
    ),
}


class GateWatch:
    """Looks at the servers whenever one comes or goes, then calls ``then``.

    A gate that only one side has on is said once for each server and state.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_here: bool,
        links: Callable[[], Iterable[ServerLink]],
        then: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_here = on_here
        self._links = links
        self._then = then
        self._due: asyncio.Handle | None = None
        self._known = Known()

    def changed(self) -> None:
        """A server came or went: look once what is going on now is over."""
        if self._due is None:
            self._due = self._loop.call_soon(self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._due is not None:
            self._due.cancel()

    def _look(self) -> None:
        self._due = None
        for link in list(self._links()):
            self._compare(link)
        self._then()

    def _compare(self, link: ServerLink) -> None:
        state = state_of(here=self._on_here, there=link.features)
        # Whether konnectivity's own carries connections is seen when it is asked.
        if state is not GateState.SILENT and self._known.is_news(link.server_id, state):
            level, sentence = _SAID[state]
            log(_log, level, sentence, server_id=link.server_id, address=link.peer_address)
