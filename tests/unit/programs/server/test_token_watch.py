"""When tokens are looked at again: spread, so many in a second, and before they expire."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import Counter
from typing import cast

from isthmus.dial.settings_trust import RevocationSettings
from isthmus.kube.api import TokenReviews, TokenStatus
from isthmus.kube.tokens import Expected, ReviewLimits, TokenReviewer
from isthmus.links.server_side import AgentLink
from isthmus.logs import OncePer
from isthmus.programs.server.admission import LAST_S, MOST_PER_S, TokenWatch
from isthmus.testing import ManualClock

EXPECTED = Expected(audience="a", namespace="n", service_account="s")
EVERY_S = 300.0


class Reviews:
    """An API that accepts everything and counts who was asked about when."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.asked: list[tuple[float, str]] = []

    async def review(self, token: str, audience: str) -> TokenStatus:
        self.asked.append((self._clock(), token))
        return TokenStatus(authenticated=True, username=EXPECTED.username, audiences=("a",))


def bed() -> tuple[ManualClock, Reviews, TokenWatch]:
    clock = ManualClock()
    reviews = Reviews(clock)
    reviewer = TokenReviewer(
        cast(TokenReviews, reviews), EXPECTED, limits=ReviewLimits(remember_s=0.0), clock=clock
    )
    watch = TokenWatch(
        reviewer,
        RevocationSettings(agent_token_review_interval_s=EVERY_S),
        once=OncePer(clock),
        chance=random.Random(1).random,
        cut=lambda link, why: None,
        clock=clock,
        wall_clock=clock,
    )
    return clock, reviews, watch


class Link:
    """As much of a link as is looked at."""

    closed_because = ""


def link() -> AgentLink:
    return cast(AgentLink, Link())


def jwt(expires_at: float) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"exp": expires_at}).encode()).rstrip(b"=")
    return f"header.{payload.decode()}.signature"


def test_agents_that_came_at_once_are_asked_about_one_after_the_other() -> None:
    clock, reviews, watch = bed()
    for number in range(2000):
        watch.admitted(link(), f"t{number}")

    async def run() -> None:
        for _ in range(int(EVERY_S * 3)):
            clock.advance(1.0)
            await watch.look()

    asyncio.run(run())
    per_second = Counter(at for at, _ in reviews.asked)
    assert max(per_second.values()) <= MOST_PER_S
    by_token = Counter(token for _, token in reviews.asked)
    assert len(by_token) == 2000 and min(by_token.values()) >= 2


def test_the_last_look_is_well_before_the_end() -> None:
    clock, reviews, watch = bed()
    start = clock()
    watch.admitted(link(), jwt(start + 100.0))

    async def run() -> None:
        for _ in range(400):
            clock.advance(1.0)
            await watch.look()

    asyncio.run(run())
    [(at, _)] = reviews.asked
    assert 100.0 - LAST_S <= at - start <= 100.0 - LAST_S + 1.0
    assert len(watch) == 0


def test_who_is_gone_is_forgotten() -> None:
    _, reviews, watch = bed()
    gone = link()
    watch.admitted(gone, "t")
    gone.closed_because = "lost"
    asyncio.run(watch.look())
    assert len(watch) == 0 and not reviews.asked


def test_a_token_is_in_no_representation() -> None:
    _, _, watch = bed()
    watch.admitted(link(), "secret-token")
    assert "secret-token" not in repr(watch.__dict__)
