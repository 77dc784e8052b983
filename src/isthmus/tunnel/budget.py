"""One byte budget per process, divided fairly by peer: the peer that causes memory use pays for it.

A peer is a certificate identity, a token subject, a UNIX uid, or a source address for the
unauthenticated. Everything kept on behalf of a peer (early bytes, held bytes, unfinished messages,
pending dials) is charged to its account before it is allocated and given back when it is freed.

A peer's share is the amount still free ("dynamic thresholds", Choudhury and Hahne, 1998): a single
peer may take half of the budget, n equally greedy peers take 1/(n+1) each, and a newcomer always
finds room. Bytes that have already arrived can only be charged, so a peer can exceed its share. It
does not reduce the shares of others: a share is never below 1/(n+1) of the budget, where n counts
the peers that hold a lot, and also those that hold a little once they exceed the budget together. A
peer over its share is slowed first and refused second; the code that holds the bytes decides how to
slow it (mux: withhold credit, gRPC: brake the call).

An account can be divided by the same rule: at an agent the server has an account, and each client
that the server dials for has one inside it.

Pure, and O(1) per call.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import nlargest

#: A slowed peer must be this far below its share to return to full speed.
_ROOM = 4  # a quarter
#: Peers that hold more than this part of the budget are counted when a share is computed. _LARGE is
#: the usual bound, so that many peers that hold next to nothing do not make shares small; _MEDIUM
#: applies once all peers together exceed the budget.
_LARGE, _MEDIUM = 64, 1024
#: This part of the budget is reserved for peers that hold little when others have used up the rest.
_RESERVE = 8

#: The reason sent to a refused client.
OVER_SHARE = "the memory budget is used up, and this client holds more than its share"


class Budget:
    """The bytes that a process keeps for its peers."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.most_used_bytes = 0
        #: How often a peer over its share asked for, or caused, more memory use.
        self.over_share = 0
        #: The number of peers that hold a lot, of those that hold a little or more, and both
        #: bounds.
        self.large = self.medium = 0
        self.large_bytes, self.medium_bytes = total_bytes // _LARGE, total_bytes // _MEDIUM
        #: The bytes held by all peers that do not hold a lot.
        self.small_bytes = 0
        self._accounts: dict[Hashable, Account] = {}

    def __repr__(self) -> str:
        return f"<Budget {self.used_bytes} of {self.total_bytes}, {len(self._accounts)} peers>"

    def account(self, peer: Hashable) -> Account:
        """Open the account of a peer, or share one that is open; ``close`` it once."""
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = Account(self, peer)
        account.users += 1
        return account

    def allows(self, peer: Hashable, size: int) -> bool:
        """Whether a peer could take ``size`` bytes; nothing is charged."""
        return (self._accounts.get(peer) or Account(self, peer)).allows(size)

    def may_not_open(self, peer: Hashable) -> bool:
        """Whether the budget is used up and this peer holds more than its share."""
        account = self._accounts.get(peer)
        return account is not None and account.may_not_open

    @property
    def share_bytes(self) -> int:
        """The free bytes, which is also what any one peer may hold right now."""
        return max(self.total_bytes - self.used_bytes, 0)

    @property
    def exhausted(self) -> bool:
        """Whether the budget is used up, except for peers below their share."""
        return self.used_bytes >= self.total_bytes

    @property
    def peers(self) -> int:
        """The number of open accounts."""
        return len(self._accounts)

    def largest(self, most: int) -> list[Account]:
        """The accounts that hold the most, for snapshots."""
        return nlargest(most, self._accounts.values(), key=lambda it: it.used_bytes)

    def drop(self, account: Account) -> None:
        """Remove an account without users that holds nothing."""
        if self._accounts.get(account.peer) is account:
            del self._accounts[account.peer]


class Account:
    """The bytes kept for one peer by all its connections."""

    __slots__ = (
        "_inside",
        "budget",
        "large",
        "medium",
        "parent",
        "peer",
        "used_bytes",
        "users",
    )

    def __init__(self, budget: Budget, peer: Hashable, parent: Account | None = None) -> None:
        self.budget = budget
        self.peer = peer
        self.parent = parent
        self.used_bytes = 0
        self.users = 0
        #: The number of inner accounts that hold a lot, and of those that hold a little or more.
        self.large = self.medium = 0
        self._inside: dict[Hashable, Account] | None = None

    def __repr__(self) -> str:
        return f"<Account {self.peer!r}, {self.used_bytes} bytes>"

    def inside(self, peer: Hashable) -> Account:
        """Open an account inside this one, or share one that is open; ``close`` it once."""
        if self._inside is None:
            self._inside = {}
        account = self._inside.get(peer)
        if account is None:
            account = self._inside[peer] = Account(self.budget, peer, self)
            self.users += 1
        account.users += 1
        return account

    @property
    def divided(self) -> bool:
        """Whether it contains accounts."""
        return bool(self._inside)

    def join(self) -> Account:
        """Add a user, which must also ``close`` it."""
        self.users += 1
        return self

    # Every dial opens a stream and closes it. Two steps in one call, and no further call for an
    # account that holds little and stays open: separate calls took 4 % of a dial.

    def enter(self, size: int) -> Account:
        """``join`` and ``hold``."""
        self.users += 1
        budget = self.budget
        used = self.used_bytes + size
        if self.parent is None and used <= budget.medium_bytes:
            self.used_bytes = used
            budget.small_bytes += size
            budget.used_bytes += size
            if budget.used_bytes > budget.most_used_bytes:
                budget.most_used_bytes = budget.used_bytes
        else:
            self.hold(size)
        return self

    def admit(self, size: int) -> bool:
        """``take``, and ``join`` if granted."""
        budget = self.budget
        used, total = self.used_bytes + size, budget.used_bytes + size
        room = self.parent is None and used + total <= budget.total_bytes
        if room and used <= budget.medium_bytes:
            self.users += 1
            self.used_bytes, budget.used_bytes = used, total
            budget.small_bytes += size
            if total > budget.most_used_bytes:
                budget.most_used_bytes = total
            return True
        taken = self.take(size)
        self.users += taken
        return taken

    def leave(self, size: int) -> None:
        """``give_back`` and ``close``."""
        budget, parent = self.budget, self.parent
        self.users -= 1
        outer = self if parent is None else parent
        if self.users and outer.used_bytes <= budget.medium_bytes and outer.parent is None:
            self.used_bytes -= size
            if parent is not None:
                parent.used_bytes -= size
            budget.small_bytes -= size
            budget.used_bytes -= size
        else:
            self.give_back(size)

    def take_over(self, size: int, before: Account) -> None:
        """``hold`` bytes that another account paid for, and leave that account."""
        if self.parent is before and self.used_bytes + size <= self.budget.medium_bytes:
            # The bytes of an inner account count for it already, and keep it open.
            self.used_bytes += size
            before.users -= 1
        else:
            self.hold(size)
            before.leave(size)

    @property
    def share_bytes(self) -> int:
        """The bytes it may hold now: the free bytes, but at least its part among the large ones."""
        return self._share(0)

    def _share(self, more: int) -> int:
        """The share after ``more`` bytes are charged."""
        budget, parent = self.budget, self.parent
        among = self._among
        whole = budget.total_bytes if parent is None else parent._share(more)
        free = whole - among.used_bytes - more
        if free + whole // _RESERVE >= 0:
            also = 1 if self.used_bytes > budget.large_bytes else 2
            part = max(whole // (among.large + also), budget.large_bytes)
        else:  # many peers hold a little each, but too much together
            also = 1 if self.used_bytes > budget.medium_bytes else 2
            part = max(whole // (among.medium + also), budget.medium_bytes)
        return free if free > part else part

    @property
    def over_share(self) -> bool:
        """Whether it holds more than its share and must be slowed."""
        # Usually it holds almost nothing, or three quarters of the budget are free.
        used, budget = self.used_bytes, self.budget
        if used <= budget.medium_bytes or 4 * budget.used_bytes <= budget.total_bytes:
            return False
        return used > self._share(0)

    @property
    def may_not_open(self) -> bool:
        """Whether the budget is used up and it holds more than its share: refuse its requests."""
        return self.budget.exhausted and self.over_share

    @property
    def has_room(self) -> bool:
        """Whether it holds clearly less than its share."""
        share = self.share_bytes
        return self.used_bytes <= share - share // _ROOM

    def take(self, size: int) -> bool:
        """Charge before allocating; False: nothing was charged, refuse."""
        if not self.allows(size):
            self.budget.over_share += 1
            return False
        self._charge(size)
        return True

    def allows(self, size: int) -> bool:
        """Whether ``size`` bytes could be taken."""
        budget = self.budget
        if self.parent is None and (
            self.used_bytes + budget.used_bytes + 2 * size <= budget.total_bytes
        ):
            return True  # usually almost all of the budget is free
        if self.used_bytes + size > self._share(size):
            return False
        reserve = budget.total_bytes // _RESERVE
        if budget.used_bytes + size <= budget.total_bytes + reserve:
            return True
        # Peers over their share do not use up the reserve of those that hold little.
        return self.used_bytes + size <= budget.large_bytes and budget.small_bytes + size <= reserve

    def hold(self, size: int) -> bool:
        """Charge bytes that have already arrived; False: the peer must be slowed."""
        self._charge(size)
        if self.used_bytes > self.budget.medium_bytes and self.over_share:
            self.budget.over_share += 1
            return False
        return True

    def _charge(self, size: int) -> None:
        budget, parent = self.budget, self.parent
        before = self.used_bytes
        self.used_bytes = used = before + size
        if before <= budget.large_bytes:
            if before <= budget.medium_bytes < used:
                self._among.medium += 1
            if budget.large_bytes < used:
                self._among.large += 1
        if parent is not None:
            parent._charge(size)
            return
        if used <= budget.large_bytes:
            budget.small_bytes += size
        elif before <= budget.large_bytes:
            budget.small_bytes -= before
        budget.used_bytes += size
        if budget.used_bytes > budget.most_used_bytes:
            budget.most_used_bytes = budget.used_bytes

    @property
    def _among(self) -> Budget | Account:
        """The budget or account that contains it."""
        return self.budget if self.parent is None else self.parent

    def give_back(self, size: int) -> None:
        """Give back bytes that were charged."""
        self._uncharge(size)
        if not self.used_bytes:
            self._drop_if_unused()

    def _uncharge(self, size: int) -> None:
        budget, parent = self.budget, self.parent
        before = self.used_bytes
        self.used_bytes = used = before - size
        if used <= budget.large_bytes:
            if used <= budget.medium_bytes < before:
                self._among.medium -= 1
            if budget.large_bytes < before:
                self._among.large -= 1
        if parent is not None:
            parent._uncharge(size)
            return
        if before <= budget.large_bytes:
            budget.small_bytes -= size
        elif used <= budget.large_bytes:
            budget.small_bytes += used
        budget.used_bytes -= size

    def close(self) -> None:
        """Remove a user; without users and bytes the account is removed."""
        self.users -= 1
        if not self.users:
            self._drop_if_unused()

    def _drop_if_unused(self) -> None:
        if self.users or self.used_bytes:
            return
        parent = self.parent
        if parent is None:
            self.budget.drop(self)
        elif parent._inside is not None and parent._inside.get(self.peer) is self:
            del parent._inside[self.peer]
            parent.close()


class Deposit:
    """Bytes charged to an account until ``close`` is first called."""

    __slots__ = ("_account", "_size")

    def __init__(self, account: Account, size: int) -> None:
        self._account: Account | None = account.join()
        self._size = size
        account.hold(size)

    def close(self) -> None:
        """Give the bytes back, unless already done."""
        account, self._account = self._account, None
        if account is not None:
            account.give_back(self._size)
            account.close()


#: The memory of a stream besides the bytes that it holds.
STREAM_BYTES = 1024
#: What a full sink keeps in addition and does not report (net/raw.py).
FULL_SINK_BYTES = 64 * 1024
#: What a peer may have in flight on a stream whose account is over its share, and while the
#: budget is used up.
SLOW_WINDOW, LEAST_WINDOW = 64 * 1024, 4 * 1024
#: The memory of an unauthenticated connection: TLS buffers and a first message.
HANDSHAKE_BYTES = 32 * 1024
#: For a session without a budget: in a library or a test.
UNBOUNDED = Budget(2**62)
