"""Whether the tunnel to the guest cluster works, as the lookups through it tell.

HyperShift's sidecars judge likewise: a lookup that fails there and works here says that the tunnel
does not; then one lookup in 30 s tries it again, and one that works ends the outage. Theirs has
races that this has not:

- whoever ends a lookup, also one that began before the outage, clears "a retry is under way", and
  a second one starts beside the first. Here the turn belongs to the attempt that took it.
- a lookup that began before the tunnel came back, and fails after, makes it fail again. Here a
  failure counts only when nothing has changed since its attempt began.
- the time of the last retry is kept from one outage to the next, whose first retry then comes at
  once. Here each outage begins its own 30 s.
- a dial asks again after its name was resolved, and may get another answer than the resolver: an
  address of the guest network is then dialed in the management network. Here the way is part of
  what resolving answers (dial/rules_name_order.py).

Pure: time comes in as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

RETRY_S = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class TunnelAttempt:
    """One lookup through the tunnel; ``epoch`` counts the changes before it."""

    epoch: int
    retry: bool


class TunnelHealth:
    """The state, changed only by attempts."""

    def __init__(self, *, retry_s: float = RETRY_S) -> None:
        self._retry_s = retry_s
        self._epoch = 0
        self._failed_at: float | None = None
        self._next_retry = 0.0
        self._retrying: TunnelAttempt | None = None

    def __repr__(self) -> str:
        return f"<TunnelHealth {'works' if self.works else 'does not work'}>"

    @property
    def works(self) -> bool:
        """As far as is known."""
        return self._failed_at is None

    def failing_s(self, *, now: float) -> float:
        """For how long it has not worked; 0 when it works."""
        return 0.0 if self._failed_at is None else now - self._failed_at

    def begin(self, *, now: float) -> TunnelAttempt | None:
        """Begin a lookup through the tunnel; None when that is not to be tried now.

        Whoever gets an attempt ends it by ``worked``, ``failed`` or ``dropped``.
        """
        if self.works:
            return TunnelAttempt(self._epoch, retry=False)
        if self._retrying is not None or now < self._next_retry:
            return None
        self._next_retry = now + self._retry_s
        self._retrying = TunnelAttempt(self._epoch, retry=True)
        return self._retrying

    def worked(self, attempt: TunnelAttempt) -> bool:
        """Something came back through the tunnel; True if that ends an outage."""
        # Whenever the attempt began: what has just come back did so now.
        self.dropped(attempt)
        if self.works:
            return False
        self._failed_at = None
        self._epoch += 1
        return True

    def failed(self, attempt: TunnelAttempt, *, now: float) -> bool:
        """The lookup failed there and worked here; True if that begins an outage."""
        self.dropped(attempt)
        if attempt.epoch != self._epoch or not self.works:
            return False
        self._failed_at = now
        self._next_retry = now + self._retry_s
        self._epoch += 1
        return True

    def dropped(self, attempt: TunnelAttempt) -> None:
        """The attempt told nothing: it was cancelled, or the name does not exist anywhere."""
        if attempt is self._retrying:
            self._retrying = None
