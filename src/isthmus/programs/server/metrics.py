"""The metrics of a server and their names.

Names that start with ``konnectivity_network_proxy_`` mean what they mean in konnectivity, so that
existing dashboards continue to work; konnectivity's names without a meaning here are not
shown. Ours start with ``isthmus_``; those of all programs are in program.py.
reference.py generates docs/reference/metrics.md from this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from isthmus.dial.rules_policy import Decision
from isthmus.dial.rules_shares import Limit
from isthmus.errors import DialFailure
from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import (
    Family,
    Histogram,
    Samples,
    by_enum,
    by_name,
    counted,
    counter,
    gauge,
    histogram,
    one,
)
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.frame.revoking import RevocationMetrics
from isthmus.net.rules_slots import AdmissionRefusal
from isthmus.tunnel.end import Ending


class Relayed(Enum):
    """The result of a relayed dial."""

    JOINED = "an agent of the other server reached the target"
    NO_AGENT = "the other server had no agent for it, or lost it"
    FAILED = "the agent of the other server could not reach the target"
    DENIED = "the policy of the server with the agents does not allow it"
    REFUSED = "the dial cannot be relayed"


#: The other failures are those of the agent.
RESULTS: dict[DialFailure | None, Relayed] = {
    None: Relayed.JOINED,
    DialFailure.NO_AGENT: Relayed.NO_AGENT,
    DialFailure.AGENT_LOST: Relayed.NO_AGENT,
    DialFailure.DENIED: Relayed.DENIED,
}


class Retried(Enum):
    """When the link of a repeated dial was lost."""

    BEFORE_ANSWER = "before the answer"
    BEFORE_FIRST_BYTE = "after the answer, before any byte had flowed"


class RelayMetrics:
    """The relay metrics, part of ServerMetrics."""

    def __init__(self) -> None:
        self.sent = dict.fromkeys(Relayed, 0)  # sent to other servers
        self.taken = dict.fromkeys(Relayed, 0)  # received from other servers
        self.retries = dict.fromkeys(Retried, 0)
        #: Links to and from other servers; replaced if there are any.
        self.links: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def answered(self, relay: str, failure: DialFailure | None, in_vain: int) -> None:
        """Count a finished dial: whether another server helped, and how many could not."""
        if in_vain:
            self.sent[Relayed.NO_AGENT] += in_vain
        if relay:
            self.sent[RESULTS.get(failure, Relayed.FAILED)] += 1

    def retried(self, when: Retried) -> None:
        """Count a dial whose link was lost and that is repeated."""
        self.retries[when] += 1

    def _dials(self) -> Samples:
        found = {"sent": self.sent, "taken": self.taken}
        return [
            ((direction, result.name.lower()), number)
            for direction, counts in found.items()
            for result, number in counts.items()
        ]

    def _links(self) -> Samples:
        to, from_ = self.links()
        return [(("sent",), to), (("taken",), from_)]

    def families(self) -> list[Family]:
        """The metric families."""
        return [
            counter(
                "isthmus_server_relayed_dials_total",
                "Dials relayed to other servers (sent) and from other servers (taken), by result.",
                self._dials,
                ("direction", "result"),
            ),
            gauge(
                "isthmus_server_relay_links",
                "Relay links to other servers (sent) and from other servers (taken).",
                self._links,
                ("direction",),
                merge=Merge.SUM,
            ),
            counter(
                "isthmus_server_dial_retries_total",
                "Dials retried on another agent because their link was lost, by time of the loss.",
                by_enum(self.retries),
                ("when",),
            ),
        ]


SERVER_DIAL_BUCKETS_S = (0.000001, 0.00001, 0.0001, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5)
CONNECTION_BUCKETS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)


#: Limits label values: a reloaded policy may have new rule names each time.
MOST_RULES = 200


class TlsPort(Enum):
    """The server's TLS ports."""

    AGENT = "agent"
    FRONTEND = "frontend"
    ADMIN = "admin"


class TlsRefusal(Enum):
    """Why the server refused a TLS handshake."""

    NO_CERTIFICATE = "the peer sent no certificate"
    BAD_CERTIFICATE = "the peer's certificate is not from a trusted authority, or has expired"
    REVOKED = "the peer's certificate is revoked"
    NOT_TLS = "the peer does not speak TLS"
    OTHER = "the handshake failed for another reason"


class HandOn(Enum):
    """The result of a request for another server."""

    JOINED = "joined to the requested server"
    UNREACHED = "that server's address could not be reached"
    LEFT = "the agent left while the server was dialed"
    TOO_MANY = "too many others are waiting for an answer or being passed"
    LOOP = "that server's address leads back to this one"


class ResumeRefusal(Enum):
    """Why a connection did not resume a link."""

    UNKNOWN = "no such link"
    TOKEN = "the token is not that of the link"
    IDENTITY = "the agent is not the one whose link it is"
    ADMISSION = "the agent is not admitted any more"
    LATER = "the agent cannot be admitted now"
    OFFSET = "the link cannot go on from there"


class GoDialFailure(Enum):
    """The reasons of konnectivity's dial_failure_count that can occur here."""

    NO_AGENT = "no_agent"
    ERROR_RESPONSE = "error_response"
    BACKEND_CLOSE = "backend_close"
    BACKEND_DIAL_TIMEOUT = "backend_dial_timeout"
    FRONTEND_CLOSE = "frontend_close"


# konnectivity has neither policy nor limits: those dials count as answered with an error. A timeout
# of the agent is an answer too; see ServerMetrics.dial_failed() for the other kind.
GO_DIAL_FAILURE = {
    DialFailure.REFUSED: GoDialFailure.ERROR_RESPONSE,
    DialFailure.TIMED_OUT: GoDialFailure.ERROR_RESPONSE,
    DialFailure.UNREACHABLE: GoDialFailure.ERROR_RESPONSE,
    DialFailure.UNRESOLVED: GoDialFailure.ERROR_RESPONSE,
    DialFailure.DENIED: GoDialFailure.ERROR_RESPONSE,
    DialFailure.NO_AGENT: GoDialFailure.NO_AGENT,
    DialFailure.AGENT_LOST: GoDialFailure.BACKEND_CLOSE,
    DialFailure.TOO_MANY: GoDialFailure.ERROR_RESPONSE,
    DialFailure.INTERNAL: GoDialFailure.ERROR_RESPONSE,
}

# Every status with which a frontend refuses a request before a dial; others count as "other".
REFUSAL_STATUSES = ("400", "403", "405", "408", "413", "414", "431", "501", "505", "other")


#: The gRPC methods of konnectivity, and the packets of their calls.
GRPC_SEGMENTS = {"Proxy": "from_client", "Connect": "from_agent"}


class ServerMetrics(ProgramMetrics):
    """The metrics of a server."""

    program = "server"
    label_values = (
        ("`reason` of `tls_refused_total`", TlsRefusal),
        ("`reason` of the server's `connections_refused_total`", AdmissionRefusal),
        ("`result` of `agent_connections_handed_on_total`", HandOn),
        ("`reason` of `resumes_refused_total`", ResumeRefusal),
        ("`result` of `relayed_dials_total`", Relayed),
        ("`when` of `dial_retries_total`", Retried),
    )

    def __init__(self) -> None:
        self.resumes_refused = dict.fromkeys(ResumeRefusal, 0)
        self.connections = Histogram(CONNECTION_BUCKETS_S)
        self.go_dial_failures = dict.fromkeys(GoDialFailure, 0)
        self.tls_refusals = {(port, why): 0 for port in TlsPort for why in TlsRefusal}
        self.connections_refused = {
            (port, why): 0 for port in (TlsPort.AGENT, TlsPort.FRONTEND) for why in AdmissionRefusal
        }
        self.requests_refused = dict.fromkeys(REFUSAL_STATUSES, 0)
        self.stream_errors: dict[tuple[str, str], int] = {}
        self.hand_ons = dict.fromkeys(HandOn, 0)
        #: Records written, records dropped, failed writes; replaced if there is an audit log.
        self.audit_counts: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)
        self.audit_failing: Callable[[], bool] = lambda: False
        self.policy_denials: dict[str, int] = {}
        self.policy_reload_failures = 0
        self.revocation = RevocationMetrics()
        self.share_refusals: dict[tuple[str, Limit], int] = {}
        self.share_waits: dict[str, int] = {}
        #: Open tunnels by share; replaced if there are shares.
        self.share_tunnels: Callable[[], Mapping[str, float]] = dict
        self.node_dials = Histogram(SERVER_DIAL_BUCKETS_S)
        self.node_dial_failures = dict.fromkeys(DialFailure, 0)
        self.relays = RelayMetrics()
        self._grpc_methods: set[str] = set()
        super().__init__(SERVER_DIAL_BUCKETS_S)

    def dial_failed(self, failure: DialFailure, seconds: float, *, answered: bool = True) -> None:
        """Count a dial that failed; ``answered``: an agent said so, not our own deadline."""
        super().dial_failed(failure, seconds)
        if failure is DialFailure.TIMED_OUT and not answered:
            self.go_dial_failures[GoDialFailure.BACKEND_DIAL_TIMEOUT] += 1
        else:
            self.go_dial_failures[GO_DIAL_FAILURE[failure]] += 1

    def dial_abandoned(self) -> None:
        """Count a dial whose client went away before the answer."""
        self.go_dial_failures[GoDialFailure.FRONTEND_CLOSE] += 1

    def tunnel_ended(
        self, ending: Ending, seconds: float, bytes_to_target: int, bytes_to_client: int
    ) -> None:
        """Count the end of a tunnel, how long it lived and what it carried."""
        super().tunnel_ended(ending, seconds, bytes_to_target, bytes_to_client)
        self.connections.observe(seconds)

    def tls_refused(self, port: TlsPort, why: TlsRefusal) -> None:
        """Count a TLS handshake that we refused."""
        self.tls_refusals[port, why] += 1

    def connection_refused(self, port: TlsPort, why: AdmissionRefusal) -> None:
        """Count a connection above the limits."""
        self.connections_refused[port, why] += 1

    def request_refused(self, status: int) -> None:
        """Count a request that a frontend answered with an error before there was a dial."""
        label = str(status)
        self.requests_refused[label if label in self.requests_refused else "other"] += 1

    def handed_on(self, result: HandOn) -> None:
        """Count a connection of an agent that requested another server."""
        self.hand_ons[result] += 1

    def node_dial_succeeded(self, seconds: float, connection_id: str = "") -> None:
        """Count a dial for a node that became a tunnel."""
        self.node_dials.observe(seconds, connection_id)

    def node_dial_failed(self, failure: DialFailure) -> None:
        """Count a dial for a node that was denied or failed."""
        self.node_dial_failures[failure] += 1

    def policy_denied(self, decision: Decision) -> None:
        """Count a dial that a rule, or the networks, denied."""
        rule = decision.rule
        if rule not in self.policy_denials and len(self.policy_denials) >= MOST_RULES:
            rule = "(other)"
        self.policy_denials[rule] = self.policy_denials.get(rule, 0) + 1

    def share_refused(self, share: str, limit: Limit) -> None:
        """Count a dial beyond its share."""
        known = (share, limit) in self.share_refusals or len(self.share_refusals) < MOST_RULES
        key = (share if known else "(other)", limit)
        self.share_refusals[key] = self.share_refusals.get(key, 0) + 1

    def share_waited(self, share: str) -> None:
        """Count a pause of a tunnel until its share has bytes again."""
        known = share in self.share_waits or len(self.share_waits) < MOST_RULES
        key = share if known else "(other)"
        self.share_waits[key] = self.share_waits.get(key, 0) + 1

    def policy_reload_failed(self) -> None:
        """Count a changed policy file that is invalid."""
        self.policy_reload_failures += 1

    def stream_failed(self, segment: str, code: str) -> None:
        """Count a gRPC call that ended with an error."""
        key = (segment, code)
        self.stream_errors[key] = self.stream_errors.get(key, 0) + 1

    def _grpc_calls(self) -> Samples:
        # After its first call a method is always shown, with 0 if none is open; see
        # counters.counted().
        calls, packets = self.gauges.grpc_calls(), self.gauges.packets()
        self._grpc_methods.update(
            method
            for method, segment in GRPC_SEGMENTS.items()
            if calls.get(method) or any(packets.get(segment, ()))
        )
        return [((method,), calls.get(method, 0)) for method in sorted(self._grpc_methods)]

    def _stream_errors(self) -> Samples:
        # A call ends between packets: there is no packet type.
        return [
            ((segment, code, "Unknown"), number)
            for (segment, code), number in self.stream_errors.items()
        ]

    def _connections_refused(self) -> Samples:
        return [
            ((port.value, why.name.lower()), number)
            for (port, why), number in self.connections_refused.items()
        ]

    def _tls_refusals(self) -> Samples:
        return [
            ((port.value, why.name.lower()), number)
            for (port, why), number in self.tls_refusals.items()
        ]

    def _audit_families(self) -> list[Family]:
        ours = "isthmus_server_audit_"
        return [
            counter(
                f"{ours}records_total",
                "Records written to the audit log.",
                one(lambda: self.audit_counts()[0]),
            ),
            counter(
                f"{ours}records_dropped_total",
                "Audit records dropped because too many were waiting to be written.",
                one(lambda: self.audit_counts()[1]),
            ),
            counter(
                f"{ours}write_errors_total",
                "Failed attempts to write the audit log.",
                one(lambda: self.audit_counts()[2]),
            ),
            gauge(
                f"{ours}failing",
                "1 while records cannot be written to the audit log.",
                one(lambda: self.audit_failing()),
                merge=Merge.MAX,
            ),
        ]

    def _node_families(self) -> list[Family]:
        # Separate from the others: konnectivity's names mean dials of kube-apiserver.
        ours, gauges = "isthmus_server_node_", self.gauges
        return [
            histogram(
                f"{ours}dial_duration_seconds",
                "Duration of successful dials from nodes to the control plane.",
                self.node_dials,
            ),
            counter(
                f"{ours}dial_failures_total",
                "Dials from nodes to the control plane that were denied or failed, by reason.",
                by_enum(self.node_dial_failures),
                ("reason",),
            ),
            gauge(
                f"{ours}pending_dials",
                "Pending dials from nodes to the control plane.",
                one(lambda: gauges.node_dials()),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}tunnels",
                "Open tunnels from nodes to the control plane.",
                one(lambda: gauges.node_tunnels()),
                merge=Merge.SUM,
            ),
        ]

    def _share_families(self) -> list[Family]:
        ours = "isthmus_server_share_"
        return [
            counter(
                f"{ours}refusals_total",
                "Dials refused because the requester's share was used up, by share and limit.",
                lambda: [
                    ((share, limit.value), number)
                    for (share, limit), number in self.share_refusals.items()
                ],
                ("share", "limit"),
            ),
            counter(
                f"{ours}waits_total",
                "Times reading from a tunnel was paused until its share had bytes again.",
                lambda: by_name(self.share_waits)(),
                ("share",),
            ),
            gauge(
                f"{ours}tunnels",
                "Pending dials and open tunnels, by share.",
                lambda: by_name(self.share_tunnels())(),
                ("share",),
                merge=Merge.SUM,
            ),
        ]

    def _own_families(self) -> list[Family]:
        return [
            *self._go_families(),
            *self._audit_families(),
            *self._node_families(),
            *self._share_families(),
            *self.relays.families(),
            *self.revocation.families("isthmus_server_"),
            counter(
                "isthmus_server_tls_refused_total",
                "TLS handshakes refused, by port and reason.",
                self._tls_refusals,
                ("port", "reason"),
            ),
            counter(
                "isthmus_server_connections_refused_total",
                "Connections refused because of a limit, by port and reason.",
                self._connections_refused,
                ("port", "reason"),
            ),
            gauge(
                "isthmus_server_open_connections",
                "Open connections, by port; limited by --max-connections.",
                lambda: by_name(self.gauges.connections())(),
                ("port",),
                merge=Merge.SUM,
            ),
            counter(
                "isthmus_server_requests_refused_total",
                "Requests refused by a frontend before a dial, by HTTP status.",
                by_name(self.requests_refused),
                ("status",),
            ),
            counter(
                "isthmus_server_resumes_refused_total",
                "Connections by which an agent wanted to resume a link and could not, by reason.",
                by_enum(self.resumes_refused),
                ("reason",),
            ),
            counter(
                "isthmus_server_agent_connections_handed_on_total",
                "Connections of agents that asked for another server, by result.",
                by_enum(self.hand_ons),
                ("result",),
            ),
            counter(
                "isthmus_server_policy_denials_total",
                "Dials denied, by the name of the rule; (default) when none matched, (network) when"
                " the destination is in no network.",
                lambda: by_name(self.policy_denials)(),
                ("rule",),
            ),
            counter(
                "isthmus_server_policy_reload_failures_total",
                "Failed reloads of changed policy files.",
                one(lambda: self.policy_reload_failures),
                merge=Merge.MAX,
            ),
            gauge(
                "isthmus_server_agent_connections_passing",
                "Connections of agents being passed to other servers; each uses two file"
                " descriptors.",
                one(lambda: self.gauges.handed_on()),
                merge=Merge.SUM,
            ),
        ]

    def _go_families(self) -> list[Family]:
        go, gauges = "konnectivity_network_proxy_server_", self.gauges
        return [
            histogram(
                f"{go}dial_duration_seconds",
                "Latency of dial to the remote endpoint in seconds",
                self.dials,
            ),
            histogram(
                f"{go}connection_duration_seconds",
                "Duration of end-to-end connections in seconds",
                self.connections,
            ),
            gauge(
                f"{go}http_connections",
                "Number of current HTTP CONNECT connections",
                one(lambda: gauges.http_connections()),
                merge=Merge.SUM,
            ),
            gauge(
                f"{go}grpc_connections",
                "Number of current grpc connections, partitioned by service method.",
                self._grpc_calls,
                ("service_method",),
                merge=Merge.SUM,
            ),
            self.packet_family(go),
            counter(
                f"{go}stream_errors_total",
                "Count of gRPC stream errors, by segment, grpc Code, packet type."
                " (example: from_agent, Code.Unavailable, DIAL_RSP)",
                self._stream_errors,
                ("segment", "code", "packet_type"),
            ),
            *self.leases.server_families(go),
            gauge(
                f"{go}ready_backend_connections",
                "Number of konnectivity agent connected to the proxy server. DEPRECATED, please"
                " use ready_backends",
                one(lambda: gauges.ready_agents()),
                merge=Merge.MAX,
            ),
            gauge(
                f"{go}ready_backends",
                "Number of konnectivity agent connected to the proxy server",
                lambda: by_name(gauges.ready_by_strategy())(),
                ("proxy_strategy",),
                merge=Merge.MAX,
            ),
            gauge(
                f"{go}pending_backend_dials",
                "Current number of pending backend dial requests",
                one(lambda: gauges.pending_dials()),
                merge=Merge.SUM,
            ),
            gauge(
                f"{go}established_connections",
                "Current number of established end-to-end connections (post-dial).",
                one(lambda: gauges.tunnels()),
                merge=Merge.SUM,
            ),
            counter(
                f"{go}dial_failure_count",
                "Number of dial failures observed. Multiple failures can occur for a single dial"
                " request.",
                counted(by_enum(self.go_dial_failures)),
                ("reason",),
            ),
        ]
