"""What a running program reports: readiness, links, versions, counts, recent failures."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from isthmus import __version__
from isthmus.errors import ConfigError, DialFailure, KubeError, LinkStage
from isthmus.frame.finding import DIAL_ADVICE, LINK_ADVICE, Asked, CheckId, Finding
from isthmus.frame.model.snapshot import LinkState
from isthmus.frame.patient import READINESS, Patient, Running
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.text.units import took
from isthmus.tools.doctor.limits import Metrics

_SLOW_S = 1.0
_MANY_SHARE = 0.05
_R = TypeVar("_R", DialFailure, LinkStage)


def _running(patient: Patient) -> Running:
    assert patient.running is not None  # by the table of looks
    return patient.running


def see_readiness(patient: Patient) -> Iterator[Finding]:
    """Read /readyz?verbose."""
    running = _running(patient)
    asked = Asked(CheckId.READINESS, "/readyz", "requested it with verbose")
    if READINESS in running.missing:
        yield asked.skip(running.missing[READINESS])
        return
    lines = [line[3:] for line in running.readiness.splitlines() if line.startswith("[-]")]
    if running.ready:
        yield asked.ok("ready")
    for line in lines or ([] if running.ready else [running.readiness.strip() or "not ready"]):
        yield asked.fail(line, "see the checks of links, names and certificates here")


def see_links(patient: Patient) -> Iterator[Finding]:
    """Check the links of the snapshot, and their pings."""
    running = _running(patient)
    links = [link for link in running.snapshot.get("links", ()) if isinstance(link, dict)]
    what = "agents" if patient.program == "server" else "servers"
    asked = Asked(CheckId.LINKS, "links", "read them in the snapshot")
    relays = [it for it in running.snapshot.get("relays", ()) if isinstance(it, dict)]
    helpers = [str(it.get("serverId")) for it in relays if it.get("agents")]
    if not links and helpers:
        yield asked.warn(
            f"none: dials are relayed through {', '.join(helpers[:3])}",
            "run isthmus doctor on the agents' machines if none connects",
        )
    elif not links:
        yield asked.fail(
            f"none: no {what} are connected",
            "run isthmus doctor on the agents' machines: the agents connect"
            if patient.program == "server"
            else "see the checks of names, connecting, TLS and certificates here, and the log",
        )
    for link in links:
        yield judge_link(link, f"link to {link.get('peerId') or '?'} at {link.get('peerAddress')}")
    for relay in relays:
        way = "to" if relay.get("direction") == "to" else "from"
        about = f"link {way} server {relay.get('serverId') or '?'} at {relay.get('address')}"
        yield judge_link(relay, about)


def judge_link(link: Mapping[str, Any], about: str) -> Finding:
    """Is a link healthy?"""
    asked = Asked(CheckId.LINKS, about, "read its state and its last ping in the snapshot")
    state, rtt = str(link.get("state")), link.get("rttSeconds")
    if state == LinkState.STUCK.value:
        return asked.fail(
            "stuck: what is sent does not arrive",
            "check whether the machine at its other end is alive, and the path's MTU",
        )
    if state in (LinkState.GREETING.value, LinkState.DRAINING.value):
        return asked.warn(f"it is {state}", "look again in a moment")
    if not isinstance(rtt, int | float):
        return asked.ok(f"{state}, not pinged yet")
    seen = f"{state}, answers pings in {took(rtt)}"
    if rtt > _SLOW_S:
        return asked.warn(seen, "check the network path between the two, and the CPU of both ends")
    return asked.ok(seen)


def see_versions(patient: Patient) -> Iterator[Finding]:
    """Compare this doctor's version and those of both ends, if the snapshot has them."""
    snapshot = _running(patient).snapshot
    own = str(snapshot.get("version", ""))
    asked = Asked(CheckId.VERSIONS, patient.program, "compared its version with this doctor's")
    if own == __version__:
        yield asked.ok(own)
    else:
        yield asked.warn(
            f"it runs {own or 'an unknown version'}, installed is {__version__}", "restart it"
        )
    agents = [agent for agent in snapshot.get("agents", ()) if isinstance(agent, dict)]
    if agents:
        counts = Counter(str(agent.get("version") or "not told") for agent in agents)
        yield judge_peers("agents", patient.program, own, counts)
    elif links := [link for link in snapshot.get("links", ()) if isinstance(link, dict)]:
        counts = Counter(str(link.get("peerVersion") or "not told") for link in links)
        yield judge_peers("servers", patient.program, own, counts)


def judge_peers(peers: str, program: str, own: str, counts: Mapping[str, int]) -> Finding:
    """Do the programs at the other ends have the same version?"""
    asked = Asked(CheckId.VERSIONS, peers, "read their versions in the snapshot")
    said = ", ".join(f"{count} of {version}" for version, count in sorted(counts.items()))
    others = counts.keys() - {own, "not told"}
    if not others:
        return asked.ok(said)
    return asked.warn(
        f"{said}; the {program} is {own}",
        "update them: servers first, then agents; neighbouring versions work together",
    )


def see_server_count(patient: Patient) -> Iterator[Finding]:
    """Compare the configured number of servers with links and Leases."""
    settings, snapshot = patient.settings, _running(patient).snapshot
    leases = _leases(patient)
    match settings:
        case AgentSettings():
            peers = {link.get("peerId") for link in snapshot.get("links", ())}
            known = int(snapshot.get("knownServers") or 0)
            yield judge_known(known, len(peers), leases)
        case ServerSettings():
            asked = Asked(
                CheckId.SERVER_COUNT, "servers", "compared --server-count with the Leases"
            )
            if leases is None:
                yield asked.ok(f"{settings.announced_count}, by its flags; Leases are not counted")
            elif leases == settings.announced_count or settings.server_count is None:
                yield asked.ok(f"{leases} Leases")
            else:
                yield asked.warn(
                    f"--server-count is {settings.server_count}, and there are {leases} Leases",
                    "leave --server-count out where Leases are published",
                )
        case _:
            pass


def judge_known(known: int, linked: int, leases: int | None) -> Finding:
    """Is an agent linked to every server?"""
    asked = Asked(CheckId.SERVER_COUNT, "servers", "compared known servers, links and Leases")
    seen = f"{known} known, {linked} linked" + ("" if leases is None else f", {leases} Leases")
    if leases is not None and known != leases:
        return asked.warn(
            seen,
            "check that servers publish Leases (--enable-lease-controller) with the label that the"
            " agent counts (--lease-label-selector), and that no dead ones are left",
        )
    if linked < known:
        return asked.fail(
            seen,
            "the agent does not reach all servers: check that each of them is behind"
            " --proxy-server-host, and hands agents on (--peer-server)",
        )
    return asked.ok(seen)


def _leases(patient: Patient) -> int | None:
    """The number of live Leases; None if they are not counted, or cannot be."""
    settings = patient.settings
    if isinstance(settings, AgentSettings) and settings.count_server_leases:
        selector = settings.lease_label_selector
    elif isinstance(settings, ServerSettings) and settings.enable_lease_controller:
        selector = settings.lease_label
    else:
        return None
    try:
        return asyncio.run(
            _count(settings.kubeconfig, settings.lease_namespace, selector, patient.timeout_s)
        )
    except (ConfigError, KubeError, TimeoutError):
        return None  # the check of the API reports it


async def _count(kubeconfig: str, namespace: str, selector: str, timeout_s: float) -> int:
    from isthmus.kube.opening import open_kube

    kube = open_kube(kubeconfig)
    try:
        async with asyncio.timeout(timeout_s):
            listing = await kube.leases(namespace).list(selector)
    finally:
        await kube.close()
    now = time.time()
    return sum(1 for lease in listing.leases if lease.is_valid(now=now))


def see_link_failures(patient: Patient) -> Iterator[Finding]:
    """Read the counts of failed links in /metrics."""
    counts = Metrics(_running(patient).metrics).by("reason", "_link_failures_total")
    asked = Asked(CheckId.LINK_FAILURES, "since its start", "read link_failures_total of /metrics")
    found = _known(counts, LinkStage)
    if not found:
        yield asked.ok("none")
    for stage, count in found.items():
        about = f"{stage.name.lower()}, since its start"
        asked = Asked(CheckId.LINK_FAILURES, about, "read link_failures_total of /metrics")
        often = "once" if count == 1 else f"{count:.0f} times"
        yield asked.warn(f"{often}: {stage.value}", LINK_ADVICE[stage])


def see_dial_failures(patient: Patient) -> Iterator[Finding]:
    """Read the failed dials of the last hour in /history, or without it those of /metrics."""
    running = _running(patient)
    steps = [step for step in running.history.get("steps", ()) if isinstance(step, dict)]
    counts: Counter[str] = Counter()
    dials = 0.0
    if steps:
        when, where = "in the last hour", "/history"
        for step in steps:
            counts.update(step.get("failures") or {})
            dials += step.get("dials") or 0
    else:
        when, where = "since its start", "/metrics"
        counts.update(Metrics(running.metrics).by("reason", "_dial_failures_total"))
    yield from judge_dials(_known(counts, DialFailure), dials, when, where)


def judge_dials(
    found: Mapping[DialFailure, float], dials: float, when: str, where: str
) -> Iterator[Finding]:
    """Report each reason; a few failures among many dials are normal."""
    done = f"read failed dials in {where}"
    if not found:
        yield Asked(CheckId.DIAL_FAILURES, when, done).ok("none")
    for failure, count in found.items():
        asked = Asked(CheckId.DIAL_FAILURES, f"{failure.name.lower()}, {when}", done)
        of = f" of {dials:.0f}" if dials else ""
        seen = f"{count:.0f}{of} {'dial' if (dials or count) == 1 else 'dials'}: {failure.value}"
        if dials and count < _MANY_SHARE * dials and failure is not DialFailure.INTERNAL:
            yield asked.ok(seen)
        else:
            yield asked.warn(seen, DIAL_ADVICE[failure])


def _known(counts: Mapping[str, float], kind: type[_R]) -> dict[_R, float]:
    """The counts above zero by reason; /metrics has its name, /history its text."""
    found: dict[_R, float] = {}
    for reason in kind:
        count = counts.get(reason.name.lower(), 0) + counts.get(reason.value, 0)
        if count > 0:
            found[reason] = count
    return found
