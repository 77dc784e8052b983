"""Transactions with very many refusals, and dumps of a table that changes meanwhile."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from own_network import needs_root, own_network

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.netlink import DUMP, Netlink, attribute
from isthmus.programs.node_proxy.kernel.nftables_kernel import NftTransactions
from isthmus.programs.node_proxy.rules.nftables.compiling import compiled

pytestmark = needs_root
NETFILTER, GET_CHAIN, IP = 12, 0xA04, 2
# More refusals than a socket's receive buffer has room for, and more chains than one answer.
MANY = 5000


@pytest.fixture
def kernel() -> Iterator[NftTransactions]:
    with own_network():
        transactions = NftTransactions()
        yield transactions
        transactions.close()


def apply(kernel: NftTransactions, *lines: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    kernel.apply(compiled(text), text)


def test_the_first_of_many_refusals_is_named(kernel: NftTransactions) -> None:
    lines = [f"flush chain ip others c{number}" for number in range(MANY)]
    with pytest.raises(ApplyError, match="No such file or directory") as refused:
        apply(kernel, "add table ip mine", *lines)
    assert refused.value.rule == lines[0]
    # What the kernel said of that transaction is not taken for an answer to the next.
    apply(kernel, "add table ip mine")


def test_chains_that_change_while_they_are_read_are_no_answer(kernel: NftTransactions) -> None:
    apply(kernel, "add table ip mine", *(f"add chain ip mine c{at}" for at in range(MANY)))
    asked = struct.pack("=BBH", IP, 0, 0) + attribute(1, b"mine\0")
    with Netlink(NETFILTER) as reader:
        answer = reader.ask(GET_CHAIN, DUMP, asked)
        next(answer)
        apply(kernel, f"delete chain ip mine c{MANY - 1}", "add chain ip mine other")
        with pytest.raises(InterruptedError):
            list(answer)
        assert len(list(reader.ask(GET_CHAIN, DUMP, asked))) == MANY
