"""The byte budget of a process: shares, and what is over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.tunnel.budget import Account, Budget

KIB = 1024


def fill(budget: Budget, *peers: str, piece: int = KIB) -> dict[str, int]:
    """Let peers take in turns until nobody gets any more."""
    accounts = {peer: budget.account(peer) for peer in peers}
    took = True
    while took:
        took = any([account.take(piece) for account in accounts.values()])
    return {peer: account.used_bytes for peer, account in accounts.items()}


@pytest.mark.parametrize("peers", [1, 2, 3, 9])
def test_greedy_peers_get_equal_shares_and_leave_as_much(peers: int) -> None:
    budget = Budget(1000 * KIB)
    used = fill(budget, *(f"peer-{n}" for n in range(peers)))
    share = 1000 * KIB / (peers + 1)
    assert all(abs(it - share) <= 2 * KIB for it in used.values())


def test_a_newcomer_finds_room_beside_the_greedy() -> None:
    budget = Budget(1000 * KIB)
    fill(budget, "greedy", "greedier")
    newcomer = budget.account("newcomer")
    assert newcomer.take(100 * KIB)
    assert not newcomer.over_share


def test_taking_over_the_share_charges_nothing() -> None:
    budget = Budget(100 * KIB)
    account = budget.account("one")
    assert not account.take(60 * KIB)
    assert (account.used_bytes, budget.used_bytes, budget.over_share) == (0, 0, 1)


def test_what_is_here_already_is_charged_and_said_to_be_too_much() -> None:
    budget = Budget(100 * KIB)
    account = budget.account("one")
    assert account.hold(40 * KIB)
    assert not account.hold(40 * KIB)
    assert account.used_bytes == budget.used_bytes == 80 * KIB
    assert account.over_share


def test_an_account_goes_with_its_last_user_and_its_last_byte() -> None:
    budget = Budget(100 * KIB)
    first, second = budget.account("one"), budget.account("one")
    assert first is second
    first.hold(10)
    first.close()
    second.close()
    assert budget.peers == 1
    second.give_back(10)
    assert budget.peers == 0
    assert budget.used_bytes == 0


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50 * KIB), st.booleans()), max_size=200)
)
def test_the_sum_is_the_sum_and_taking_stays_inside_total_and_reserve(
    steps: list[tuple[int, int, bool]],
) -> None:
    budget = Budget(100 * KIB)
    accounts = [budget.account(n) for n in range(5)]
    for number, size, more in steps:
        account = accounts[number]
        if more:
            account.take(size)
        elif account.used_bytes:
            account.give_back(min(size, account.used_bytes))
        total = sum(it.used_bytes for it in accounts)
        assert budget.used_bytes == total <= budget.total_bytes * 9 // 8
        assert budget.large == sum(it.used_bytes > budget.large_bytes for it in accounts)
        assert budget.medium == sum(it.used_bytes > budget.medium_bytes for it in accounts)
        small = [it.used_bytes for it in accounts if it.used_bytes <= budget.large_bytes]
        assert budget.small_bytes == sum(small)


def test_one_that_got_over_its_share_takes_nothing_from_the_others() -> None:
    budget = Budget(1000 * KIB)
    hog, modest = budget.account("hog"), budget.account("modest")
    hog.hold(990 * KIB)  # bytes that had come already
    assert modest.hold(300 * KIB)
    assert budget.exhausted
    assert hog.over_share and not modest.over_share


def test_even_in_an_exhausted_budget_a_newcomer_may_take() -> None:
    budget = Budget(1000 * KIB)
    budget.account("hog").hold(1000 * KIB)
    newcomer = budget.account("newcomer")
    assert newcomer.take(100 * KIB)
    assert not newcomer.take(100 * KIB), "the reserve is bounded, too"


def test_a_newcomer_may_take_however_far_another_is_over_its_share() -> None:
    budget = Budget(1000 * KIB)
    budget.account("hog").hold(3000 * KIB)  # windows that were given when there was room
    newcomers = [budget.account(n) for n in range(100)]
    assert newcomers[0].take(10 * KIB)
    took = [it.take(10 * KIB) for it in newcomers[1:]]
    assert 10 <= sum(took) <= 12, "the reserve is bounded, too"


def test_many_small_peers_do_not_shrink_a_share() -> None:
    budget = Budget(1000 * KIB)
    for number in range(1000):
        budget.account(number).hold(100)
    assert not budget.large
    assert budget.account("one").take(400 * KIB)


def test_an_account_is_divided_by_the_same_rule() -> None:
    budget = Budget(1200 * KIB)
    server = budget.account("server")
    greedy, modest = server.inside("greedy"), server.inside("modest")
    while greedy.take(KIB):
        pass
    assert abs(greedy.used_bytes - 400 * KIB) <= 2 * KIB
    assert server.used_bytes == budget.used_bytes == greedy.used_bytes
    greedy.hold(700 * KIB)
    assert greedy.over_share and not modest.over_share
    assert modest.hold(100 * KIB)
    other = budget.account("other server")
    assert other.hold(300 * KIB), "nor do its clients take another server's share"


def test_an_account_inside_another_keeps_it_open() -> None:
    budget = Budget(100 * KIB)
    server = budget.account("server")
    one, again = server.inside("one"), server.inside("one")
    assert one is again
    one.hold(10)
    server.close()
    one.close()
    again.close()
    assert budget.peers == 1
    one.give_back(10)
    assert (budget.peers, budget.used_bytes) == (0, 0)


@pytest.mark.parametrize("inside", [False, True])
def test_many_who_hold_a_little_each_are_slowed_before_it_is_much_too_much(inside: bool) -> None:
    budget = Budget(64 * 1024 * KIB)
    server = budget.account("server")
    peers = [server.inside(n) if inside else budget.account(n) for n in range(900)]
    modest = server.inside("modest") if inside else budget.account("modest")
    modest.hold(40 * KIB)
    while any([peer.hold(64 * KIB) for peer in peers if not peer.over_share]):
        pass
    assert budget.used_bytes <= 2 * budget.total_bytes
    assert not modest.over_share
    for peer in peers:
        peer.give_back(peer.used_bytes)
    assert budget.medium == 0 and server.medium == 0


def _state(budget: Budget) -> object:
    accounts = [it for top in budget.largest(9) for it in (top, *(top._inside or {}).values())]
    held = sorted((repr(it.peer), it.used_bytes, it.users, it.large, it.medium) for it in accounts)
    sums = budget.used_bytes, budget.small_bytes, budget.most_used_bytes
    return held, sums, budget.large, budget.medium, budget.over_share


@given(st.lists(st.tuples(st.sampled_from("eal>"), st.integers(0, 3)), max_size=60))
def test_two_steps_in_one_call_are_the_two_steps(steps: list[tuple[str, int]]) -> None:
    """With accounts of peers and of clients inside them, small and large, open and just closed."""
    short, long = Budget(64 * KIB), Budget(64 * KIB)
    entered: list[tuple[Account, Account, int]] = []  # in the one budget, in the other, how much

    def open_account(budget: Budget, number: int) -> Account:
        top = budget.account(number // 2)
        if number % 2 == 0:
            return top
        inside = top.inside("client")
        top.close()
        return inside

    for step, number in steps:
        size = (20, 40, 3000, 20 * KIB)[number]
        if step in "ea":
            one, two = open_account(short, number), open_account(long, number)
            if step == "e":
                one.enter(size)
                two.join().hold(size)
                taken = True
            else:
                taken = one.admit(size)
                assert taken == two.take(size)
                if taken:
                    two.join()
            if taken:
                entered.append((one, two, size))
            one.close()
            two.close()
        elif entered and step == "l":
            one, two, size = entered.pop(number % len(entered))
            one.leave(size)
            two.give_back(size)
            two.close()
        elif entered:
            before, was, size = entered.pop(number % len(entered))
            one, two = open_account(short, number), open_account(long, number)
            one.take_over(size, before)
            two.join().hold(size)
            was.give_back(size)
            was.close()
            entered.append((one, two, size))
            two.close()
            long.most_used_bytes = short.most_used_bytes  # the steps charge twice for a moment
            long.over_share = short.over_share
        assert _state(short) == _state(long)
    for one, _, size in entered:
        one.leave(size)
    assert short.peers == 0 and short.used_bytes == 0
