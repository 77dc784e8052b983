"""What to do about each reason that a dial or a link can fail for: two complete tables."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.errors import DialFailure, LinkStage

DIAL_ADVICE: Mapping[DialFailure, str] = {
    DialFailure.REFUSED: "see that the target listens on that port, on the address that was"
    " dialed and not only on loopback",
    DialFailure.TIMED_OUT: "see whether a firewall or security group between agent and target drops"
    " packets, and whether the target is overloaded",
    DialFailure.UNREACHABLE: "see the routes of the agent's host to the target's network, and its"
    " own firewall's verdicts",
    DialFailure.UNRESOLVED: "see whether the agent's host resolves the name (DNS policy of its pod,"
    " --host-alias)",
    DialFailure.DENIED: "see --policy-file (isthmus policy test) and --allowed-destination for who"
    " may reach the target, and --endpoint-deny and --endpoint-allow of agents",
    DialFailure.NO_AGENT: "see that an agent is linked and fits the target: --proxy-strategies,"
    " --agent-identifiers, --agent-network",
    DialFailure.AGENT_LOST: "see why links end (link-failures), and whether agents restart or run"
    " out of memory",
    DialFailure.TOO_MANY: "raise the limit of open files of the program (LimitNOFILE=), or run more"
    " agents",
    DialFailure.INTERNAL: "see the program's log at that time (isthmus support-bundle), and report"
    " it",
}

LINK_ADVICE: Mapping[LinkStage, str] = {
    LinkStage.CONNECT: "see that the server's agent port is open to the agent: names, routes,"
    " firewalls, HTTPS_PROXY (isthmus doctor agent …)",
    LinkStage.TLS: "see the certificates of both ends: the same authorities, names, dates"
    " (isthmus doctor on both sides), and middle boxes that end TLS",
    LinkStage.TIMED_OUT: "see whether something between the two accepts connections and passes"
    " nothing on, and whether the server is overloaded",
    LinkStage.PROTOCOL: "see that what answers at the agent port is a connectivity server, and that"
    " --link is the same at both ends",
    LinkStage.REFUSED: "see the server's log for why: the token or its audience, the identity and"
    " --agent-identity-binding, an agent id in use",
    LinkStage.LOST: "see whether load balancers or NAT drop idle connections (--keepalive-time),"
    " and whether the other end restarts",
}
