"""Whether an agent is welcome: its token, if tokens are asked for, and what it may claim."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.kube.tokens import Accepted, Crowded, Rejected, TokenReviewer
from isthmus.links.hello import Unwelcome
from isthmus.links.server_side import AgentLink, Decided
from isthmus.net.connection_gate import source_of
from isthmus.net.files import FollowedFile, read_text
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.settings import BY_NAME_WORD, ServerSettings
from isthmus.programs.server.token_watch import TokenWatch
from isthmus.settings.rules_entitlements import BY_NAME, Entitlements
from isthmus.text.pacing import Backoff

_QUIET_S = 30.0
#: An agent waits for the API's answer so long, then it is told to come again. Shorter than the
#: handshake's limit of either side (links/link.py), or it would only hear that that is over.
_PATIENCE_S = 7.0
_log = logging.getLogger("isthmus.server")
_audit = logging.getLogger("isthmus.audit")


def follow_binding(path: str) -> FollowedFile[Entitlements]:
    """Read the rules of --agent-identity-binding; bad new ones are one line, and the old ones stay.

    Raises:
        ConfigError: the file cannot be read or is wrong.
    """

    def taken(_: Entitlements) -> None:
        _log.info("reloaded %s", path)

    def failed(error: ConfigError) -> None:
        _log.warning("%s; the rules read before stay in use", error)

    return FollowedFile(path, _read_binding, taken=taken, failed=failed)


def _read_binding(path: str) -> Entitlements:
    from isthmus.dial.settings_entitlements import parse  # YAML is slow to import

    return parse(read_text(path, what="--agent-identity-binding "), path)


class Admission(Part):
    """Decides on agents; see links.server_side.Admit."""

    def __init__(
        self,
        ground: Ground[ServerSettings, ServerMetrics],
        *,
        reviewer: Callable[[], TokenReviewer | None],
        cut: Callable[[AgentLink, str], None],
    ) -> None:
        """``reviewer`` is asked for once the kubeconfig is read.

        ``cut`` ends the link of an agent whose token was taken back, for a reason.
        """
        settings = ground.settings
        self._settings = settings
        self._reviewer_of = reviewer
        self._cut = cut
        self._binds = bool(settings.agent_identity_binding)
        self._admits = settings.roles.admits_agents
        #: To be watched; None: there are no rules, or they are those of the names.
        self.binding_file: FollowedFile[Entitlements] | None = None
        self._reviewer: TokenReviewer | None = None
        self._once = ground.once
        self._reviews: dict[AgentLink, asyncio.Task[None]] = {}
        #: None: tokens are not asked for, or only once.
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
        """Decide now, or when the API has answered."""
        if self._reviewer is None:
            self._decide(link, decided, self._judge(link), Unwelcome.NOT_ENTITLED)
            return
        if not token:
            why = "no token was sent, and this server asks for one"
            self._decide(link, decided, why, Unwelcome.NO_PROOF)
            return
        review = asyncio.get_running_loop().create_task(
            self._review(self._reviewer, link, token, decided), name=f"review:{link.id}"
        )
        self._reviews[link] = review
        review.add_done_callback(lambda _: self._reviews.pop(link, None))

    def left(self, link: AgentLink) -> None:
        """An agent is gone: nothing more is asked for it."""
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
                        decided(f"{why}, come again later", Unwelcome.TRY_LATER)
                        return
                    await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            # Nothing is known against it, so that the audit has nothing to say; where the API is
            # and what is wrong with it is not for somebody who has proved nothing.
            self._tell_wait(why, source)
            decided(
                "the server cannot ask the Kubernetes API about tokens now, come again later",
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
        # It comes again as fast as it likes, and with tokens nobody has proved anything yet: the
        # same refusal of the same host is told once, and then how often it was repeated.
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
