"""One log line when the API stops answering, one when it answers again, however often we ask."""

from __future__ import annotations

import logging
import random

from isthmus.errors import KubeError
from isthmus.logs import log
from isthmus.text.backoff import Backoff

_FIRST_S = 0.5
_log = logging.getLogger("isthmus.kube")


class Outage:
    """Counts the failures of one thing done again and again, and spaces the attempts."""

    def __init__(self, doing: str, *, cap_s: float, first_s: float = _FIRST_S) -> None:
        """``doing`` is a few words for the log, such as "renewing the lease"."""
        self._doing = doing
        self._backoff = Backoff(first_s=min(first_s, cap_s), cap_s=cap_s, chance=random.random)
        self._failures = 0

    def failed(self, error: KubeError) -> float:
        """Say so, once per outage; give the delay before the next attempt."""
        self._failures += 1
        if self._failures == 1:
            log(
                _log,
                logging.WARNING,
                "the Kubernetes API fails",
                doing=self._doing,
                status=error.status,
                reason=str(error),
            )
        return self._backoff.next_s()

    def pause_s(self) -> float:
        """Give the delay before trying again after something that was no failure."""
        return self._backoff.next_s()

    def worked(self) -> None:
        """An attempt worked: an outage, if there was one, is over."""
        if self._failures:
            log(
                _log,
                logging.INFO,
                "the Kubernetes API works again",
                doing=self._doing,
                failures=self._failures,
            )
        self._failures = 0
        self._backoff.reset()
