"""Virtual servers as netlink messages, byte by byte as linux/ip_vs.h has them."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from pyroute2 import NetlinkError

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.ipvs_netlink import IpvsMessage, IpvsTable, message_of
from isthmus.programs.node_proxy.rules.ipvs.servers import (
    AddDestination,
    AddServer,
    ChangeServer,
    DestinationState,
    IpvsCommand,
    IpvsDestination,
    IpvsFlags,
    KernelServer,
    RemoveDestination,
    RemoveServer,
    ServerKey,
    VirtualServer,
    WeighDestination,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, PortProtocol

KEY = ServerKey("10.0.0.1", 80, PortProtocol.TCP)
KEY6 = ServerKey("fd00::1", 53, PortProtocol.UDP)
SERVER = VirtualServer(key=KEY, scheduler="rr", flags=IpvsFlags.PERSISTENT, timeout_s=10800)
DEST = IpvsDestination("10.1.0.1", 8080)


def u16(number: int) -> bytes:
    return struct.pack("=H", number)


def u32(number: int) -> bytes:
    return struct.pack("=I", number)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def key_of(family: int, protocol: int, address: bytes, port: int) -> bytes:
    return (
        attribute(1, u16(family))
        + attribute(2, u16(protocol))
        + attribute(3, address)
        + attribute(4, struct.pack("!H", port))
    )


V4_KEY = key_of(2, 6, socket.inet_aton("10.0.0.1"), 80)
V6_KEY = key_of(10, 17, socket.inet_pton(socket.AF_INET6, "fd00::1"), 53)


def server_of(flags: int, timeout: int, mask: bytes, scheduler: bytes = b"rr\0") -> bytes:
    return (
        attribute(6, scheduler)
        + attribute(7, u32(flags) + u32(0xFFFFFFFF))
        + attribute(8, u32(timeout))
        + attribute(9, mask)
    )


def dest_of(weight: int | None) -> bytes:
    place = (
        attribute(11, u16(2))
        + attribute(1, socket.inet_aton("10.1.0.1"))
        + attribute(2, struct.pack("!H", 8080))
    )
    if weight is None:
        return place
    return place + b"".join(
        attribute(kind, u32(n)) for kind, n in ((3, 0), (4, weight), (5, 0), (6, 0))
    )


@pytest.mark.parametrize(
    ("command", "number", "body"),
    [
        (
            AddServer(server=SERVER),
            1,
            attribute(1, V4_KEY + server_of(1, 10800, b"\xff\xff\xff\xff")),
        ),
        (
            ChangeServer(
                server=VirtualServer(key=KEY6, scheduler="mh", flags=IpvsFlags.SOURCE_PORT)
            ),
            2,
            attribute(1, V6_KEY + server_of(0x10, 0, u32(128), b"mh\0")),
        ),
        (RemoveServer(key=KEY6), 3, attribute(1, V6_KEY)),
        (
            AddDestination(key=KEY, destination=DEST),
            5,
            attribute(1, V4_KEY) + attribute(2, dest_of(1)),
        ),
        (
            WeighDestination(key=KEY, destination=DEST, weight=0),
            6,
            attribute(1, V4_KEY) + attribute(2, dest_of(0)),
        ),
        (
            RemoveDestination(key=KEY, destination=DEST),
            7,
            attribute(1, V4_KEY) + attribute(2, dest_of(None)),
        ),
    ],
)
def test_commands(command: IpvsCommand, number: int, body: bytes) -> None:
    message = message_of(command)
    message.encode()
    assert bytes(message.data[16:]) == bytes([number, 1, 0, 0]) + body


def answer(number: int, kind: int, body: bytes) -> IpvsMessage:
    inner = bytes([number, 1, 0, 0]) + attribute(kind | 0x8000, body)
    message = IpvsMessage(struct.pack("=IHHII", 16 + len(inner), 0, 0, 0, 0) + inner)
    message.decode()
    return message


class Kernel:
    """Answers with what a kernel sends, addresses in 16 bytes and all."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bytes]] = []

    def __call__(self, message: IpvsMessage, flags: int) -> Iterable[Any]:
        message.encode()
        self.asked.append((message["cmd"], flags, bytes(message.data[20:])))
        if message["cmd"] == 4:
            wide = key_of(2, 6, socket.inet_aton("10.0.0.1") + bytes(12), 80)
            mark = attribute(1, u16(2)) + attribute(5, u32(7))
            yield answer(1, 1, wide + server_of(3, 10800, b"\xff" * 4))
            yield answer(1, 1, mark + server_of(2, 0, b"\xff" * 4))
            yield answer(1, 1, V6_KEY + server_of(2, 0, u32(128)))
        elif message["cmd"] == 8:
            numbers = ((3, 0), (4, 1), (5, 0), (6, 0), (7, 3), (8, 2), (9, 0))
            yield answer(
                5,
                2,
                attribute(1, socket.inet_aton("10.1.0.1") + bytes(12))
                + attribute(2, struct.pack("!H", 8080))
                + b"".join(attribute(kind, u32(number)) for kind, number in numbers)
                + attribute(11, u16(2)),
            )


def test_listing() -> None:
    kernel = Kernel()
    assert IpvsTable(kernel).servers(IpFamily.IPV4) == [
        KernelServer(server=SERVER, destinations={DEST: DestinationState(weight=1, connections=5)})
    ]
    # Dumps, and that of destinations names its server.
    assert [(number, flags) for number, flags, _ in kernel.asked] == [(4, 0x301), (8, 0x301)]
    assert kernel.asked[1][2] == attribute(1, V4_KEY)
    (six,) = IpvsTable(kernel).servers(IpFamily.IPV6)
    assert six.server == VirtualServer(key=KEY6, scheduler="rr")


def test_timeouts() -> None:
    kernel = Kernel()
    IpvsTable(kernel).set_timeouts(tcp_s=900, tcp_fin_s=0, udp_s=300)
    assert kernel.asked == [
        (12, 5, attribute(4, u32(900)) + attribute(5, u32(0)) + attribute(6, u32(300)))
    ]


def test_refusals_say_what_was_refused() -> None:
    def refuse(message: IpvsMessage, flags: int) -> Iterable[Any]:
        raise NetlinkError(errno.ENOENT, "No such file or directory")

    table = IpvsTable(refuse)
    with pytest.raises(ApplyError, match="list the servers"):
        table.servers(IpFamily.IPV4)
    with pytest.raises(ApplyError, match="RemoveServer") as caught:
        table.apply(RemoveServer(key=KEY))
    assert "10.0.0.1" in caught.value.rule


def test_only_in_its_block() -> None:
    with pytest.raises(RuntimeError, match="with block"):
        IpvsTable().servers(IpFamily.IPV4)
    with IpvsTable(Kernel()) as table:
        assert table.servers(IpFamily.IPV6)
