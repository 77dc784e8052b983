"""One byte budget per process, divided fairly by peer: whoever causes bytes to be kept pays.

A peer is a certificate identity, a token subject, a UNIX uid, or a source address for the
unauthenticated. Everything kept on behalf of one (early bytes, held bytes, unfinished messages,
pending dials) is charged to its account before it is allocated and given back when it goes.

The share of a peer is as much as is still free ("dynamic thresholds", Choudhury and Hahne, 1998):
alone it may take half of the budget, n equally greedy peers take 1/(n+1) each, and there is always
room for a newcomer. Bytes that are here already can only be charged, so that a peer can get over
its share; it never takes away another's that way, for the share of any peer is at least what n+1
equally greedy ones would have, n being the peers that hold a lot, and those that hold a little as
well where so many do that it is too much. Over its share a peer is slowed first and refused second;
how to slow is up to whoever holds the bytes (credit withheld on mux, the call braked on gRPC).

An account can be divided again, by the same rule: an agent's server has one, and inside it each
client of which that server says that it asks.

Pure, and O(1) per call.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import nlargest

#: A peer that was slowed is not until it is this far inside its share, and not at its edge.
_ROOM = 4  # a quarter
#: Whoever holds more than this part of a budget counts where a share is the n-th part: so that many
#: who hold next to nothing do not make it small, and where they all hold too much together.
_LARGE, _MEDIUM = 64, 1024
#: What those who hold little may take together when others have used up everything, and more.
_RESERVE = 8

#: What a client is told that is refused for it.
OVER_SHARE = "the memory budget is used up, and this client holds more than its share"


class Budget:
    """The bytes that a process keeps on behalf of its peers."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.most_used_bytes = 0
        #: How often a peer was over its share when it asked, or caused, more to be kept.
        self.over_share = 0
        #: How many peers hold a lot, and how many at least a little; and what that is.
        self.large = self.medium = 0
        self.large_bytes, self.medium_bytes = total_bytes // _LARGE, total_bytes // _MEDIUM
        #: What the others hold together.
        self.small_bytes = 0
        self._accounts: dict[Hashable, Account] = {}

    def __repr__(self) -> str:
        return f"<Budget {self.used_bytes} of {self.total_bytes}, {len(self._accounts)} peers>"

    def account(self, peer: Hashable) -> Account:
        """Open the account of a peer, or join those that have it open; ``close`` it once."""
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = Account(self, peer)
        account.users += 1
        return account

    def allows(self, peer: Hashable, size: int) -> bool:
        """Tell whether a peer could take so many bytes; nothing is charged."""
        return (self._accounts.get(peer) or Account(self, peer)).allows(size)

    def may_not_open(self, peer: Hashable) -> bool:
        """Tell whether nothing is left, and this peer holds more than its share."""
        account = self._accounts.get(peer)
        return account is not None and account.may_not_open

    @property
    def share_bytes(self) -> int:
        """What is free, and with that what any one peer may hold right now."""
        return max(self.total_bytes - self.used_bytes, 0)

    @property
    def exhausted(self) -> bool:
        """Nothing is left for anybody but those who hold less than their share."""
        return self.used_bytes >= self.total_bytes

    @property
    def peers(self) -> int:
        """How many accounts are open."""
        return len(self._accounts)

    def largest(self, most: int) -> list[Account]:
        """The accounts that hold the most, for snapshots."""
        return nlargest(most, self._accounts.values(), key=lambda it: it.used_bytes)

    def drop(self, account: Account) -> None:
        """Forget an account that nobody uses and that holds nothing."""
        if self._accounts.get(account.peer) is account:
            del self._accounts[account.peer]


class Account:
    """What is kept on behalf of one peer, by every connection of it."""

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
        #: How many of those inside hold a lot, and how many at least a little.
        self.large = self.medium = 0
        self._inside: dict[Hashable, Account] | None = None

    def __repr__(self) -> str:
        return f"<Account {self.peer!r}, {self.used_bytes} bytes>"

    def inside(self, peer: Hashable) -> Account:
        """Open an account inside this one, or join those that have it open; ``close`` it once."""
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
        """There are accounts inside it."""
        return bool(self._inside)

    def join(self) -> Account:
        """One user more, who closes it as well."""
        self.users += 1
        return self

    # Every dial opens a stream and closes it. Two steps in one call, and no further call for an
    # account that holds little and stays open: as calls of their own the steps took 4 % of a dial.

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
        """``take``, and ``join`` if that is granted."""
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
        """``hold`` what another paid for so far, which a user of it leaves with."""
        if self.parent is before and self.used_bytes + size <= self.budget.medium_bytes:
            # What is inside an account counts for it already, and keeps it open.
            self.used_bytes += size
            before.users -= 1
        else:
            self.hold(size)
            before.leave(size)

    @property
    def share_bytes(self) -> int:
        """What it may hold right now: what is free, and at least its part among the large ones."""
        return self._share(0)

    def _share(self, more: int) -> int:
        """The share once so many bytes more are charged."""
        budget, parent = self.budget, self.parent
        among = self._among
        whole = budget.total_bytes if parent is None else parent._share(more)
        free = whole - among.used_bytes - more
        if free + whole // _RESERVE >= 0:
            also = 1 if self.used_bytes > budget.large_bytes else 2
            part = max(whole // (among.large + also), budget.large_bytes)
        else:  # so many hold a little each that it is too much
            also = 1 if self.used_bytes > budget.medium_bytes else 2
            part = max(whole // (among.medium + also), budget.medium_bytes)
        return free if free > part else part

    @property
    def over_share(self) -> bool:
        """It holds more than its share: slow it."""
        # Most of the time it holds next to nothing, or three quarters of the budget are free.
        used, budget = self.used_bytes, self.budget
        if used <= budget.medium_bytes or 4 * budget.used_bytes <= budget.total_bytes:
            return False
        return used > self._share(0)

    @property
    def may_not_open(self) -> bool:
        """Nothing is left, and it holds more than its share: refuse what it asks for now."""
        return self.budget.exhausted and self.over_share

    @property
    def has_room(self) -> bool:
        """It holds clearly less than its share."""
        share = self.share_bytes
        return self.used_bytes <= share - share // _ROOM

    def take(self, size: int) -> bool:
        """Ask before allocating; False: nothing was charged, refuse."""
        if not self.allows(size):
            self.budget.over_share += 1
            return False
        self._charge(size)
        return True

    def allows(self, size: int) -> bool:
        """Tell whether so many bytes could be taken."""
        budget = self.budget
        if self.parent is None and (
            self.used_bytes + budget.used_bytes + 2 * size <= budget.total_bytes
        ):
            return True  # mostly nearly all of it is free
        if self.used_bytes + size > self._share(size):
            return False
        reserve = budget.total_bytes // _RESERVE
        if budget.used_bytes + size <= budget.total_bytes + reserve:
            return True
        # What large ones got over their shares is not taken from the reserve of the small ones.
        return self.used_bytes + size <= budget.large_bytes and budget.small_bytes + size <= reserve

    def hold(self, size: int) -> bool:
        """Charge bytes that are here already; False: it is over its share now, slow it."""
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
        """What it is a part of."""
        return self.budget if self.parent is None else self.parent

    def give_back(self, size: int) -> None:
        """What was charged is not kept any more."""
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
        """One user fewer; the account goes with the last, when it holds nothing."""
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
    """So many bytes that are charged to an account until it is closed, once."""

    __slots__ = ("_account", "_size")

    def __init__(self, account: Account, size: int) -> None:
        self._account: Account | None = account.join()
        self._size = size
        account.hold(size)

    def close(self) -> None:
        """Give them back, if that was not done."""
        account, self._account = self._account, None
        if account is not None:
            account.give_back(self._size)
            account.close()


#: What a connection costs until it has shown who it is: buffers of TLS, and a first message.
HANDSHAKE_BYTES = 32 * 1024
#: For a session that nobody gave a budget: a library, a test.
UNBOUNDED = Budget(2**62)
