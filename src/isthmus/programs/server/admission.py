"""Admission of agents: token reviews, at first and later, and the claims that an agent may make.

A token is valid until the API says otherwise: its account, pod or node may be deleted long before
it expires. The server therefore reviews the token of every linked agent periodically,
spread over time and at a limited rate. While the API is unreachable, every agent stays.

An agent sends its token once. After the token expires it cannot be reviewed;
--agent-token-expiry decides whether the link then stays, as with an expired certificate.
The last review happens a while before the expiry, so that differing clocks cut no link.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from typing_extensions import override

from isthmus.dial.rules_tokens import expiry
from isthmus.dial.settings_trust import CUT, RevocationSettings
from isthmus.errors import ConfigError
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.kube.tokens import LINKED, Accepted, Crowded, Rejected, TokenReviewer, Unavailable
from isthmus.links.server_side import AgentLink, Decided
from isthmus.links.talk import Unwelcome
from isthmus.logs import OncePer
from isthmus.net.connection_gate import source_of
from isthmus.net.files import FollowedFile, read_text
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.settings import BY_NAME_WORD, ServerSettings
from isthmus.settings.rules_entitlements import BY_NAME, Entitlements
from isthmus.text.pacing import Backoff

_QUIET_S = 30.0
#: How long an agent waits for the API's answer before it is told to retry. Shorter than the
#: handshake limit of either side (links/link.py), or it would only see that limit expire.
_PATIENCE_S = 7.0
_log = logging.getLogger("isthmus.server")
_audit = logging.getLogger("isthmus.audit")


def follow_binding(path: str) -> FollowedFile[Entitlements]:
    """Read the rules of --agent-identity-binding; invalid new ones are logged, the old ones stay.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """

    def taken(_: Entitlements) -> None:
        _log.info("reloaded %s", path)

    def failed(error: ConfigError) -> None:
        _log.warning("%s; the previously loaded rules stay in use", error)

    return FollowedFile(path, _read_binding, taken=taken, failed=failed)


def _read_binding(path: str) -> Entitlements:
    from isthmus.dial.settings_entitlements import parse  # YAML is slow to import

    return parse(read_text(path, what="--agent-identity-binding "), path)


class Admission(Part):
    """Admits or refuses agents; see links.server_side.AgentHooks."""

    def __init__(
        self,
        ground: Ground[ServerSettings, ServerMetrics],
        *,
        reviewer: Callable[[], TokenReviewer | None],
        cut: Callable[[AgentLink, str], None],
    ) -> None:
        """``reviewer`` is called once the kubeconfig is read.

        ``cut`` ends the link of an agent whose token became invalid, with a reason.
        """
        settings = ground.settings
        self._settings = settings
        self._reviewer_of = reviewer
        self._cut = cut
        self._binds = bool(settings.agent_identity_binding)
        self._admits = settings.roles.admits_agents
        #: The followed rules file; None without rules, or with the rule "name".
        self.binding_file: FollowedFile[Entitlements] | None = None
        self._reviewer: TokenReviewer | None = None
        self._once = ground.once
        self._reviews: dict[AgentLink, asyncio.Task[None]] = {}
        #: None: tokens are not used, or reviewed only once.
        self.tokens: TokenWatch | None = None

    @override
    async def prepare(self) -> None:
        settings = self._settings
        binding = settings.agent_identity_binding
        if binding not in ("", BY_NAME_WORD):
            self.binding_file = follow_binding(binding)
        reviewer = self._reviewer = self._reviewer_of()
        if reviewer is not None and settings.revocation.agent_token_review_interval_s:
            self.tokens = TokenWatch(
                reviewer,
                settings.revocation,
                once=self._once,
                chance=random.random,
                cut=self._cut,
            )

    @override
    def tasks(self) -> Iterable[LongTask]:
        if self.binding_file is not None:
            yield "binding", self.binding_file.watch()
        if self.tokens is not None:
            yield "tokens", self.tokens.run()

    def admit(self, link: AgentLink, token: str, decided: Decided) -> None:
        """Decide now, or after the API's answer."""
        if self._reviewer is None:
            self._decide(link, decided, self._judge(link), Unwelcome.NOT_ENTITLED)
            return
        if not token:
            why = "no token was sent, but this server requires one"
            self._decide(link, decided, why, Unwelcome.NO_PROOF)
            return
        review = asyncio.get_running_loop().create_task(
            self._review(self._reviewer, link, token, decided), name=f"review:{link.id}"
        )
        self._reviews[link] = review
        review.add_done_callback(lambda _: self._reviews.pop(link, None))

    def moved(self, connection: AgentLink, link: AgentLink) -> None:
        """A link goes on by another connection, whose token was reviewed."""
        if self.tokens is not None:
            self.tokens.moved(connection, link)

    def left(self, link: AgentLink) -> None:
        """An agent is gone: stop reviewing its token."""
        review = self._reviews.get(link)
        if review is not None:
            review.cancel()

    async def _review(
        self,
        reviewer: TokenReviewer,
        link: AgentLink,
        token: str,
        decided: Decided,
    ) -> None:
        why, source = "no answer in time", source_of(link.carrier.sock)
        backoff = Backoff(first_s=0.5, cap_s=5.0, chance=random.random)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not link.closed_because:
                    verdict = await reviewer.review(token, source)
                    if isinstance(verdict, Accepted):
                        link.identity = verdict.identity
                        refusal = self._judge(link, verdict.node, verdict.pod)
                        if self.tokens is not None and not refusal:
                            self.tokens.admitted(link, token)
                        self._decide(link, decided, refusal, Unwelcome.NOT_ENTITLED)
                        return
                    if isinstance(verdict, Rejected):
                        self._decide(link, decided, verdict.reason, Unwelcome.NO_PROOF)
                        return
                    why = verdict.reason
                    self._tell_wait(why, source)
                    if isinstance(verdict, Crowded):
                        decided(f"{why}, retry later", Unwelcome.TRY_LATER)
                        return
                    await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            # Nothing is known against the agent, so the audit log gets no record; details of the
            # API's failure are not sent to an unauthenticated peer.
            self._tell_wait(why, source)
            decided(
                "the server cannot reach the Kubernetes API to review tokens, retry later",
                Unwelcome.TRY_LATER,
            )

    def _tell_wait(self, why: str, source: str) -> None:
        self._once.log(
            ("token review", why), _QUIET_S, _log, logging.WARNING,
            "cannot review agent tokens, new agents wait", reason=why, source=source,
        )  # fmt: skip

    def _judge(self, link: AgentLink, node: str = "", pod: str = "") -> str:
        refusal = self._admits.refusal(link.identity)
        if refusal or not self._binds:
            return refusal
        rules = BY_NAME if self.binding_file is None else self.binding_file.current
        return rules.judge(
            link.identity,
            link.agent_id,
            link.identifiers,
            network=link.network,
            node=node,
            pod=pod,
            sans=link.identity.sans,
        )

    def _decide(self, link: AgentLink, decided: Decided, refusal: str, kind: Unwelcome) -> None:
        if refusal:
            link.audited = True
            self._tell_audit(link, refusal)
        decided(refusal, kind)

    def _tell_audit(self, link: AgentLink, refusal: str) -> None:
        # Agents retry at any rate, and with tokens they are unauthenticated: the
        # same refusal of the same host is logged once, and then with the number of repetitions.
        host = link.peer_address.rpartition(":")[0]
        self._once.log(
            ("refused", host, link.agent_id, refusal), _QUIET_S, _audit, logging.WARNING,
            "agent refused", agent_id=link.agent_id, link=link.id, address=link.peer_address,
            identity=str(link.identity), reason=refusal,
        )  # fmt: skip

    @override
    def close(self) -> None:
        for review in list(self._reviews.values()):
            review.cancel()
        if self._reviewer is not None:
            self._reviewer.close()


#: The most reviews per second, besides those of new agents.
MOST_PER_S = 10
#: The time between the last review of a token and its expiry.
LAST_S = 60.0
_TICK_S = 1.0
_OUTAGE_S = 30.0
_OUTAGE_QUIET_S = 60.0


@dataclass(slots=True, kw_only=True)
class _Held:
    """The state of a link's token; ``due`` and ``expires`` are times of the loop's clock."""

    token: str
    due: float
    expires: float | None

    def __repr__(self) -> str:
        return f"<token, due at {self.due:.0f}>"  # never the token itself


class TokenWatch:
    """The tokens of linked agents, each kept as long as its link."""

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
        """``cut`` ends a link with a reason."""
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
        """An agent was admitted with this token."""
        now = self._clock()
        ends = expiry(token)
        left_s = ends.timestamp() - self._wall_clock() if ends is not None else None
        held = _Held(token=token, due=now, expires=now + left_s if left_s is not None else None)
        self._plan(link, held, now)

    def moved(self, connection: AgentLink, link: AgentLink) -> None:
        """The token that was shown on this connection is that of a link from now on."""
        held = self._held.pop(connection, None)
        if held is not None:
            self._held[link] = held

    def _plan(self, link: AgentLink, held: _Held, now: float) -> None:
        """Schedule the next review; without one, drop the token."""
        # Thousands of agents connect at once after a server was down: their reviews must not
        # stay synchronised.
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
        """Review until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            await self.look()

    async def look(self) -> None:
        """Review tokens that are due, at most ``_MOST_AT_ONCE``."""
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
                return  # it is still due
            if isinstance(verdict, Rejected) and verdict.judged:
                self._reject(link, verdict.reason)
            else:
                self._plan(link, held, self._clock())

    def _wait(self, why: str) -> None:
        """Pause reviews; no link is cut for that."""
        until = self._clock() + _OUTAGE_S
        for held in self._held.values():
            held.due = max(held.due, until)
        self._once.log(
            "token watch", _OUTAGE_QUIET_S, _log, logging.WARNING,
            "cannot review the tokens of linked agents, they stay", reason=why,
        )  # fmt: skip

    def _reject(self, link: AgentLink, why: str) -> None:
        del self._held[link]
        self._cut(link, f"its token is no longer accepted: {why}")
