"""What a server says when an agent links, and the gate of KEP-2025 is on at one side only."""

from __future__ import annotations

import logging

from isthmus.frame.gate_state import GateState, Known, state_of
from isthmus.links.server_side import AgentLink
from isthmus.logs import log
from isthmus.settings.gates import CLUSTER_TO_MASTER, FLAG

_log = logging.getLogger("isthmus.server")

_SAID = {
    GateState.THERE_ONLY: (
        logging.WARNING,
        f"{CLUSTER_TO_MASTER} is on at this agent and off at this server: whatever its nodes ask"
        f" for is denied until {FLAG}={CLUSTER_TO_MASTER}=true is set here, too",
    ),
    GateState.HERE_ONLY: (
        logging.INFO,
        f"{CLUSTER_TO_MASTER} is on at this server and off at this agent: no node reaches the"
        f" control plane through it until {FLAG}={CLUSTER_TO_MASTER}=true is set there, too",
    ),
    GateState.SILENT: (
        logging.DEBUG,  # nothing is wrong with konnectivity's agents
        f"{CLUSTER_TO_MASTER} is on at this server, and this agent is konnectivity's or older than"
        " the gate: no node reaches the control plane through it",
    ),
}


class GateNotes:
    """Says it once for each agent, and again when it has become different."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._known = Known()

    def linked(self, link: AgentLink) -> None:
        """An agent has linked, for the first time or again."""
        state = state_of(here=self._enabled, there=link.features)
        if self._known.is_news(link.agent_id, state):
            level, sentence = _SAID[state]
            log(
                _log, level, sentence, agent_id=link.agent_id, link=link.id,
                address=link.peer_address,
            )  # fmt: skip
