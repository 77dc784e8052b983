"""The SNI router with real TLS on both sides: who reaches whom, and what becomes of all others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path

import pytest
from clients import LIMIT_S, MIB, reset
from programs import Programs
from sni_bed import Bed, Tenant, hello_bytes
from stack import http_get, metric, wait_until

from isthmus.errors import ConfigError
from isthmus.frame.listening import Listening
from isthmus.programs.sni_router import connections as sni_connections
from isthmus.programs.sni_router.metrics import SniRefusal
from isthmus.programs.sni_router.routes_file import RoutesPart
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import (
    AUTHORITY,
    IpPort,
    ProxyHeader,
    Tlv,
    take_proxy_header,
)

UNRECOGNIZED_NAME = bytes.fromhex("15 03 03 0002 02 70")
INTERNAL_ERROR = bytes.fromhex("15 03 03 0002 02 50")
NO_APPLICATION_PROTOCOL = bytes.fromhex("15 03 03 0002 02 78")
SOURCE = IpPort(ip_address("192.0.2.7"), 4711)
DESTINATION = IpPort(ip_address("192.0.2.1"), 6443)


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tenant]]:
    directory = tmp_path_factory.mktemp("tenants")
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Tenant(name, directory)) for name in ("a", "b", "c")}


@pytest.fixture
def bed(tmp_path: Path, tenants: dict[str, Tenant]) -> Iterator[Bed]:
    with Bed(tmp_path, tenants) as made:
        yield made


def read_all(sock: socket.socket) -> bytes:
    """Everything until the end of file."""
    found = bytearray()
    while data := sock.recv(65536):
        found += data
    return bytes(found)


def is_reset(sock: socket.socket) -> bool:
    """Whether the connection ends with a reset, without a byte."""
    try:
        return sock.recv(1) == b"there are none"
    except ConnectionResetError:
        return True


def is_reset_at_once(bed: Bed, said: bytes = b"") -> bool:
    """Whether a new connection is reset, which may be seen as early as by connect()."""
    try:
        with bed.connect() as sock:
            sock.sendall(said)
            return is_reset(sock)
    except ConnectionError:
        return True


@contextlib.contextmanager
def plain_backend() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


def accept(listener: socket.socket) -> socket.socket:
    sock, _ = listener.accept()
    sock.settimeout(LIMIT_S)
    return sock


def read_exactly(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = sock.recv(size - len(found))
        assert data, f"the end came after {len(found)} of {size} bytes"
        found += data
    return bytes(found)


def route(name: str, host: str, *backends: str, more: str = "") -> str:
    return f"- name: {name}\n  hosts: ['{host}']\n  backends: [{', '.join(backends)}]\n{more}"


def at(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


# Who reaches whom.


def test_each_name_reaches_its_tenant(bed: Bed) -> None:
    bed.start()
    for name in ("a", "b", "c"):
        assert bed.greeting(name) == f"{name} api.{name}.example -"
        assert bed.greeting(name, f"other.{name}.example") == f"{name} other.{name}.example -"
        assert bed.greeting(name, f"API.{name}.Example").startswith(f"{name} ")
    assert bed.refusals() == {}


def test_many_at_once(bed: Bed) -> None:
    bed.start()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(bed.greeting, ["a", "b", "c"] * 20))
    assert found == [f"{name} api.{name}.example -" for name in ["a", "b", "c"] * 20]


@pytest.mark.parametrize("name", ["api.d.example", "x.api.a.example", "a.example", "example"])
def test_an_unknown_name_gets_an_alert(bed: Bed, name: str) -> None:
    bed.start()
    with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
        bed.tls("a", name)
    bed.wait_refused(SniRefusal.UNKNOWN_NAME)


@pytest.mark.parametrize("tls12", [False, True])
@pytest.mark.parametrize(
    ("name", "why"), [(None, SniRefusal.NO_NAME), ("nobody.example", SniRefusal.UNKNOWN_NAME)]
)
def test_the_alert_comes_whole_and_then_the_end(
    bed: Bed, name: str | None, why: SniRefusal, tls12: bool
) -> None:
    bed.start()
    with bed.connect() as sock:
        sock.sendall(hello_bytes(name, tls12=tls12))
        assert read_all(sock) == UNRECOGNIZED_NAME
    bed.wait_refused(why)


def test_who_does_not_leave_after_its_alert_is_cut_off(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sni_connections, "FAREWELL_S", 0.05)
    bed.start()
    with bed.connect() as sock:
        sock.sendall(hello_bytes("nobody.example"))
        assert read_all(sock) == UNRECOGNIZED_NAME
        bed.wait(lambda: not len(bed.connections), "it is cut off")


def test_the_default_route_takes_the_rest(bed: Bed) -> None:
    bed.write(more="default: b\n")
    bed.start()
    assert bed.greeting("a") == "a api.a.example -"
    context = ssl.create_default_context(cafile=str(bed.tenants["b"].files.ca_cert))
    context.check_hostname = False
    for name in ("nobody.example", None):
        with context.wrap_socket(bed.connect(), server_hostname=name) as sock:
            assert sock.recv(100).decode().split()[0] == "b"


def test_by_protocol_within_a_name(bed: Bed, tmp_path: Path) -> None:
    with Tenant("a", tmp_path, alpn=("h2",)) as second:
        bed.tenants["a2"] = second
        host = second.host
        bed.write(
            route("h2", host, second.address, more="  alpn: [h2]\n")
            + route("rest", host, bed.tenants["a"].address)
        )
        bed.start()
        assert bed.greeting("a2", alpn=("http/1.1", "h2")) == f"a {host} h2"
        assert bed.greeting("a", alpn=("http/1.1",)) == f"a {host} -"
        assert bed.greeting("a") == f"a {host} -"


def test_a_known_name_without_the_protocol(bed: Bed) -> None:
    a = bed.tenants["a"]
    bed.write(route("h2", a.host, a.address, more="  alpn: [h2]\n"))
    bed.start()
    with bed.connect() as sock:
        sock.sendall(hello_bytes(a.host, alpn=("http/1.1",)))
        assert read_all(sock) == NO_APPLICATION_PROTOCOL
    bed.wait_refused(SniRefusal.NO_PROTOCOL)


# What arrives.


def in_records(message: bytes, size: int) -> bytes:
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


@pytest.mark.parametrize("size", [16384, 100, 17])
def test_a_fragmented_hello_byte_by_byte_arrives_as_it_was_sent(bed: Bed, size: int) -> None:
    with plain_backend() as listener:
        bed.write(route("x", "x.example", at(listener)))
        bed.start()
        data = in_records(hello_bytes("x.example")[5:], size) + b"and what follows"
        with bed.connect() as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in data:
                client.sendall(bytes((byte,)))
            with accept(listener) as far:
                assert read_exactly(far, len(data)) == data


def test_more_than_the_hello_at_once(bed: Bed) -> None:
    with plain_backend() as listener:
        bed.write(route("x", "x.example", at(listener)))
        bed.start()
        data = hello_bytes("x.example") + os.urandom(MIB)
        with bed.connect() as client:
            sender = threading.Thread(target=client.sendall, args=(data,))
            sender.start()
            with accept(listener) as far:
                assert read_exactly(far, len(data)) == data
            sender.join(LIMIT_S)


def extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def vector(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width, "big") + data


def big_hello(name: bytes, key_share: int, padding: int) -> bytes:
    """A hello as browsers send it: GREASE (RFC 8701), X25519MLKEM768, encrypted_client_hello."""
    server_name = vector(2, b"\x00" + vector(2, name))
    share = b"\x0a\x0a" + vector(2, b"\0") + b"\x11\xec" + vector(2, os.urandom(key_share))
    extensions = [
        extension(0x2A2A, b""),
        extension(51, vector(2, share)),
        extension(0xFE0D, b"\x00" + os.urandom(450)),
        extension(0, server_name),
        extension(16, vector(2, vector(1, b"h2") + vector(1, b"http/1.1"))),
        extension(43, b"\x06\x3a\x3a\x03\x04\x03\x03"),
        extension(21, bytes(padding)),
        extension(0x3A3A, b"\0"),
    ]
    body = b"\x03\x03" + os.urandom(32) + vector(1, os.urandom(32))
    body += vector(2, b"\x1a\x1a\x13\x01\x13\x02") + vector(1, b"\0")
    body += vector(2, b"".join(extensions))
    return b"\x01" + vector(3, body)


@pytest.mark.parametrize("padding", [0, 13_000])
def test_a_big_hello(bed: Bed, padding: int) -> None:
    with plain_backend() as listener:
        bed.write(route("x", "x.example", at(listener)))
        bed.start()
        data = in_records(big_hello(b"x.example", 1216, padding), 1400)
        assert len(data) > 1800 + padding
        with bed.connect() as client:
            client.sendall(data)
            with accept(listener) as far:
                assert read_exactly(far, len(data)) == data


def test_a_hello_that_is_too_big(bed: Bed) -> None:
    bed.start()
    with bed.connect() as sock:
        sock.sendall(in_records(big_hello(b"api.a.example", 1216, 17_000), 16384)[:17_000])
        assert is_reset(sock)
    bed.wait_refused(SniRefusal.NOT_TLS)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x00\x00", b"PROXY "])
def test_what_is_not_tls_is_cut(bed: Bed, data: bytes) -> None:
    bed.start()
    with bed.connect() as sock:
        sock.sendall(data)
        assert is_reset(sock)
    bed.wait_refused(SniRefusal.NOT_TLS)


def test_half_closes_and_what_comes_after(bed: Bed) -> None:
    with plain_backend() as listener:
        bed.write(route("x", "x.example", at(listener)))
        bed.start()
        hello = hello_bytes("x.example")
        with bed.connect() as client:
            client.sendall(hello)
            with accept(listener) as far:
                client.shutdown(socket.SHUT_WR)
                assert read_all(far) == hello
                far.sendall(b"late answer")
            assert read_all(client) == b"late answer"
        bed.wait(lambda: not len(bed.connections), "it is over")
        target = HostPort.parse(at(listener))
        assert bed.do(lambda: bed.connections.backends.count(target)) == 0


def test_resets_travel_both_ways(bed: Bed) -> None:
    with plain_backend() as listener:
        bed.write(route("x", "x.example", at(listener)))
        bed.start()
        hello = hello_bytes("x.example")
        with bed.connect() as client:
            client.sendall(hello)
            with accept(listener) as far:
                read_exactly(far, len(hello))
                reset(client)
                with pytest.raises(ConnectionResetError):
                    far.recv(1)
        with bed.connect() as client:
            client.sendall(hello)
            far = accept(listener)
            read_exactly(far, len(hello))
            reset(far)
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_bulk_both_ways(bed: Bed) -> None:
    bed.start()
    data = os.urandom(8 * MIB)
    tenant = bed.tenants["b"]
    context = ssl.create_default_context(cafile=str(tenant.files.ca_cert))

    async def there_and_back() -> bytes:
        # One thread: OpenSSL's connections are not for two.
        reader, writer = await asyncio.open_connection(
            sock=bed.connect(), ssl=context, server_hostname=tenant.host
        )
        await reader.readexactly(len(b"b api.b.example -\n"))
        writer.write(data)
        echoed = await reader.readexactly(len(data))
        writer.close()
        await writer.wait_closed()
        return echoed

    assert asyncio.run(asyncio.wait_for(there_and_back(), LIMIT_S)) == data


# Backends.


def test_a_backend_that_is_down_is_passed_over(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        down = at(gone)
    a = bed.tenants["a"]
    bed.write(route("a", a.host, down, a.address))
    router = bed.start()
    for _ in range(4):
        assert bed.greeting("a") == "a api.a.example -"
    assert bed.refusals() == {}
    failures = bed.do(lambda: dict(router.metrics.backend_failures))
    assert set(failures) <= {("a", down)}  # one of the two came first, and the next time last


def test_all_backends_down_is_an_alert(bed: Bed) -> None:
    with plain_backend() as first, plain_backend() as second:
        down = [at(first), at(second)]
    bed.write(route("a", "api.a.example", *down))
    router = bed.start()
    with pytest.raises(ssl.SSLError, match="INTERNAL_ERROR"):
        bed.tls("a")
    bed.wait_refused(SniRefusal.BACKEND_DOWN)
    assert bed.do(lambda: dict(router.metrics.backend_failures)) == {("a", it): 1 for it in down}


def test_a_name_that_does_not_resolve_and_one_that_does(bed: Bed) -> None:
    a, b = bed.tenants["a"], bed.tenants["b"]
    bed.write(
        route("a", a.host, f"localhost:{a.port}")
        + route("b", b.host, "nothing.invalid:443", f"127.0.0.1:{b.port}")
    )
    bed.start(dial_timeout_s=LIMIT_S)
    assert bed.greeting("a") == "a api.a.example -"
    assert bed.greeting("b") == "b api.b.example -"


def test_the_fewest_connections_first(bed: Bed) -> None:
    with plain_backend() as first, plain_backend() as second:
        bed.write(route("x", "x.example", at(first), at(second)))
        bed.start()
        hello = hello_bytes("x.example")
        with contextlib.ExitStack() as stack:

            def two() -> set[str]:
                """Where two more go."""
                found = set()
                for _ in range(2):
                    client = stack.enter_context(bed.connect())
                    client.sendall(hello_bytes("x.example"))
                    bed.wait(lambda: len(bed.connections.tunnels) == len(opened) + 1, "joined")
                    opened.append(client)
                for listener in (first, second):
                    listener.settimeout(0.01)
                    with contextlib.suppress(TimeoutError):
                        sock = stack.enter_context(accept(listener))
                        read_exactly(sock, len(hello))
                        found.add(at(listener))
                return found

            opened: list[socket.socket] = []
            assert two() == {at(first), at(second)}
            assert two() == {at(first), at(second)}


def test_a_loop_is_seen(bed: Bed) -> None:
    router = bed.start()
    bed.write(route("x", "x.example", f"127.0.0.1:{bed.port}"))
    bed.run(router.part(RoutesPart).check())
    with bed.connect() as sock:
        sock.sendall(hello_bytes("x.example"))
        assert read_all(sock) == INTERNAL_ERROR
    bed.wait_refused(SniRefusal.LOOP)


# Bounds.


def test_a_slow_hello_is_cut(bed: Bed) -> None:
    bed.start(hello_timeout_s=0.1)
    assert is_reset_at_once(bed, hello_bytes("api.a.example")[:50])
    bed.wait_refused(SniRefusal.LATE)


@pytest.mark.parametrize("sent", [0, 50])
def test_who_leaves_early_is_counted_alone(bed: Bed, sent: int) -> None:
    bed.start()
    with bed.connect() as sock:
        sock.sendall(hello_bytes("api.a.example")[:sent])
    bed.wait_refused(SniRefusal.LEFT)
    assert not len(bed.connections)


def test_who_says_nothing_cannot_keep_others_out(bed: Bed) -> None:
    bed.start(max_hellos=3)
    with contextlib.ExitStack() as stack:
        silent = []
        for count in range(3):
            silent.append(stack.enter_context(bed.connect()))
            bed.wait(lambda: bed.connections.hellos == count + 1, "it waits")  # noqa: B023
        assert bed.greeting("a") == "a api.a.example -"
        assert is_reset(silent[0])
        assert bed.do(lambda: bed.connections.hellos) == 2
        bed.wait_refused(SniRefusal.CROWDED)


FLOODER, HONEST = "127.0.0.2", "127.0.0.3"


def finish(sock: socket.socket, hello: bytes) -> bool:
    """Send the rest of a hello; whether the tenant answers it."""
    sock.sendall(hello)
    return sock.recv(1) == b"\x16"


@pytest.mark.parametrize("said", [0, 50], ids=["silent", "slow"])
def test_a_flood_of_hellos_is_no_concern_of_other_sources(bed: Bed, said: int) -> None:
    """Who is slow itself, because it is far away, is not pushed out by whoever opens many."""
    bed.start(max_hellos=8)
    hellos = [hello_bytes("api.a.example") for _ in range(2)]
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(bed.connect(source=HONEST)) for _ in hellos]
        for sock, hello in zip(slow, hellos, strict=True):
            sock.sendall(hello[:50])
        bed.wait(lambda: bed.connections.hellos == 2, "both wait")
        flood = [stack.enter_context(bed.connect(source=FLOODER)) for _ in range(100)]
        for sock in flood:
            with contextlib.suppress(ConnectionError):  # it had to go already
                sock.sendall(hellos[0][:said])
        bed.wait_refused(SniRefusal.CROWDED, 94)
        assert bed.greeting("a", source=HONEST) == "a api.a.example -"
        for sock, hello in zip(slow, hellos, strict=True):
            assert finish(sock, hello[50:])
        assert bed.refusals() == {SniRefusal.CROWDED: 95}, "the flood made room, and nobody else"
        assert bed.do(lambda: bed.connections.hellos) == 5


def test_who_does_not_leave_after_its_alert_keeps_nobody_out(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole hello with a name that nobody has is as cheap as half of one."""
    monkeypatch.setattr(sni_connections, "FAREWELL_S", 10 * LIMIT_S)
    bed.start(max_connections=16, max_hellos=8)
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(bed.connect(source=HONEST))
        slow.sendall(hello_bytes("api.a.example")[:50])
        bed.wait(lambda: bed.connections.hellos == 1, "it waits")
        for _ in range(30):
            sock = stack.enter_context(bed.connect(source=FLOODER))
            sock.sendall(hello_bytes("nobody.example"))
            assert sock.recv(100) == UNRECOGNIZED_NAME
        assert bed.do(lambda: len(bed.connections)) == 8
        assert bed.refusals() == {SniRefusal.UNKNOWN_NAME: 30}
        assert bed.greeting("a", source=HONEST) == "a api.a.example -"


def test_hellos_make_way_where_the_places_are_few(bed: Bed) -> None:
    """Few descriptors: what one source may have open and its hellos are not everything."""
    bed.start(max_connections=4, max_hellos=1024)
    with contextlib.ExitStack() as stack:
        for tenant in "abc":
            stack.enter_context(bed.tls(tenant, source=FLOODER))
        for _ in range(5):
            stack.enter_context(bed.connect(source=FLOODER))
        bed.wait_refused(SniRefusal.CROWDED, 4)
        assert bed.do(lambda: len(bed.connections)) == 4
        assert bed.greeting("a", source=HONEST) == "a api.a.example -"


def test_a_flood_through_a_proxy_is_that_of_its_source(bed: Bed) -> None:
    router = bed.start(max_hellos=4, accept_proxy=True, proxy_from=("127.0.0.0/8",))
    hello = hello_bytes("api.a.example")
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(bed.connect())
        slow.sendall(b"PROXY TCP4 192.0.2.8 192.0.2.1 4711 6443\r\n" + hello[:50])
        bed.wait(lambda: bed.connections.hellos == 1, "it waits")
        for count in range(20):
            sock = stack.enter_context(bed.connect())
            sock.sendall(V1)
            bed.wait(lambda: router.metrics.accepted == count + 2, "it came")  # noqa: B023
        bed.wait_refused(SniRefusal.CROWDED, 17)
        assert finish(slow, hello[50:])


def test_all_connections_are_bounded(bed: Bed) -> None:
    bed.start(max_connections=2, max_connections_per_source=2)
    with bed.tls("a"), bed.tls("b"):
        assert is_reset_at_once(bed)
        bed.wait_refused(SniRefusal.TOO_MANY)
    bed.wait(lambda: not len(bed.connections), "they are over")
    assert bed.greeting("c") == "c api.c.example -"


def test_one_address_cannot_take_every_place(bed: Bed) -> None:
    """It needs no more than a name that is known to hold a connection: no certificate."""
    bed.start(max_connections=4)
    with bed.tls("a"), bed.tls("b"), bed.tls("c"):  # three quarters
        with pytest.raises((ssl.SSLError, OSError)):
            bed.tls("a")
        bed.wait_refused(SniRefusal.TOO_MANY_OF_SOURCE)
        assert bed.greeting("a", source="127.0.0.2") == "a api.a.example -"
    bed.wait(lambda: not len(bed.connections), "they are over")
    assert bed.greeting("a") == "a api.a.example -"


def test_a_route_has_its_own_bound(bed: Bed) -> None:
    a, b = bed.tenants["a"], bed.tenants["b"]
    bed.write(
        route("a", a.host, a.address, more="  maxConnections: 1\n") + route("b", b.host, b.address)
    )
    bed.start()
    with bed.tls("a"):
        with pytest.raises(ssl.SSLError, match="INTERNAL_ERROR"):
            bed.tls("a")
        assert bed.greeting("b") == "b api.b.example -"
    bed.wait_refused(SniRefusal.ROUTE_FULL)
    bed.wait(lambda: not len(bed.connections), "they are over")
    assert bed.greeting("a") == "a api.a.example -"


def misbehave(bed: Bed, seed: int) -> None:
    """Connect, send a part of a hello in odd pieces, and leave somehow."""
    chance = random.Random(seed)
    name = chance.choice(["api.a.example", "api.b.example", "down.example", "x.example", None])
    data = bytearray(hello_bytes(name) + b"and more")
    if chance.random() < 0.2:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    size = chance.choice([len(data), chance.randrange(len(data) + 1)])
    cuts = sorted(chance.randrange(size + 1) for _ in range(chance.randrange(4)))
    with contextlib.suppress(OSError), bed.connect() as sock:
        for start, end in pairwise([0, *cuts, size]):
            sock.sendall(data[start:end])
        leave = chance.choice(["close", "reset", "half", "read"])
        if leave == "half":
            sock.shutdown(socket.SHUT_WR)
        if leave in ("half", "read") and size == len(data):
            sock.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                read_all(sock)
        elif leave == "reset":
            reset(sock)


def test_whatever_clients_do_nothing_is_left_of_it(bed: Bed) -> None:
    a, b = bed.tenants["a"], bed.tenants["b"]
    with plain_backend() as gone:
        down = at(gone)
    bed.write(
        route("a", a.host, a.address, more="  proxyProtocol: {}\n")
        + route("b", b.host, down, b.address, more="  maxConnections: 3\n")
        + route("down", "down.example", down, "nothing.invalid:1")
    )
    router = bed.start(max_hellos=6, hello_timeout_s=5.0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: misbehave(bed, seed), range(300)))
    bed.wait(lambda: not len(bed.connections), "all are over")
    backends = bed.do(lambda: bed.connections.backends)
    assert [backends.count(HostPort.parse(it)) for it in (a.address, b.address, down)] == [0] * 3
    assert not bed.connections.by_route
    refused = sum(bed.refusals().values())
    routed = sum(bed.do(lambda: dict(router.metrics.routed_to)).values())
    assert refused + routed == bed.do(lambda: router.metrics.accepted) == 300
    assert routed


# The PROXY protocol.


def test_the_backend_learns_who_it_is(bed: Bed) -> None:
    tlvs = "  proxyProtocol:\n    tlvs:\n    - {type: 0x20, value: cluster-1}\n"
    tlvs += "    - {type: '0xE5', hex: 00ff}\n"
    with plain_backend() as listener:
        bed.write(route("x", "*.example", at(listener), more=tlvs))
        router = bed.start()
        hello = hello_bytes("X.example")
        with bed.connect() as client:
            client.sendall(hello)
            with accept(listener) as far:
                data = bytearray()
                while (header := take_proxy_header(data)) is None:
                    data += far.recv(1)
                assert read_exactly(far, len(hello)) == hello
            assert header == ProxyHeader(
                source=IpPort(ip_address("127.0.0.1"), client.getsockname()[1]),
                destination=IpPort(ip_address("127.0.0.1"), bed.port),
                tlvs=(Tlv(AUTHORITY, b"X.example"), Tlv(0x20, b"cluster-1"), Tlv(0xE5, b"\0\xff")),
            )
        # A header is no part of what was carried.
        bed.wait(lambda: not len(bed.connections), "it is over")
        assert bed.do(router.metrics.bytes_carried) == (len(hello), 0)


V2 = ProxyHeader(source=SOURCE, destination=DESTINATION, tlvs=(Tlv(5, b"id"),)).to_bytes()
V1 = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 6443\r\n"


@pytest.mark.parametrize("header", [V2, V1])
@pytest.mark.parametrize("together", [True, False])
def test_a_header_that_comes_in_goes_out(bed: Bed, header: bytes, together: bool) -> None:
    with plain_backend() as listener:
        bed.write(route("x", "x.example", at(listener), more="  proxyProtocol: {}\n"))
        bed.start(accept_proxy=True, proxy_from=("127.0.0.0/8",))
        hello = hello_bytes("x.example")
        with bed.connect() as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in [header + hello] if together else [bytes((it,)) for it in header + hello]:
                client.sendall(part)
            with accept(listener) as far:
                expected = ProxyHeader(
                    source=SOURCE,
                    destination=DESTINATION,
                    tlvs=(Tlv(AUTHORITY, b"x.example"),),
                ).to_bytes()
                assert read_exactly(far, len(expected + hello)) == expected + hello
                (seen,) = bed.do(lambda: bed.connections.tunnels.views(10))
                assert seen.requester == "address:192.0.2.7:4711"


@pytest.mark.parametrize(
    "header",
    [ProxyHeader(is_local=True).to_bytes(), b"PROXY UNKNOWN\r\n", ProxyHeader().to_bytes()],
)
def test_a_proxy_that_does_not_tell(bed: Bed, header: bytes) -> None:
    bed.start(accept_proxy=True, proxy_from=("127.0.0.1",))
    sock = bed.connect()
    sock.sendall(header)
    context = ssl.create_default_context(cafile=str(bed.tenants["a"].files.ca_cert))
    with context.wrap_socket(sock, server_hostname="api.a.example") as client:
        assert client.recv(100) == b"a api.a.example -\n"


def test_without_the_header_nobody_comes_in(bed: Bed) -> None:
    bed.start(accept_proxy=True, proxy_from=("127.0.0.1",))
    with bed.connect() as sock:
        sock.sendall(hello_bytes("api.a.example"))
        assert is_reset(sock)
    bed.wait_refused(SniRefusal.NO_PROXY_HEADER)


def test_only_proxies_may_say_who_it_is(bed: Bed) -> None:
    bed.start(accept_proxy=True, proxy_from=("10.0.0.0/8", "::1/128"))
    assert is_reset_at_once(bed, V2)
    bed.wait_refused(SniRefusal.UNTRUSTED_PROXY)


# The file.


def test_a_new_file_is_for_new_connections(bed: Bed) -> None:
    router = bed.start()
    with bed.tls("a") as old:
        assert old.recv(100) == b"a api.a.example -\n"
        bed.write(route("b", "api.b.example", bed.tenants["b"].address))
        bed.wait(lambda: router.metrics.reloads == 1, "it is read")
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            bed.tls("a")
        old.sendall(b"still here")
        assert read_exactly(old, 10) == b"still here"
    assert bed.greeting("b") == "b api.b.example -"


def test_a_bad_file_changes_nothing(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    router = bed.start()
    bed.write("- {name: x, hots: [x.example], backends: [x]}\n")
    bed.wait(lambda: router.metrics.reload_failures == 1, "it is read")
    assert bed.greeting("a") == "a api.a.example -"
    bed.run(router.part(RoutesPart).check())
    lines = [it for it in caplog.records if "changed routes" in it.getMessage()]
    assert len(lines) <= 1
    assert router.metrics.reload_failures == 1
    bed.write()
    bed.wait(lambda: router.metrics.reloads == 1, "it is read")


# The program.


def test_metrics_and_snapshot(bed: Bed) -> None:
    router = bed.start()
    with bed.tls("a") as sock:
        sock.recv(100)
        status, text = http_get(router.admin_port, "/snapshot")
        shown = json.loads(text)
        assert (status, shown["kind"]) == (200, "SniRouterSnapshot")
        routes = {it["name"]: it for it in shown["routes"]}
        assert (routes["a"]["connections"], routes["b"]["connections"]) == (1, 0)
        assert routes["a"]["backends"] == [
            {"address": bed.tenants["a"].address, "connections": 1, "failed": False}
        ]
        (tunnel,) = shown["tunnels"]
        assert (tunnel["frontend"], tunnel["target"]) == ("a", bed.tenants["a"].address)
        for port in (router.health_port, router.admin_port):
            text = http_get(port, "/metrics")[1]
            ours = "isthmus_sni_router_"
            assert metric(text, f'{ours}connections{{route="a"}}') == 1
            assert metric(text, f'{ours}connections_routed_total{{route="a"}}') == 1
            assert metric(text, f"{ours}connections_accepted_total") == 1
            assert "links" not in text
    assert http_get(router.health_port, "/readyz") == (200, "ok")
    assert http_get(router.health_port, "/livez")[0] == 200


def test_several_listeners(bed: Bed) -> None:
    router = bed.start(listen=("127.0.0.1:0", "127.0.0.2:0"))
    first, second = (listener.address for listener in router.part(Listening).open_ones)
    assert bed.greeting("a", port=first[1]) == "a api.a.example -"
    with socket.create_connection(second, LIMIT_S) as sock:
        sock.sendall(hello_bytes("nobody.example"))
        assert read_all(sock) == UNRECOGNIZED_NAME


def test_a_port_in_use_is_one_sentence_and_nothing_stays_open(bed: Bed) -> None:
    with plain_backend() as taken:
        with pytest.raises(ConfigError, match=f"--listen: cannot listen on {at(taken)}: already"):
            bed.start(listen=("127.0.0.1:0", at(taken)))
        assert bed.do(lambda: 1) == 1


def test_draining(bed: Bed) -> None:
    router = bed.start()
    port = bed.port
    with bed.tls("a") as sock:
        sock.recv(100)
        draining = bed.do(lambda: bed.loop.create_task(router.drain(LIMIT_S)))
        bed.wait(lambda: router.ground.draining, "it drains")
        with pytest.raises(ConnectionRefusedError):
            bed.connect(port)
        assert http_get(router.health_port, "/readyz")[0] == 500
        sock.sendall(b"still here")
        assert read_exactly(sock, 10) == b"still here"
        assert not draining.done()
    wait_until(draining.done, "it has drained")


def test_as_a_program(bed: Bed, programs: Programs) -> None:
    bed.write()
    flags = ["--listen=127.0.0.1:0", "--health-port=0", "--admin-port=0"]
    program = programs.start("sni-router", f"--config={bed.config}", *flags)
    program.wait_log("serving ")
    port = program.port("port")
    with bed.tls("c", port=port) as sock:
        assert sock.recv(100) == b"c api.c.example -\n"
        program.signal(signal.SIGTERM)
        program.wait_log("draining")
        sock.sendall(b"still here")
        assert read_exactly(sock, 10) == b"still here"
    assert program.wait_exit() == 0
    bed.config.write_text("kind: x\n")
    program = programs.start("sni-router", f"--config={bed.config}", *flags)
    assert program.wait_exit() == 2
    assert f"{bed.config}:1:1: apiVersion: is missing" in program.log
