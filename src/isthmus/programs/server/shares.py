"""A server's fair shares: whether a dial is within them, and what its tunnel is held to.

The shares are those of the policy file, and one that flags make; they change with the file. The
arithmetic is dial/rules_shares.py, holding bytes back is dial/metered.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast

from isthmus.dial.metered import Gate, Gates
from isthmus.dial.rules_policy import Decision, Policy, Question, Share
from isthmus.dial.rules_shares import Full, Hold, Pot, ShareTable
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.values import DialRequest


class Holder(Protocol):
    """A dial that keeps what it has taken until it, or its tunnel, is over."""

    hold: Hold | None


class ServerShares:
    """Every share of a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: ServerMetrics,
        *,
        by_flags: Share | None,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._by_flags = (by_flags,) if by_flags is not None else ()
        self.table = ShareTable(self._by_flags)
        metrics.share_tunnels = self._tunnels

    def follow(self, policy: Policy) -> None:
        """Keep to what the file says now; what flags say is for whom no share of it is."""
        shares = (*policy.shares, *self._by_flags)
        for pot in self.table.replace(shares, now=self._loop.time()):
            if isinstance(pot.gates, Gates):
                pot.gates.changed()

    def admit(self, who: object, request: DialRequest, network: str) -> Decision | None:
        """Take a dial out of its pots; why not, or None."""
        if not self.table.shares:
            return None
        asked = Question(requester=request.requester, network=network, target=request.target)
        got = self.table.take(asked, now=self._loop.time())
        if isinstance(got, Full):
            self._metrics.share_refused(got.share.name, got.limit)
            return Decision(
                allowed=False,
                network=network,
                rule=got.share.rule,
                where=got.share.where,
                why=got.why,
            )
        cast(Holder, who).hold = got
        return None

    def gates(self, hold: Hold) -> tuple[Sequence[Gate], Sequence[Gate]] | None:
        """Both directions' gates of a tunnel; None: it is held to no rate."""
        if not hold.meters:
            return None
        found = [self._of(pot) for pot in hold.pots if pot.share.bytes_per_s]
        return [it.to_target for it in found], [it.to_client for it in found]

    def _of(self, pot: Pot) -> Gates:
        gates = pot.gates
        if not isinstance(gates, Gates):
            waits = partial(self._metrics.share_waited, pot.share.name)
            gates = pot.gates = Gates(pot, self._loop, waits)
        return gates

    def _tunnels(self) -> Counter[str]:
        found: Counter[str] = Counter({share.name: 0 for share in self.table.shares})
        for pot in self.table.pots:
            found[pot.share.name] += pot.tunnels
        return found
