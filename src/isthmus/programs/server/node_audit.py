"""Audit records of dials from the nodes to the control plane.

The record is frame/audit/model.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from isthmus.errors import DialFailure
from isthmus.frame.audit.model import Claimed, Record, Stage, cut, requester_of, rfc3339
from isthmus.links.server_side import AgentLink


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """What an agent asked for, on behalf of whom, and since when (``time.monotonic``)."""

    connection_id: str
    link: AgentLink
    claimed_client: str
    destination: str
    started_at: float


def node_record(
    request: NodeRequest,
    stage: Stage,
    *,
    server_id: str,
    rule: str = "",
    address: str = "",
    failure: DialFailure | None = None,
    reason: str = "",
) -> Record:
    """Describe what became of a request; of a tunnel this is its begin.

    The agent proved who it is and is the requester. Who connected there is what the agent says:
    that is never believed, and stands apart.
    """
    now, link = time.time(), request.link
    since = time.monotonic() - request.started_at
    begins = stage is Stage.BEGIN
    claimed = request.claimed_client
    return Record(
        time=rfc3339(now),
        stage=stage,
        connection_id=request.connection_id,
        server_id=server_id,
        frontend="agent",
        client=link.peer_address,
        requester=requester_of(link.identity),
        claimed=Claimed(believed=False, client=cut(claimed)) if claimed else None,
        destination=cut(request.destination),
        address=address,
        agent_id=link.agent_id,
        link_id=link.id,
        decision="deny" if failure is DialFailure.DENIED else "allow",
        rule=rule,
        start_time=rfc3339(now - since),
        end_time="" if begins else rfc3339(now),
        duration_s=None if begins else round(since, 6),
        failure=failure.value if failure is not None else "",
        reason=cut(reason),
    )
