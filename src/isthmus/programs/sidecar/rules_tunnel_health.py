"""Whether the tunnel to the guest cluster works, judged by the lookups through it.

HyperShift's sidecars use the same rule: a lookup that fails through the tunnel and succeeds in the
management cluster means that the tunnel is down; then one lookup every 30 s tries it again, and a
success ends the outage. Their implementation has races that this one avoids:

- any lookup that ends, even one that began before the outage, clears "retry in progress", and a
  second retry starts beside the first. Here only the attempt that took the turn ends it.
- a lookup that began before the tunnel recovered, and fails afterwards, starts a new outage. Here a
  failure counts only if nothing has changed since its attempt began.
- the time of the last retry survives an outage, so that the first retry of the next one comes at
  once. Here each outage starts its own 30 s.
- a dial evaluates the state again after its name was resolved, and may disagree with the resolver:
  an address of the guest network is then dialed in the management network. Here the way is part of
  the resolver's answer (dial/rules_name_order.py).

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
    """The state of the tunnel, changed only by attempts."""

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
        """Whether it works, as far as is known."""
        return self._failed_at is None

    def failing_s(self, *, now: float) -> float:
        """For how long it has not worked; 0 when it works."""
        return 0.0 if self._failed_at is None else now - self._failed_at

    def begin(self, *, now: float) -> TunnelAttempt | None:
        """Begin a lookup through the tunnel; None if it must not be tried now.

        The caller ends the attempt by ``worked``, ``failed`` or ``dropped``.
        """
        if self.works:
            return TunnelAttempt(self._epoch, retry=False)
        if self._retrying is not None or now < self._next_retry:
            return None
        self._next_retry = now + self._retry_s
        self._retrying = TunnelAttempt(self._epoch, retry=True)
        return self._retrying

    def worked(self, attempt: TunnelAttempt) -> bool:
        """An answer came back through the tunnel; True if that ends an outage."""
        # Regardless of when the attempt began: the answer has come back now.
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
        """The attempt says nothing: it was cancelled, or the name exists nowhere."""
        if attempt is self._retrying:
            self._retrying = None
