"""Agent authentication by service account token: what the API says of it, and what we make of that.

A token is never logged and not kept here; accepted ones are remembered for seconds by their hash,
because thousands of agents that lost a server come back at once and would drown the API. Those of
agents that are linked are kept, and asked about again, by app/server/token_watch.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from isthmus.errors import KubeError
from isthmus.kube.api import TokenReviews, TokenStatus
from isthmus.values import Identity

IDENTITY_KIND = "token"

_MAX_TOKEN_CHARS = 64 * 1024
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


Reviewed = Accepted | Rejected | Unavailable


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


class TokenReviewer:
    """Reviews tokens: so many at once, and each at most once in a few seconds."""

    def __init__(
        self,
        reviews: TokenReviews,
        expected: Expected,
        *,
        max_at_once: int = 16,
        remember_s: float = 10.0,
        max_remembered: int = 16_384,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reviews = reviews
        self._expected = expected
        self._turns = asyncio.Semaphore(max_at_once)
        self._remember_s = remember_s
        self._max_remembered = max_remembered
        self._clock = clock
        self._accepted: dict[bytes, tuple[float, Accepted]] = {}  # oldest first

    def __repr__(self) -> str:
        return f"<TokenReviewer {self._expected.username} for {self._expected.audience}>"

    async def review(self, token: str) -> Reviewed:
        """Ask whose the token is. Never raises, and every request to the API has a deadline."""
        token = token.strip()
        if not token:
            return Rejected(reason="the token is empty")
        if len(token) > _MAX_TOKEN_CHARS or not token.isascii() or not token.isprintable():
            return Rejected(reason="this is not a token: too long, or not plain characters")
        key = hashlib.sha256(token.encode()).digest()
        async with self._turns:
            known = self._recall(key)
            verdict = known or await self._ask(token)
        if known is None and isinstance(verdict, Accepted):
            self._remember(key, verdict)
        return verdict

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
            return Rejected(reason=verdict.reason.replace(token, _BLANK))
        return verdict

    def _recall(self, key: bytes) -> Accepted | None:
        until, verdict = self._accepted.get(key, (0.0, None))
        return verdict if until > self._clock() else None

    def _remember(self, key: bytes, verdict: Accepted) -> None:
        now = self._clock()
        self._accepted.pop(key, None)
        self._accepted[key] = (now + self._remember_s, verdict)
        while self._accepted:
            oldest = next(iter(self._accepted))
            if self._accepted[oldest][0] > now and len(self._accepted) <= self._max_remembered:
                break
            del self._accepted[oldest]
