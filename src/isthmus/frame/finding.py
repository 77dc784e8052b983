"""The doctor's findings as values: one finding for each thing it checks.

Every check has a name here, in display order, a group, and a line about what it finds; the table
in docs/how-to/doctor.md is made from these. Two complete tables have advice for every reason a
dial or a link can fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from isthmus.errors import DialFailure, LinkStage


class CheckState(Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckId(Enum):
    """The checks in display order: those that others depend on come first."""

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


#: The checks by group, with what each finds, as a noun phrase for the documentation.
CHECKS: Mapping[str, Mapping[CheckId, str]] = {
    "programs": {
        CheckId.RUNNING: "admin ports that do not answer, or require a token or a certificate",
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
    """The result of one check of one thing.

    ``about`` names the thing, ``done`` is what the doctor did, ``seen`` the result, and ``todo``
    the next step, if any. ``program`` is the program it belongs to.
    """

    check: CheckId
    state: CheckState
    about: str
    done: str
    seen: str
    todo: str = ""
    program: str = ""

    def to_json(self) -> dict[str, str]:
        """As a value for JSON."""
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
    """A check of one thing; the methods make its four possible findings."""

    check: CheckId
    about: str
    done: str

    def ok(self, seen: str) -> Finding:
        """The check passed."""
        return self._found(CheckState.OK, seen)

    def warn(self, seen: str, todo: str) -> Finding:
        """It works, but may fail soon, or is probably a mistake."""
        return self._found(CheckState.WARNING, seen, todo)

    def fail(self, seen: str, todo: str) -> Finding:
        """The check failed."""
        return self._found(CheckState.FAILED, seen, todo)

    def skip(self, seen: str) -> Finding:
        """It could not be checked, or there is nothing to check; ``seen`` has the reason."""
        return self._found(CheckState.SKIPPED, seen)

    def _found(self, state: CheckState, seen: str, todo: str = "") -> Finding:
        return Finding(
            check=self.check,
            state=state,
            about=self.about,
            done=self.done,
            # The message of an error may begin with the flag and the file, which the finding
            # already names.
            seen=seen.removeprefix("cannot read ").removeprefix(f"{self.about}: "),
            todo=todo,
        )


DIAL_ADVICE: Mapping[DialFailure, str] = {
    DialFailure.REFUSED: "check that the target listens on that port, at the dialed address and"
    " not only on loopback",
    DialFailure.TIMED_OUT: "check whether a firewall or security group between agent and target"
    " drops packets, and whether the target is overloaded",
    DialFailure.UNREACHABLE: "check the routes from the agent's host to the target's network, and"
    " the host's firewall",
    DialFailure.UNRESOLVED: "check whether the agent's host resolves the name (DNS policy of its"
    " pod,"
    " --host-alias)",
    DialFailure.DENIED: "check --policy-file (isthmus policy test) and --allowed-destination, and"
    " --endpoint-deny and --endpoint-allow of the agents",
    DialFailure.NO_AGENT: "check that an agent is linked and matches the target:"
    " --proxy-strategies,"
    " --agent-identifiers, --agent-network",
    DialFailure.AGENT_LOST: "check why links end (link-failures), and whether agents restart or"
    " run out of memory",
    DialFailure.TOO_MANY: "raise the limit of open files of the program (LimitNOFILE=), or run more"
    " agents",
    DialFailure.INTERNAL: "see the program's log at that time (isthmus support-bundle), and report"
    " it",
}

LINK_ADVICE: Mapping[LinkStage, str] = {
    LinkStage.CONNECT: "check that the agent can reach the server's agent port: names, routes,"
    " firewalls, HTTPS_PROXY (isthmus doctor agent …)",
    LinkStage.TLS: "check the certificates of both ends (authorities, names, dates; isthmus"
    " doctor on both sides), and middleboxes that terminate TLS",
    LinkStage.TIMED_OUT: "check whether something between the two accepts connections without"
    " forwarding data, and whether the server is overloaded",
    LinkStage.PROTOCOL: "check that the agent port belongs to a connectivity server, and that"
    " --link is the same at both ends",
    LinkStage.REFUSED: "see the server's log for the reason: the token or its audience, the"
    " identity and"
    " --agent-identity-binding, an agent id in use",
    LinkStage.LOST: "check whether load balancers or NAT drop idle connections"
    " (--keepalive-time), and whether the other end restarts",
}
