"""Agent authentication by service account token: the API's review, and our verdict on it.

A token is never logged and not kept here. Verdicts are cached for seconds by the token's hash:
accepted ones because thousands of agents that lost a server reconnect at once and would overload
the API, rejected ones because rejected agents retry at once. Reviews are divided fairly between
the sources of tokens (net/rules_slots.py): a source that sends many bad tokens delays only itself.
programs/server/admission.py keeps the tokens of linked agents and reviews them again.
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

#: The source of reviews of linked agents, distinct from any address.
LINKED = "linked agents"

_MAX_REASON_CHARS = 300
_BLANK = "[redacted]"
_POD = "authentication.kubernetes.io/pod-name"
_NODE = "authentication.kubernetes.io/node-name"
# Retrying will not help: the request itself was wrong.
_REFUSALS = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The token belongs to the expected account; the identity carries its groups.

    ``pod`` and ``node`` are those that the token is bound to, empty if it is not.
    """

    identity: Identity
    pod: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The token was rejected; the reason does not contain the token.

    ``judged``: the API examined the token. Otherwise it refused the request, which does not
    affect an agent that was admitted before.
    """

    reason: str
    judged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The API did not answer: waiting agents retry later, and linked agents stay."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowded:
    """The API was not asked: too many tokens of the same source are waiting."""

    reason: str = "too many tokens from the same address wait for their review"


Reviewed = Accepted | Rejected | Unavailable | Crowded
Kept = TypeVar("Kept", Accepted, Rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The account and the audience of accepted tokens."""

    audience: str
    namespace: str
    service_account: str

    @property
    def username(self) -> str:
        """The user name of the service account in the API."""
        return f"system:serviceaccount:{self.namespace}:{self.service_account}"


def judge(status: TokenStatus, expected: Expected) -> Accepted | Rejected:
    """Compare the API's review of a token with the expected account and audience."""
    if not status.authenticated:
        why = f": {status.error}" if status.error else ""
        return Rejected(reason=f"the Kubernetes API does not accept the token{why}")
    # An API that ignores audiences returns none, and would accept any token of the account.
    if expected.audience not in status.audiences:
        theirs = ", ".join(status.audiences) or "no audience"
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
    """A bounded cache of recent verdicts, by the hash of the token."""

    def __init__(self, keep_s: float, most: int, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._most = most
        self._clock = clock
        self._kept: dict[bytes, tuple[float, Kept]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, key: bytes) -> Kept | None:
        """The cached verdict, if any."""
        until, verdict = self._kept.get(key, (0.0, None))
        return verdict if until > self._clock() else None

    def remember(self, key: bytes, verdict: Kept) -> None:
        """Cache a verdict, and drop expired or surplus ones."""
        now = self._clock()
        self._kept.pop(key, None)
        self._kept[key] = (now + self._keep_s, verdict)
        while self._kept:
            oldest = next(iter(self._kept))
            if self._kept[oldest][0] > now and len(self._kept) <= self._most:
                break
            del self._kept[oldest]


class _Review:
    """A token that waits for its review, or is being reviewed."""

    __slots__ = ("also", "asking", "key", "source", "token", "verdict", "waiters")

    def __init__(self, key: bytes, token: str, source: str) -> None:
        self.key = key
        self.token = token
        self.source = source
        self.verdict: asyncio.Future[Reviewed] = asyncio.get_running_loop().create_future()
        self.waiters = 0
        self.asking: asyncio.Task[None] | None = None
        self.also: list[_Review] = []  # of the same token, from other sources

    def __repr__(self) -> str:
        return f"<review for {self.source}>"  # never the token itself

    def answer(self, verdict: Reviewed) -> None:
        """Report the verdict to all waiters."""
        for review in (self, *self.also):
            if not review.verdict.done():
                review.verdict.set_result(verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """Limits of concurrent reviews, waiting tokens and cached verdicts."""

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

    A token is reviewed once, however many callers wait for it.
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
        # Separate, so that bad tokens cannot evict good ones.
        self._rejected: _Memory[Rejected] = _Memory(limits.remember_s, limits.max_rejections, clock)
        self._waiting: dict[tuple[str, bytes], _Review] = {}
        self._asking: dict[bytes, _Review] = {}

    def __repr__(self) -> str:
        return f"<TokenReviewer {self._expected.username} for {self._expected.audience}>"

    async def review(self, token: str, source: str = "") -> Reviewed:
        """Review a token. Never raises, and every request to the API has a deadline.

        ``source`` is where the token comes from. A caller that stops waiting frees its slot.
        """
        token = token.strip()
        if not token:
            return Rejected(reason="the token is empty")
        if len(token) > MOST_CHARS or not token.isascii() or not token.isprintable():
            return Rejected(reason="not a token: too long, or invalid characters")
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
        """Stop reviewing; waiters receive Unavailable."""
        for review in list(self._waiting.values()):
            self._forget(review)
            review.answer(Unavailable(reason="the server is stopping"))
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
        """Start the reviews whose turn it is."""
        while (review := self._turns.begin()) is not None:
            self._forget(review)
            known, asked = self._recall(review.key), self._asking.get(review.key)
            if known is not None or asked is not None:
                # Another source sent the same token: that uses no turn.
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
        verdict: Reviewed = Unavailable(reason="the server is stopping")
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
        # An authenticator behind the API may quote the token: it is removed from every reason.
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
