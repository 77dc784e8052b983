"""Looks again at the tokens that agents came with, and cuts those that are not accepted any more.

A token is good until the API says otherwise: its account, its pod or its node may be deleted long
before it expires. So the API is asked again now and then about every agent that is linked, spread
over time and never more than so often in a second. While it cannot be asked, everybody stays.

An agent shows its token once. When that expires, nothing more can be asked about it; whether its
link then stays, as that of a certificate which expires does, is --agent-token-expiry. The last
question is asked a while before, so that clocks that differ cut nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from isthmus.dial.rules_tokens import expiry
from isthmus.dial.settings_revocation import CUT, RevocationSettings
from isthmus.kube.tokens import LINKED, Crowded, Rejected, TokenReviewer, Unavailable
from isthmus.links.server_side import AgentLink
from isthmus.logs import OncePer

#: How many reviews in a second at the most, besides those of agents that come.
MOST_PER_S = 10
#: So long before a token expires it is looked at for the last time.
LAST_S = 60.0
_TICK_S = 1.0
_OUTAGE_S = 30.0
_QUIET_S = 60.0
_log = logging.getLogger("isthmus.server")


@dataclass(slots=True, kw_only=True)
class _Held:
    """What is known of a link's token; ``due`` and ``expires`` are times of the loop's clock."""

    token: str
    due: float
    expires: float | None

    def __repr__(self) -> str:
        return f"<token, due at {self.due:.0f}>"  # never the token itself


class TokenWatch:
    """The tokens of the agents that are linked, each kept as long as its link."""

    def __init__(
        self,
        reviewer: TokenReviewer,
        settings: RevocationSettings,
        *,
        once: OncePer,
        chance: Callable[[], float],
        cut: Callable[[AgentLink, str], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``cut`` ends a link, for a reason."""
        self._reviewer = reviewer
        self._every_s = settings.agent_token_review_interval_s
        self._cut_expired = settings.agent_token_expiry == CUT
        self._once = once
        self._chance = chance
        self._cut = cut
        self._clock = clock
        self._wall_clock = wall_clock
        self._held: dict[AgentLink, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def admitted(self, link: AgentLink, token: str) -> None:
        """An agent was let in with this token."""
        now = self._clock()
        ends = expiry(token)
        left_s = ends.timestamp() - self._wall_clock() if ends is not None else None
        held = _Held(token=token, due=now, expires=now + left_s if left_s is not None else None)
        self._plan(link, held, now)

    def _plan(self, link: AgentLink, held: _Held, now: float) -> None:
        """Say when to look next; at none, forget it."""
        # Thousands of agents come at once after a server was away: they are not to be asked about
        # at once for ever after.
        due = now + self._every_s * (0.5 + self._chance())
        if held.expires is not None:
            last = held.expires if self._cut_expired else held.expires - LAST_S
            if last <= now and not self._cut_expired:
                self._held.pop(link, None)
                return
            due = min(due, max(last, now))
        held.due = due
        self._held[link] = held

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(_TICK_S)
            await self.look()

    async def look(self) -> None:
        """Ask about those that are due, so many at the most."""
        for link in [link for link in self._held if link.closed_because]:
            del self._held[link]
        now = self._clock()
        due = [it for it in self._held.items() if it[1].due <= now]
        for link, held in sorted(due, key=lambda it: it[1].due)[:MOST_PER_S]:
            verdict = await self._reviewer.review(held.token, LINKED)
            if link not in self._held:
                continue
            if isinstance(verdict, Unavailable):
                self._wait(verdict.reason)
                return
            if isinstance(verdict, Crowded):
                return  # it is due still
            if isinstance(verdict, Rejected) and verdict.judged:
                self._reject(link, verdict.reason)
            else:
                self._plan(link, held, self._clock())

    def _wait(self, why: str) -> None:
        """Ask nothing for a while; nobody is cut for that."""
        until = self._clock() + _OUTAGE_S
        for held in self._held.values():
            held.due = max(held.due, until)
        self._once.log(
            "token watch", _QUIET_S, _log, logging.WARNING,
            "cannot review the tokens of linked agents, they stay", reason=why,
        )  # fmt: skip

    def _reject(self, link: AgentLink, why: str) -> None:
        del self._held[link]
        self._cut(link, f"its token is not accepted any more: {why}")
