"""Finding another connection for links that lost theirs.

A link belongs to one server, so that the agent asks for that server by its id, at the address where
the link was and then at every other. While a link is without a connection for longer than
``STAND_IN_S`` the agent makes a new one to the same server beside it: for dials, which do not wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from isthmus.errors import LinkError
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.links.agent_side import ServerLink
from isthmus.links.resuming import NotResumedError
from isthmus.logs import log
from isthmus.programs.agent.linking import Linking, ServerAddress, ServerAddresses
from isthmus.text.pacing import Backoff

#: All agents of a server lose their links in one moment: they do not come back in one.
SPREAD_S = 1.0
STAND_IN_S = 5.0
_FIRST_S, _CAP_S = 0.2, 2.0
_log = logging.getLogger("isthmus.agent")


class Resuming:
    """Has suspended links go on."""

    def __init__(
        self,
        linking: Linking,
        addresses: ServerAddresses,
        *,
        known: Callable[[], Sequence[ServerAddress]],
        metrics: ProgramMetrics,
    ) -> None:
        """``known()`` gives every address of a server that is known now."""
        self._linking = linking
        self._addresses = addresses
        self._known = known
        self._metrics = metrics

    async def resume(self, link: ServerLink, why: str) -> None:
        """Try until the link goes on, cannot go on, or its time is over."""
        self._metrics.link_suspensions += 1
        log(
            _log, logging.INFO, "link suspended", server_id=link.server_id, tunnels=link.load,
            reason=why,
        )  # fmt: skip
        backoff = Backoff(first_s=_FIRST_S, cap_s=_CAP_S, chance=random.random)
        await asyncio.sleep(random.random() * SPREAD_S)
        while link.suspended:
            for address in self._ways_to(link):
                if await self._resumed_by(link, address) or not link.suspended:
                    return
            await asyncio.sleep(backoff.next_s())

    def _ways_to(self, link: ServerLink) -> list[ServerAddress]:
        """Where it was first."""
        host, _, port = link.peer_address.rpartition(":")
        here = host.strip("[]"), port

        def elsewhere(address: ServerAddress) -> bool:
            return (str(address[0][1][0]), str(address[0][1][1])) != here

        return sorted(self._known(), key=elsewhere)

    async def _resumed_by(self, link: ServerLink, address: ServerAddress) -> bool:
        try:
            await self._linking.resume(link, self._addresses, address)
        except NotResumedError as exc:
            if exc.final:
                link.lost(f"not resumed: {exc}")
            self._linking.say_not_resumed(link, address, str(exc))
        except LinkError as exc:
            self._linking.say_not_resumed(link, address, str(exc))
        except Exception as exc:  # whatever it is, the other links go on and this one is retried
            self._linking.say_not_resumed(link, address, repr(exc))
        else:
            return True
        return False
