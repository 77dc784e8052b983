"""The findings of ``isthmus bootstrap check``, as values, and what each finding means.

The chain from a node to kube-apiserver has many links, and a broken one shows only as a reset or a
timeout. Each function here judges one link from what check.py saw, and gives advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from isthmus.frame.finding import CheckState
from isthmus.values import HostPort

_SOON = timedelta(days=30)
_MOST_NAMES = 8


class StepName(Enum):
    """The steps in order: each comes after those that it needs."""

    KUBECONFIG = "kubeconfig"
    AGENT = "agent"
    GATE = "gate"
    TARGET = "target"
    ADDRESS = "address"
    RULE = "rule"
    LINK = "link"
    FEATURE = "feature"
    LISTENER = "listener"
    DESTINATION = "destination"
    CERTIFICATE = "certificate"
    NAME = "name"
    EXPIRY = "expiry"
    API = "api"
    ENDPOINTS = "endpoints"


#: The steps that must not have failed or been skipped for a step to be worth checking.
NEEDS: Mapping[StepName, tuple[StepName, ...]] = {
    StepName.GATE: (StepName.AGENT,),
    StepName.TARGET: (StepName.AGENT, StepName.GATE),
    StepName.RULE: (StepName.ADDRESS,),
    StepName.LINK: (StepName.AGENT,),
    StepName.FEATURE: (StepName.LINK, StepName.GATE),
    StepName.LISTENER: (StepName.ADDRESS,),
    StepName.DESTINATION: (StepName.LISTENER,),
    StepName.CERTIFICATE: (StepName.DESTINATION,),
    StepName.NAME: (StepName.CERTIFICATE,),
    StepName.EXPIRY: (StepName.CERTIFICATE,),
    StepName.API: (StepName.CERTIFICATE,),
    StepName.ENDPOINTS: (StepName.API,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStep:
    """What was found, and what to do about it, if anything."""

    name: StepName
    state: CheckState
    found: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        """As JSON takes it."""
        return {
            "step": self.name.value,
            "state": self.state.value,
            "found": self.found,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Every step, in order."""

    steps: tuple[CheckStep, ...]

    @property
    def failed(self) -> tuple[CheckStep, ...]:
        """The steps that failed; the user begins with the first."""
        return tuple(step for step in self.steps if step.state is CheckState.FAILED)

    def to_json(self) -> dict[str, object]:
        """As JSON takes it."""
        first = self.failed[:1]
        return {
            "kind": "BootstrapReport",
            "ok": not first,
            "failed": first[0].name.value if first else None,
            "steps": [step.to_json() for step in self.steps],
        }


def skipped_for(name: StepName, before: Mapping[StepName, CheckStep]) -> CheckStep | None:
    """The step as skipped, if a step that it needs has failed or was skipped."""
    for need in NEEDS.get(name, ()):
        if need in before and before[need].state in (CheckState.FAILED, CheckState.SKIPPED):
            return CheckStep(
                name=name, state=CheckState.SKIPPED, found=f"not checked: {need.value} first"
            )
    return None


def ok(name: StepName, found: str) -> CheckStep:
    """All is well."""
    return CheckStep(name=name, state=CheckState.OK, found=found)


def failed(name: StepName, found: str, advice: str) -> CheckStep:
    """The chain breaks here."""
    return CheckStep(name=name, state=CheckState.FAILED, found=found, advice=advice)


def warning(name: StepName, found: str, advice: str) -> CheckStep:
    """The step works, but is probably not configured as intended."""
    return CheckStep(name=name, state=CheckState.WARNING, found=found, advice=advice)


# The node.


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressSeen:
    """An address on an interface. ``guarded`` is None if firewall rules cannot be read."""

    interface: str
    ours: bool
    ruled: bool
    guarded: bool | None


def judge_address(address: str, seen: AddressSeen | None) -> CheckStep:
    """Is the address on the node, and did Isthmus put it there?"""
    name = StepName.ADDRESS
    if seen is None:
        return failed(
            name,
            f"no interface of this node has {address}",
            f"run isthmus agent setup-interface --bind-address={address} as root, or give the agent"
            " CAP_NET_ADMIN",
        )
    if not seen.ours:
        return warning(
            name,
            f"{address} is on {seen.interface}, and isthmus did not put it there",
            "if this is an address of the node itself, choose another --bind-address",
        )
    return ok(name, f"{address} is on {seen.interface}")


def judge_rule(address: str, seen: AddressSeen) -> CheckStep:
    """Does a rule keep other machines from the address?"""
    name = StepName.RULE
    if seen.guarded is False and seen.ruled:
        return failed(
            name,
            f"the rule that keeps other machines from {address} is gone",
            f"run isthmus agent setup-interface --bind-address={address} again, and find out what"
            " flushes the firewall",
        )
    if seen.guarded or seen.ruled:
        known = "" if seen.guarded else ", as the address is marked; run as root to look"
        return ok(name, f"packets from uplinks are dropped{known}")
    return warning(
        name,
        f"no rule of isthmus keeps other machines from {address}",
        "check that your own firewall does (--uplink-interface=none)",
    )


# The agent, from its snapshot.


def judge_gate(snapshot: Mapping[str, Any], gate: str) -> CheckStep:
    """Is the feature on at the agent?"""
    on = {each["name"] for each in snapshot.get("featureGates", ()) if each["enabled"]}
    if gate in on:
        return ok(StepName.GATE, f"{gate} is on at the agent")
    return failed(
        StepName.GATE,
        f"{gate} is off at the agent",
        f"start the agent with --feature-gates={gate}=true",
    )


def judge_target(snapshot: Mapping[str, Any], at: HostPort) -> CheckStep:
    """Does the agent forward this address and port, and where to?"""
    name, traffic = StepName.TARGET, snapshot.get("nodeTraffic")
    wanted = f"--bind-address={at.host} --target={at.port}:HOST:PORT"
    if traffic is None:
        return failed(
            name, "the agent takes no connections from its node", f"start it with {wanted}"
        )
    has = traffic.get("addresses") or [traffic["address"]]  # an older agent has one
    if at.host not in has:
        return failed(
            name,
            f"the agent's --bind-address is {' and '.join(has)}, not {at.host}",
            f"start it with {wanted}, or check the address that it has",
        )
    targets = {each["localPort"]: each["destination"] for each in traffic["targets"]}
    if at.port not in targets:
        ports = ", ".join(map(str, targets))
        return failed(name, f"the agent forwards {ports}, not {at.port}", f"start it with {wanted}")
    return ok(name, f"{at} leads to {targets[at.port]} beside the server")


def judge_link(snapshot: Mapping[str, Any]) -> CheckStep:
    """Is the agent connected?"""
    links = [each for each in snapshot.get("links", ()) if each["state"] != "greeting"]
    if links:
        named = ", ".join(f"{each['peerId']} at {each['peerAddress']}" for each in links[:3])
        return ok(StepName.LINK, f"linked to {named}")
    return failed(
        StepName.LINK,
        "the agent is linked to no server",
        "its log says why: --proxy-server-host and --proxy-server-port must be reachable from here,"
        " and the certificates of both sides must be valid",
    )


def judge_feature(snapshot: Mapping[str, Any], gate: str) -> CheckStep:
    """Does a connected server carry such connections?"""
    name = StepName.FEATURE
    servers: Sequence[Mapping[str, Any]] = (snapshot.get("nodeTraffic") or {}).get("servers", ())
    carrying = [each for each in servers if each["carries"] == "yes"]
    if carrying:
        return ok(name, f"{_ids(carrying)} carries connections of nodes")
    unknown = [each for each in servers if each["carries"] == "unknown"]
    if unknown:
        silent = all(each["silent"] for each in unknown)
        return (failed if silent else warning)(
            name,
            f"{_ids(unknown)} does not say whether it carries connections of nodes"
            + (", and did not answer one" if silent else ""),
            "konnectivity's own server does not: use a server of Isthmus",
        )
    return failed(
        name,
        f"{gate} is off at {_ids(servers) or 'every server'}",
        f"start the server with --feature-gates={gate}=true, and --allowed-destination",
    )


def _ids(servers: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(each["serverId"] for each in servers[:3])


def judge_cut(snapshot: Mapping[str, Any] | None, client: str, why: str) -> CheckStep:
    """Explain a connection that was cut before a byte came back, from what the agent recorded.

    ``client`` is the address and port of the connection, by which the agent identifies it.
    """
    name = StepName.DESTINATION
    traffic = (snapshot or {}).get("nodeTraffic") or {}
    for each in traffic.get("recentFailures", ()):
        if each["client"] == client:
            advice = _ADVICE.get(each["result"], "see the logs of agent and server")
            return failed(
                name,
                f"{each['destination']}: {each['reason']}",
                advice.format(destination=each["destination"]),
            )
    return failed(name, why, "the log of the agent says what became of the connection, if it came")


_ADVICE = {
    "denied": "start the server with --allowed-destination={destination}, exactly as --target of"
    " the agent names it",
    "failed": "the server permits it and cannot reach it: is kube-apiserver running there, and"
    " {destination} right as seen from the server?",
    "no_server": "no server is connected that carries it: see the steps link and feature",
    "unanswered": "the server does not answer: konnectivity's own never does; use one of Isthmus",
    "too_many": "too many connections wait or are open: find out which clients open them",
    "outside": "the connection came from an uplink: run this on the node itself",
    "drained": "the agent is stopping: try again",
}


# kube-apiserver.


def judge_name(asked: str, names: Sequence[str], *, matches: bool, chosen: bool) -> CheckStep:
    """Does the certificate have the name that clients expect? ``chosen``: a tls-server-name."""
    if matches:
        return ok(StepName.NAME, f"the certificate has {asked}")
    listed = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    other = "" if chosen else "; or use tls-server-name, which a kubelet forgets once it has joined"
    return failed(
        StepName.NAME,
        f"the certificate has {listed or 'no name'}, and not {asked}",
        f"add {asked} to the names of kube-apiserver's certificate (kubeadm:"
        f" apiServer.certSANs){other}",
    )


def judge_expiry(
    not_before: datetime, not_after: datetime, now: datetime, strict: str
) -> CheckStep:
    """Is the certificate valid now? ``strict``: the error of a full check, empty if it passed."""
    name = StepName.EXPIRY
    day = f"{not_after:%Y-%m-%d}"
    if now > not_after:
        return failed(name, f"the certificate expired on {day}", "renew it at the control plane")
    if now < not_before:
        return failed(
            name,
            f"the certificate is not valid before {not_before:%Y-%m-%d %H:%M} UTC",
            "check that the clock of this node is right",
        )
    if strict:
        return failed(name, strict, "renew the certificates of the control plane")
    if not_after - now < _SOON:
        return warning(name, f"the certificate expires on {day}", "renew it at the control plane")
    return ok(name, f"valid until {day}")


def judge_answer(status: int, version: str, is_status: bool) -> CheckStep:
    """Does kube-apiserver answer? A refusal is fine: only kube-apiserver refuses in this form."""
    name = StepName.API
    if status == 200 and version:
        return ok(name, f"kube-apiserver {version} answers")
    if status in (401, 403) and is_status:
        return ok(name, f"kube-apiserver answers, with {status}")
    if status >= 500:
        return failed(
            name, f"the answer is {status}", "kube-apiserver is unhealthy: see its log and /readyz"
        )
    return failed(
        name,
        f"the answer to /version is {status}, and not that of kube-apiserver",
        "check where --target of the agent leads",
    )


def judge_endpoints(at: HostPort, found: Sequence[HostPort]) -> CheckStep:
    """Does the kubernetes Service lead pods to the agent?"""
    if list(found) == [at]:
        return ok(StepName.ENDPOINTS, f"the kubernetes Service leads to {at}")
    listed = ", ".join(map(str, found)) or "nowhere"
    return failed(
        StepName.ENDPOINTS,
        f"the kubernetes Service leads to {listed}, not to {at}",
        f"start kube-apiserver with --advertise-address={at.host} and --secure-port={at.port}; see"
        " isthmus bootstrap apiserver",
    )
