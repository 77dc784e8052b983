"""Fair shares: how many tunnels, dials per second and bytes per second each may have.

A share (rules_policy.py) has limits and a scope: ``per`` requester, each has its own pot;
``per`` network, those of one network have one together; ``per`` share, all that it matches. Of the
shares of each scope the first that matches applies, so a dial takes from three pots at most.
Time is passed in. settings_shares.py reads shares; metered.py limits the
rate of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from isthmus.dial.rules_policy import Per, Question, Share
from isthmus.text.pacing import TokenBucket

#: Unused pots are removed when there are more than this.
MOST_IDLE = 1024


class Limit(Enum):
    """The limited quantities."""

    TUNNELS = "tunnels"
    DIALS = "dials"


class Pot:
    """The use of one share by one key."""

    __slots__ = ("dials", "gates", "key", "share", "to_client", "to_target", "tunnels")

    def __init__(self, share: Share, key: str, *, now: float) -> None:
        self.key = key
        self.tunnels = 0
        self.dials: TokenBucket | None = None
        self.to_target: TokenBucket | None = None
        self.to_client: TokenBucket | None = None
        self.gates: object = None  # the gates that limit bytes
        self.share = share
        self.become(share, now=now)

    def __repr__(self) -> str:
        return f"<Pot {self.key or 'of all'} of {self.share.name}, {self.tunnels} tunnels>"

    def become(self, share: Share, *, now: float) -> None:
        """Switch to these limits."""
        self.share = share
        self.dials = _bucket(self.dials, share.dials_per_s, share.dial_burst, now)
        for way in ("to_target", "to_client"):
            bucket = _bucket(getattr(self, way), share.bytes_per_s, share.burst_bytes, now)
            setattr(self, way, bucket)

    def refuse(self, *, now: float) -> Full | None:
        """Why there can be no further dial; None if there can."""
        share, whose = self.share, self.key or "all"
        if share.max_tunnels and self.tunnels >= share.max_tunnels:
            why = f"{whose} have {share.max_tunnels} tunnels, the most of share {share.name}"
            return Full(share=share, limit=Limit.TUNNELS, why=why)
        if self.dials is not None and not self.dials.has(now=now):
            rate = f"{share.dials_per_s:g}"
            why = f"{whose} dial more than {rate} times a second, the most of share {share.name}"
            return Full(share=share, limit=Limit.DIALS, why=why)
        return None

    def is_idle(self, *, now: float) -> bool:
        """Whether it could be recreated without an effect."""
        buckets = (self.dials, self.to_target, self.to_client)
        return not self.tunnels and all(it is None or it.is_full(now=now) for it in buckets)


def _bucket(old: TokenBucket | None, rate: float, burst: float, now: float) -> TokenBucket | None:
    if not rate:
        return None
    if old is None:
        return TokenBucket(rate=rate, burst=burst, now=now)
    old.change(rate=rate, burst=burst, now=now)
    return old


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """A refusal of a dial: the share, its limit, and a message."""

    share: Share
    limit: Limit
    why: str


class Hold:
    """The amounts taken by a dial and then its tunnel, released once."""

    __slots__ = ("_held", "pots")

    def __init__(self, pots: Sequence[Pot]) -> None:
        self.pots = pots
        self._held = True
        for pot in pots:
            pot.tunnels += 1
            if pot.dials is not None:
                pot.dials.take()

    @property
    def meters(self) -> bool:
        """Whether a pot limits bytes as well."""
        return any(pot.share.bytes_per_s for pot in self.pots)

    def release(self) -> None:
        """Release the amounts, once."""
        if self._held:
            self._held = False
            for pot in self.pots:
                pot.tunnels -= 1


def applying(shares: Iterable[Share], asked: Question) -> Iterator[Share]:
    """The shares that apply to a dial: the first match of each scope."""
    seen: set[Per] = set()
    for share in shares:
        if share.per not in seen and share.match.fits(asked):
            seen.add(share.per)
            yield share


class ShareTable:
    """The pots of a server."""

    def __init__(self, shares: Sequence[Share] = ()) -> None:
        self.shares = tuple(shares)
        self._pots: dict[tuple[str, str], Pot] = {}
        self._sweep_at = MOST_IDLE

    def __len__(self) -> int:
        return len(self._pots)

    @property
    def pots(self) -> Iterable[Pot]:
        """All pots."""
        return self._pots.values()

    def take(self, asked: Question, *, now: float) -> Hold | Full:
        """Charge a dial to its pots, all or none."""
        pots = [self._pot(share, asked, now) for share in applying(self.shares, asked)]
        for pot in pots:
            full = pot.refuse(now=now)
            if full is not None:
                return full
        return Hold(pots)

    def replace(self, shares: Sequence[Share], *, now: float) -> list[Pot]:
        """Switch to other shares; returns the pots whose limits may have changed.

        Open tunnels stay open. A pot continues with the new limits of its share, by name; a pot
        whose share is gone, or has another scope, no longer limits anything.
        """
        after = {share.name: share for share in shares}
        self.shares = tuple(shares)
        touched = list(self._pots.values())
        for key, pot in list(self._pots.items()):
            share = after.get(pot.share.name)
            if share is None or share.per is not pot.share.per:
                del self._pots[key]
                share = Share(name=pot.share.name, per=pot.share.per)
            pot.become(share, now=now)
        return touched

    def _pot(self, share: Share, asked: Question, now: float) -> Pot:
        key = (share.name, share.key(asked))
        pot = self._pots.get(key)
        if pot is None:
            if len(self._pots) >= self._sweep_at:
                self._sweep(now)
            pot = self._pots[key] = Pot(share, key[1], now=now)
        return pot

    def _sweep(self, now: float) -> None:
        """Remove unused pots; rarely, so that the cost per dial is negligible."""
        for key in [key for key, pot in self._pots.items() if pot.is_idle(now=now)]:
            del self._pots[key]
        self._sweep_at = max(MOST_IDLE, 2 * len(self._pots))
