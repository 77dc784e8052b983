"""Parts of a snapshot that several programs show: links, sums, gates, certificates."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from isthmus.frame.model.history import Tally
from isthmus.frame.model.snapshot import (
    CertificateView,
    GateView,
    HolderView,
    LinkState,
    LinkView,
    MemoryView,
    Totals,
)
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.links.link import Link
from isthmus.net.contexts import HotContext, lifetimes_of
from isthmus.net.rules_expiry import standing
from isthmus.settings.gates import GATES, GateSettings
from isthmus.tunnel.budget import Budget

_MOST_HOLDERS = 10
_MOST_PEER_CHARS = 256


def link_view(link: Link, peer_id: str, now: float) -> LinkView:
    """The view of a link, from either side."""
    return LinkView(
        id=link.id,
        peer_id=peer_id,
        peer_address=link.peer_address,
        peer_version=link.version,
        carrier=link.talk.name if link.talk is not None else "",
        state=state_of(link),
        age_s=now - link.opened_at,
        streams=link.load,
        rtt_s=round_trip_s(link),
        held_bytes=link.held_bytes,
        sent_bytes=link.bytes_out,
        received_bytes=link.bytes_in,
        resumes=link.resumes,
        kept_bytes=link.kept_bytes,
        window_growth_bytes=link.window_growth_bytes,
        window_growth_peak_bytes=link.window_growth_peak_bytes,
    )


def memory_view(budget: Budget) -> MemoryView:
    """The view of the memory budget, and of the peers that hold most of it."""
    return MemoryView(
        budget_bytes=budget.total_bytes,
        used_bytes=budget.used_bytes,
        most_used_bytes=budget.most_used_bytes,
        peers=budget.peers,
        over_share=budget.over_share,
        largest=tuple(
            HolderView(peer=str(it.peer)[:_MOST_PEER_CHARS], bytes=it.used_bytes)
            for it in budget.largest(_MOST_HOLDERS)
            if it.used_bytes
        ),
    )


def state_of(link: Link) -> LinkState:
    """The state of a link."""
    if not link.ready:
        return LinkState.GREETING
    if link.suspended:
        return LinkState.SUSPENDED
    if link.stuck:
        return LinkState.STUCK
    return LinkState.DRAINING if is_draining(link) else LinkState.OPEN


def is_draining(link: Link) -> bool:
    """Whether the peer is draining, by either signal; a full or stuck link is not."""
    return link.draining or (link.talk is not None and link.talk.peer_drains)


def round_trip_s(link: Link) -> float | None:
    """The last round trip; None before the first answer to a ping."""
    return (link.talk.round_trip_s or None) if link.talk is not None else None


def totals(metrics: ProgramMetrics) -> Totals:
    """The totals of ended and running tunnels."""
    to_target, to_client = metrics.bytes_carried()
    failed = sum(metrics.dial_failures.values())
    return Totals(
        dials=metrics.dials.count + failed,
        dials_failed=failed,
        tunnels_ended=sum(metrics.endings.values()),
        bytes_to_target=to_target,
        bytes_to_client=to_client,
    )


def tally(metrics: ProgramMetrics, *, tunnels: int) -> Tally:
    """The tally for the history of a program with this many open tunnels."""
    to_target, to_client = metrics.bytes_carried()
    failures = {reason.value: count for reason, count in metrics.dial_failures.items() if count}
    return Tally(
        dials=metrics.dials.count + sum(failures.values()),
        failures=failures,
        dial_times=dict(zip((*metrics.dials.bounds, math.inf), metrics.dials.counts, strict=True)),
        bytes_to_target=to_target,
        bytes_to_client=to_client,
        tunnels=tunnels,
        agents=metrics.gauges.ready_agents(),
        links=metrics.gauges.links(),
    )


def gate_views(gates: GateSettings) -> tuple[GateView, ...]:
    """The views of a program's feature gates."""
    return tuple(
        GateView(name=name, stage=GATES[name].stage, enabled=on)
        for name, on in gates.states().items()
    )


def certificates(contexts: list[HotContext]) -> tuple[CertificateView, ...]:
    """The views of the certificate files in use."""
    found: list[CertificateView] = []
    now = datetime.now(UTC)
    for path, life in lifetimes_of(contexts).items():
        start = datetime.fromtimestamp(life.not_before, UTC)
        end = datetime.fromtimestamp(life.not_after, UTC)
        found.append(
            CertificateView(
                file=path,
                not_before=start,
                not_after=end,
                standing=standing(not_before=start, not_after=end, now=now),
            )
        )
    return tuple(found)
