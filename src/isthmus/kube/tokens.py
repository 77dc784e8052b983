"""Agent authentication by service account token: what the API says of it, and what we make of that.

A token is never logged and not kept here. Verdicts are remembered for seconds by its hash: accepted
ones because thousands of agents that lost a server come back at once and would drown the API,
rejections because whoever was rejected comes again at once. The API's time is divided fairly by
where tokens come from (net/rules_slots.py): whoever sends many that are no good waits for itself.
Tokens of agents that are linked are kept, and asked about again, by programs/server/admission.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from isthmus.dial.rules_tokens import MOST_CHARS
from isthmus.errors import KubeError
from isthmus.kube.api import TokenReviews, TokenStatus
from isthmus.net.rules_slots import FairTurns
from isthmus.values import Identity

IDENTITY_KIND = "token"

#: The source of questions about agents that are linked; no address is called so.
LINKED = "linked agents"

_MAX_REASON_CHARS = 300
_BLANK = "[redacted]"
_POD = "authentication.kubernetes.io/pod-name"
_NODE = "authentication.kubernetes.io/node-name"
# The API will not say otherwise tomorrow: the request itself was wrong, not its moment.
_REFUSALS = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The token is of the account we expect; the identity carries its groups.

    ``pod`` and ``node`` are what the token was bound to, empty where it was not.
    """

    identity: Identity
    pod: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The token is not good; the reason is a sentence without the token.

    ``judged``: the API looked at the token. Otherwise it took no such question, which says nothing
    of an agent that was let in before.
    """

    reason: str
    judged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The API could not be asked: whoever waits tries again later, and who is in stays in."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowded:
    """The API was not asked: too many tokens of the same source wait already."""

    reason: str = "too many tokens from the same address wait for their review"


Reviewed = Accepted | Rejected | Unavailable | Crowded
Kept = TypeVar("Kept", Accepted, Rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Whose tokens are accepted, and for which audience they have to be made."""

    audience: str
    namespace: str
    service_account: str

    @property
    def username(self) -> str:
        """The name that the API gives the service account."""
        return f"system:serviceaccount:{self.namespace}:{self.service_account}"


def judge(status: TokenStatus, expected: Expected) -> Accepted | Rejected:
    """Hold what the API says of a token against what is expected."""
    if not status.authenticated:
        why = f": {status.error}" if status.error else ""
        return Rejected(reason=f"the Kubernetes API does not accept the token{why}")
    # An API that ignores audiences returns none, and would take any token of the account for ours.
    if expected.audience not in status.audiences:
        theirs = ", ".join(status.audiences) or "nobody in particular"
        return Rejected(reason=f"the token is for {theirs}, not for {expected.audience}")
    if status.username != expected.username:
        return Rejected(reason=f"the token is of {status.username!r}, not of {expected.username}")
    return Accepted(
        identity=Identity(status.username, status.groups, kind=IDENTITY_KIND),
        pod=_only(status, _POD),
        node=_only(status, _NODE),
    )


def _only(status: TokenStatus, key: str) -> str:
    values = status.extra.get(key, ())
    return values[0] if len(values) == 1 else ""


class _Memory(Generic[Kept]):
    """A bounded number of recent verdicts, by the hash of the token."""

    def __init__(self, keep_s: float, most: int, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._most = most
        self._clock = clock
        self._kept: dict[bytes, tuple[float, Kept]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, key: bytes) -> Kept | None:
        """The verdict, while it is remembered."""
        until, verdict = self._kept.get(key, (0.0, None))
        return verdict if until > self._clock() else None

    def remember(self, key: bytes, verdict: Kept) -> None:
        """Keep a verdict, and drop what is over or too much."""
        now = self._clock()
        self._kept.pop(key, None)
        self._kept[key] = (now + self._keep_s, verdict)
        while self._kept:
            oldest = next(iter(self._kept))
            if self._kept[oldest][0] > now and len(self._kept) <= self._most:
                break
            del self._kept[oldest]


class _Review:
    """A token that waits for the API, or is being asked about."""

    __slots__ = ("also", "asking", "key", "source", "token", "verdict", "waiters")

    def __init__(self, key: bytes, token: str, source: str) -> None:
        self.key = key
        self.token = token
        self.source = source
        self.verdict: asyncio.Future[Reviewed] = asyncio.get_running_loop().create_future()
        self.waiters = 0
        self.asking: asyncio.Task[None] | None = None
        self.also: list[_Review] = []  # of the same token, from elsewhere

    def __repr__(self) -> str:
        return f"<review for {self.source}>"  # never the token itself

    def answer(self, verdict: Reviewed) -> None:
        """Tell everybody who waits."""
        for review in (self, *self.also):
            if not review.verdict.done():
                review.verdict.set_result(verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """How many tokens are asked about at once, how many wait, and what is remembered."""

    max_at_once: int = 16
    max_per_source: int = 8
    max_waiting: int = 1024
    max_waiting_per_source: int = 256
    remember_s: float = 10.0
    max_remembered: int = 16_384
    max_rejections: int = 4096


_LIMITS = ReviewLimits()


class TokenReviewer:
    """Reviews tokens: a bounded number at once, fair by source, each at most once in a few seconds.

    The same token is asked about once, however many wait for it.
    """

    def __init__(
        self,
        reviews: TokenReviews,
        expected: Expected,
        *,
        limits: ReviewLimits = _LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reviews = reviews
        self._expected = expected
        self._turns: FairTurns[_Review] = FairTurns(
            most=limits.max_at_once,
            most_of_one=min(limits.max_per_source, limits.max_at_once),
            waiting=limits.max_waiting,
            waiting_of_one=limits.max_waiting_per_source,
        )
        self._accepted: _Memory[Accepted] = _Memory(limits.remember_s, limits.max_remembered, clock)
        # Apart, so that no number of bad tokens makes a good one forgotten.
        self._rejected: _Memory[Rejected] = _Memory(limits.remember_s, limits.max_rejections, clock)
        self._waiting: dict[tuple[str, bytes], _Review] = {}
        self._asking: dict[bytes, _Review] = {}

    def __repr__(self) -> str:
        return f"<TokenReviewer {self._expected.username} for {self._expected.audience}>"

    async def review(self, token: str, source: str = "") -> Reviewed:
        """Ask whose the token is. Never raises, and every request to the API has a deadline.

        ``source`` is where it comes from. Whoever stops waiting gives its place back.
        """
        token = token.strip()
        if not token:
            return Rejected(reason="the token is empty")
        if len(token) > MOST_CHARS or not token.isascii() or not token.isprintable():
            return Rejected(reason="this is not a token: too long, or not plain characters")
        key = hashlib.sha256(token.encode()).digest()
        known = self._recall(key)
        if known is not None:
            return known
        review = self._asking.get(key) or self._waiting.get((source, key))
        if review is None:
            review = self._wait(_Review(key, token, source))
        del token
        review.waiters += 1
        try:
            return await asyncio.shield(review.verdict)
        finally:
            review.waiters -= 1
            if not review.waiters and review.asking is None:
                self._forget(review)

    def close(self) -> None:
        """Ask nothing more; whoever waits is told that the API cannot be asked."""
        for review in list(self._waiting.values()):
            self._forget(review)
            review.answer(Unavailable(reason="the server stops"))
        for review in list(self._asking.values()):
            if review.asking is not None:
                review.asking.cancel()

    def _wait(self, review: _Review) -> _Review:
        self._waiting[review.source, review.key] = review
        gone = self._turns.come(review.source, review)
        if gone is not None:
            self._forget(gone)
            gone.answer(Crowded())
        self._begin()
        return review

    def _forget(self, review: _Review) -> None:
        self._turns.leave(review.source, review)
        if self._waiting.get((review.source, review.key)) is review:
            del self._waiting[review.source, review.key]

    def _begin(self) -> None:
        """Ask about those whose turn it is."""
        while (review := self._turns.begin()) is not None:
            self._forget(review)
            known, asked = self._recall(review.key), self._asking.get(review.key)
            if known is not None or asked is not None:
                # Somebody from elsewhere came with the same one: that is nobody's turn.
                self._turns.over(review.source)
                if known is not None:
                    review.answer(known)
                elif asked is not None:
                    asked.also.append(review)
                continue
            self._asking[review.key] = review
            review.asking = asyncio.get_running_loop().create_task(
                self._ask_for(review), name="token review"
            )

    async def _ask_for(self, review: _Review) -> None:
        verdict: Reviewed = Unavailable(reason="the server stops")
        try:
            verdict = await self._ask(review.token)
        finally:
            if isinstance(verdict, Accepted):
                self._accepted.remember(review.key, verdict)
            elif isinstance(verdict, Rejected) and verdict.judged:
                self._rejected.remember(review.key, verdict)
            del self._asking[review.key]
            review.answer(verdict)
            self._turns.over(review.source)
            self._begin()

    async def _ask(self, token: str) -> Reviewed:
        # Whoever is behind the API may quote what it was given: that is cut out of every reason.
        try:
            status = await self._reviews.review(token, self._expected.audience)
        except KubeError as exc:
            reason = str(exc).replace(token, _BLANK)
            refused = exc.status in _REFUSALS
            if refused:
                return Rejected(reason=reason, judged=False)
            return Unavailable(reason=reason)
        verdict = judge(status, self._expected)
        if isinstance(verdict, Rejected):
            return Rejected(reason=verdict.reason.replace(token, _BLANK)[:_MAX_REASON_CHARS])
        return verdict

    def _recall(self, key: bytes) -> Accepted | Rejected | None:
        return self._accepted.recall(key) or self._rejected.recall(key)
