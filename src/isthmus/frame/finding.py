"""What the doctor finds, as values: one finding per thing that was looked at.

Every check has a name here, in the order they are shown, a group, and a line that says what it
finds; docs/how-to/doctor.md has its table from these. For each reason that a dial or a link can
fail for there is advice, in two complete tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from isthmus.errors import DialFailure, LinkStage


class CheckState(Enum):
    """How a step came out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckId(Enum):
    """The checks, in the order they are shown: what others stand on comes first."""

    RUNNING = "running"
    CONFIGURATION = "configuration"
    FILES = "files"
    MODES = "file-modes"
    KEY_PAIR = "key-pair"
    CHAIN = "certificate-chain"
    NAMES = "certificate-names"
    USAGE = "certificate-usage"
    EXPIRY = "certificate-expiry"
    ROLES = "certificate-roles"
    CLOCK = "clock"
    PORTS = "ports"
    SOCKETS = "unix-sockets"
    PROXY = "proxy-environment"
    DNS = "names"
    ROUTE = "route"
    MTU = "mtu"
    RP_FILTER = "rp-filter"
    CONNECT = "connect"
    TLS = "tls"
    PEER_CERTIFICATE = "peer-certificate"
    ALPN = "alpn"
    ANSWER = "answer"
    READINESS = "readiness"
    LINKS = "links"
    VERSIONS = "versions"
    SERVER_COUNT = "server-count"
    TARGET = "target"
    KUBE_API = "kubernetes-api"
    PERMISSIONS = "kubernetes-permissions"
    BIND_ADDRESS = "bind-address"
    BIND_RULE = "bind-rule"
    TOOLS = "firewall-tools"
    FORWARDING = "forwarding"
    LOCALNET = "route-localnet"
    CONNTRACK = "conntrack"
    DESCRIPTORS = "descriptors"
    MEMORY = "memory"
    LOOP = "event-loop"
    LINK_FAILURES = "link-failures"
    DIAL_FAILURES = "dial-failures"


#: The checks by group, with what each finds: a noun for the table of the page.
CHECKS: Mapping[str, Mapping[CheckId, str]] = {
    "programs": {
        CheckId.RUNNING: "admin ports that do not answer, or want a token or a certificate",
    },
    "configuration": {
        CheckId.CONFIGURATION: "flags that contradict each other, or that are probably a mistake",
    },
    "files": {
        CheckId.FILES: "files that are missing, unreadable, empty, or not PEM",
        CheckId.MODES: "keys, tokens and passwords that everyone on the machine can read",
    },
    "certificates": {
        CheckId.KEY_PAIR: "a key that does not belong to its certificate, or needs a passphrase",
        CheckId.CHAIN: "certificates that no configured CA has signed",
        CheckId.NAMES: "a server certificate without the names and addresses that agents dial",
        CheckId.USAGE: "a certificate that is not valid for a TLS server, or client",
        CheckId.EXPIRY: "certificates that expire soon, have expired, or are not valid yet",
        CheckId.ROLES: "one CA for agents and clients, and no names that tell them apart",
        CheckId.CLOCK: "a clock that is more than 5 s off the Kubernetes API's",
    },
    "ports and sockets": {
        CheckId.PORTS: "ports that another process has, that need a privilege, or that are closed",
        CheckId.SOCKETS: "UNIX sockets: paths too long, directories missing or open to everyone",
    },
    "network": {
        CheckId.PROXY: "unreadable proxy variables, or ones that send local addresses to a proxy",
        CheckId.DNS: "names that do not resolve, or resolve slowly",
        CheckId.ROUTE: "addresses of peers that no route leads to, or interfaces that are down",
        CheckId.MTU: "a small MTU on the way to a peer",
        CheckId.RP_FILTER: "strict reverse path filtering on a host with several uplinks",
    },
    "peers": {
        CheckId.CONNECT: "peers that refuse, or do not answer at all: firewalls",
        CheckId.TLS: "peers that do not speak TLS, or no common version of it",
        CheckId.PEER_CERTIFICATE: "untrusted or expired certificates of peers, or for another name",
        CheckId.ALPN: "middle boxes that end TLS, and peers that speak neither isthmus/1 nor h2",
        CheckId.ANSWER: "peers that refuse the certificate after the handshake, or never answer",
    },
    "health": {
        CheckId.READINESS: "what /readyz reports as not ready",
        CheckId.LINKS: "agents and servers without links, and links that are stuck or slow",
        CheckId.VERSIONS: "ends of different versions",
        CheckId.SERVER_COUNT: "agents that know more, or fewer, servers than there are",
        CheckId.TARGET: "the step at which a dial to --target fails",
    },
    "Kubernetes API": {
        CheckId.KUBE_API: "a kubeconfig that cannot be used, an API that does not answer",
        CheckId.PERMISSIONS: "permissions for Leases, TokenReviews and what a node proxy watches",
    },
    "kernel": {
        CheckId.BIND_ADDRESS: "a --bind-address that no interface has, or that is the node's own",
        CheckId.BIND_RULE: "a missing firewall rule of --bind-address",
        CheckId.TOOLS: "iptables missing or too old for --proxy-mode, an nft that crashes",
        CheckId.FORWARDING: "a node that does not forward packets",
        CheckId.LOCALNET: "node ports on localhost that cannot work (route_localnet)",
        CheckId.CONNTRACK: "a connection tracking table that is full, or nearly",
    },
    "resources": {
        CheckId.DESCRIPTORS: "too few file descriptors, or nearly all in use",
        CheckId.MEMORY: "a memory limit that is small, nearly reached, or was hit",
        CheckId.LOOP: "an event loop that runs late: too little CPU",
    },
    "failures so far": {
        CheckId.LINK_FAILURES: "links that failed, by reason, with what to do for each",
        CheckId.DIAL_FAILURES: "dials that failed, by reason, with what to do for each",
    },
}
FINDS: Mapping[CheckId, str] = {check: text for of in CHECKS.values() for check, text in of.items()}
GROUP_OF: Mapping[CheckId, str] = {check: group for group, of in CHECKS.items() for check in of}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    ``about`` names it, ``done`` says what the doctor did, ``seen`` what came of it, and ``todo``
    what to do, where that is anything. ``program`` is whose check it was.
    """

    check: CheckId
    state: CheckState
    about: str
    done: str
    seen: str
    todo: str = ""
    program: str = ""

    def to_json(self) -> dict[str, str]:
        """As JSON takes it."""
        return {
            "check": self.check.value,
            "state": self.state.value,
            "program": self.program,
            "about": self.about,
            "done": self.done,
            "seen": self.seen,
            "todo": self.todo,
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about one thing; its methods are the four answers."""

    check: CheckId
    about: str
    done: str

    def ok(self, seen: str) -> Finding:
        """All is well."""
        return self._found(CheckState.OK, seen)

    def warn(self, seen: str, todo: str) -> Finding:
        """It works, and may not for long, or is hardly meant."""
        return self._found(CheckState.WARNING, seen, todo)

    def fail(self, seen: str, todo: str) -> Finding:
        """This is broken."""
        return self._found(CheckState.FAILED, seen, todo)

    def skip(self, seen: str) -> Finding:
        """It could not be looked at, or there is nothing to look at; ``seen`` says why."""
        return self._found(CheckState.SKIPPED, seen)

    def _found(self, state: CheckState, seen: str, todo: str = "") -> Finding:
        return Finding(
            check=self.check,
            state=state,
            about=self.about,
            done=self.done,
            # The sentence of an error may begin with the flag and the file, which are said already.
            seen=seen.removeprefix("cannot read ").removeprefix(f"{self.about}: "),
            todo=todo,
        )


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
