"""Whose socket it is: real connections, and rows of the kernel's tables as they can be."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.frame.admin.owner import Owner, descriptors_of, find, owner_of

LOCAL, REMOTE = "0100007F:0CEA", "0100007F:1F9F"
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"


def row(*, local: str = LOCAL, remote: str = REMOTE, state: str = "01", uid: str = "1000",
        inode: str = "4711") -> str:  # fmt: skip
    return f" 12: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1"


def test_a_row_is_found_by_both_addresses() -> None:
    table = [HEAD, row(remote="0100007F:0001"), row(local=REMOTE, remote=LOCAL, uid="7"), row()]
    assert find(table, LOCAL, REMOTE) == Owner(uid=1000, inode=4711)
    assert find(table[:3], LOCAL, REMOTE) is None


@pytest.mark.parametrize("state", ["04", "05", "06", "07", "08", "0A"])
def test_a_socket_that_is_not_open_has_no_owner(state: str) -> None:
    assert find([row(state=state, uid="0")], LOCAL, REMOTE) is None


def test_a_socket_without_a_process_has_no_owner() -> None:
    assert find([row(uid="0", inode="0")], LOCAL, REMOTE) is None


@given(st.lists(st.text(max_size=80)))
def test_any_table(rows: list[str]) -> None:
    assert find(rows, LOCAL, REMOTE) is None


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


FAMILIES = [
    (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
    (socket.AF_INET, "127.0.0.1", socket.AF_INET6, "::ffff:127.0.0.1"),
    (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
]


@pytest.mark.parametrize(("family", "host", "client_family", "target"), FAMILIES)
def test_a_real_connection_is_ours(
    family: socket.AddressFamily, host: str, client_family: socket.AddressFamily, target: str
) -> None:
    if socket.AF_INET6 in (family, client_family) and not has_ipv6():
        pytest.skip("no IPv6 here")
    with (
        socket.create_server((host, 0), family=family) as listening,
        socket.socket(client_family) as client,
    ):
        client.connect((target, listening.getsockname()[1]))
        accepted, peer = listening.accept()
        with accepted:
            ends = peer[:2], accepted.getsockname()[:2]
            found = owner_of(*ends)
            assert found is not None and found.uid == os.geteuid()
            assert list(descriptors_of(found.inode)) == [client.fileno()]
            client.close()
            assert owner_of(*ends) is None  # whose it was is not known any more


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    assert owner_of(("127.0.0.1", 3306), ("127.0.0.1", 8095), proc=tmp_path) is None


@pytest.mark.parametrize(("uid_map", "known"), [("0 0 4294967295", True), ("0 1000 1", False)])
def test_a_user_that_has_no_number_here(tmp_path: Path, uid_map: str, known: bool) -> None:
    net = tmp_path / "self" / "net"
    net.mkdir(parents=True)
    (net / "tcp").write_text(f"{HEAD}\n{row(uid='65534')}\n")
    (tmp_path / "self" / "uid_map").write_text(uid_map)
    found = owner_of(("127.0.0.1", 0x0CEA), ("127.0.0.1", 0x1F9F), proc=tmp_path)
    assert (found is not None) is known


def test_a_user_is_named() -> None:
    assert Owner(uid=0, inode=1).user == "root"
    assert Owner(uid=4_000_000_000, inode=1).user == "uid 4000000000"
