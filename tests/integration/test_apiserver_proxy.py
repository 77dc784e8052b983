"""The apiserver proxy with real sockets and real TLS checks: who is reached, and who is reset."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver_bed import Bed, Upstream
from clients import LIMIT_S, MIB, Client, Target, blocks, free_port, full_target
from lifecycles import StartedProxy
from programs import Programs
from stack import http_get, metric, wait_until

from isthmus.errors import ConfigError
from isthmus.net.resolver import Resolver
from isthmus.programs.apiserver_proxy import connections as apiserver_proxy_connections
from isthmus.programs.apiserver_proxy.metrics import ProxyRefusal
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import Ending
from isthmus.wire.proxy_protocol import take_proxy_header


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    names = ("kubernetes.default.svc", "localhost", "127.0.0.1")
    return pki.init(tmp_path_factory.mktemp("apiserver") / "pki", server_names=names)


@pytest.fixture
def bed(tmp_path: Path, files: pki.PkiFiles) -> Iterator[Bed]:
    with Bed(tmp_path, files) as made:
        yield made


@pytest.fixture
def upstream(files: pki.PkiFiles) -> Iterator[Upstream]:
    with Upstream(files) as made:
        yield made


@pytest.fixture
def other(files: pki.PkiFiles) -> Iterator[Upstream]:
    with Upstream(files) as made:
        yield made


# Bytes.


def test_tls_goes_through_as_it_is(bed: Bed, upstream: Upstream, files: pki.PkiFiles) -> None:
    bed.start(upstream.address, health_check="none")
    context = ssl.create_default_context(cafile=str(files.ca_cert))
    with context.wrap_socket(bed.connect().sock, server_hostname="kubernetes.default.svc") as sock:
        sock.sendall(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
    assert upstream.requests == [b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n"]


def test_bulk_both_ways(bed: Bed, upstream: Upstream) -> None:
    bed.start(upstream.address)
    sent = b"!" + b"".join(blocks(1, 8 * MIB))
    with bed.connect() as client:
        sending = threading.Thread(target=client.send, args=(sent,))
        sending.start()
        assert client.read_exactly(len(sent)) == sent
        sending.join()


def test_a_half_close_is_kept_both_ways(bed: Bed) -> None:
    with Target() as target:
        bed.start(target.name, health_check="none")
        with bed.connect() as client, target.accept() as far:
            client.send(b"asked")
            client.half_close()
            assert far.read_to_end() == b"asked"
            far.send(b"answered")
            far.half_close()
            assert client.read_to_end() == b"answered"
        with bed.connect() as client, target.accept() as far:
            far.send(b"banner")
            far.half_close()
            assert client.read_to_end() == b"banner"
            client.send(b"late")
            client.half_close()
            assert far.read_to_end() == b"late"


def test_a_reset_is_a_reset_both_ways(bed: Bed) -> None:
    with Target() as target:
        bed.start(target.name, health_check="none")
        for who in ("client", "far"):
            with bed.connect() as client, target.accept() as far:
                first, second = (client, far) if who == "client" else (far, client)
                first.send(b"x")
                assert second.read_exactly(1) == b"x"
                first.reset()
                with pytest.raises(ConnectionResetError):
                    second.recv()


def test_a_client_that_leaves_at_once(bed: Bed) -> None:
    with full_target() as target:
        bed.start(target.name, health_check="none")
        bed.connect().reset()
        bed.wait(lambda: bed.proxy.metrics.refusals[ProxyRefusal.LEFT] == 1, "it left")
        assert bed.do(lambda: [it.connections for it in bed.proxy.connections.upstreams]) == [0]


def test_an_idle_connection_is_reset(bed: Bed, upstream: Upstream) -> None:
    bed.start(upstream.address, health_check="none", idle_timeout_s=0.2)
    with bed.echo() as client, pytest.raises(ConnectionResetError):
        client.recv()
    bed.wait(lambda: bed.proxy.metrics.endings[Ending.TIMED_OUT] == 1, "it is counted")


def test_without_an_idle_timeout_nobody_is(bed: Bed, upstream: Upstream) -> None:
    proxy = bed.start(upstream.address, health_check="none", idle_timeout_s=0.0)
    with bed.echo() as client:
        tunnels = proxy.connections.tunnels
        assert bed.do(lambda: tunnels.reset_idle(now=0.0, idle_s=600.0)) == 0
        assert bed.do(lambda: tunnels.reset_idle(now=599.0, idle_s=600.0)) == 0
        client.send(b"moved")
        assert client.read_exactly(5) == b"moved"
        assert bed.do(lambda: tunnels.reset_idle(now=601.0, idle_s=600.0)) == 0
        assert bed.do(lambda: tunnels.reset_idle(now=1201.0, idle_s=600.0)) == 1


# Whom it reaches.


def test_the_fewest_connections(bed: Bed, upstream: Upstream, other: Upstream) -> None:
    bed.start(upstream.address, other.address, health_check="none")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(bed.echo())
        assert (upstream.open, other.open) == (10, 10)


def test_another_is_tried(bed: Bed, upstream: Upstream) -> None:
    dead = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    proxy = bed.start(*dead, upstream.address, health_check="none")
    for _ in range(8):
        bed.echo().close()
    assert proxy.metrics.retried > 0
    assert bed.refusals() == {}


def test_no_more_than_so_many_others(bed: Bed, upstream: Upstream) -> None:
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    proxy = bed.start(*dead, upstream.address, health_check="none", retries=0)
    # It is the turn of the second, of the third, of the first; those that failed come last.
    assert bed.is_reset()
    bed.echo().close()
    assert bed.is_reset()
    bed.echo().close()
    assert proxy.metrics.retried == 0


def test_one_that_does_not_answer_takes_its_share(bed: Bed, upstream: Upstream) -> None:
    with full_target() as black_hole:
        bed.start(black_hole.name, upstream.address, health_check="none", connect_timeout_s=1.0)
        for _ in range(4):
            bed.echo().close()


def test_when_all_are_down_it_tries_and_resets(bed: Bed, files: pki.PkiFiles) -> None:
    port = free_port()
    proxy = bed.start(f"127.0.0.1:{port}")
    bed.wait(lambda: not any(bed.states().values()), "it is down")
    assert http_get(proxy.health_port, "/readyz") == (500, "every upstream is down")
    assert http_get(proxy.health_port, "/livez")[0] == 200
    assert bed.is_reset()
    assert proxy.metrics.last_resort == 1
    with Upstream(files, port=port):
        bed.echo().close()  # whatever the checks say
        bed.wait(lambda: all(bed.states().values()), "it is up again")
        assert http_get(proxy.health_port, "/readyz")[0] == 200


def test_replaced_while_many_are_open(bed: Bed, files: pki.PkiFiles) -> None:
    first = Upstream(files)
    proxy = bed.start(first.address)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(bed.echo()) for _ in range(200)]
        assert bed.do(lambda: len(proxy.connections.tunnels)) == 200
        first.kill()
        for client in clients:
            with pytest.raises(ConnectionResetError):
                client.recv()
        assert bed.is_reset()
        with Upstream(files, port=first.port) as second:
            again = [stack.enter_context(bed.echo()) for _ in range(200)]
            assert second.open >= 200
            for client in again:
                client.half_close()
                assert client.read_to_end() == b""
            bed.wait(lambda: not len(proxy.connections), "every connection ended")
    assert bed.refusals() == {ProxyRefusal.UPSTREAMS_DOWN: 1}


def test_a_name_that_leads_to_itself(bed: Bed) -> None:
    port = free_port()
    bed.start(f"localhost:{port}", listen=(f"127.0.0.1:{port}",), health_check="none")
    assert bed.is_reset()
    assert bed.refusals() == {ProxyRefusal.UPSTREAMS_DOWN: 1}
    assert bed.do(lambda: bed.proxy.metrics.accepted) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
@pytest.mark.parametrize("check", ["none", "https"])
def test_an_address_of_this_host_where_it_listens_on_all(bed: Bed, host: str, check: str) -> None:
    """Which addresses a host has is the kernel's business: the circle is seen when it closes."""
    port = free_port()
    ours = own_address()
    proxy = bed.start(f"{ours}:{port}", listen=(f"{host}:{port}",), health_check=check)
    assert bed.is_reset()
    bed.wait(lambda: proxy.metrics.refusals[ProxyRefusal.CIRCLE] > 0, "the circle is seen")
    if check == "https":
        bed.wait(lambda: not bed.states()[f"{ours}:{port}"], "it is down")
        assert bed.do(lambda: len(proxy.connections)) < 10
    else:
        bed.wait(lambda: not len(proxy.connections), "every connection ended")
        assert bed.do(lambda: proxy.metrics.accepted) < 4


def test_another_comes_before_a_circle(bed: Bed, upstream: Upstream) -> None:
    port = free_port()
    proxy = bed.start(
        f"{own_address()}:{port}", upstream.address, listen=(f"0.0.0.0:{port}",),
        health_check="none", max_connections=20,
    )  # fmt: skip
    wait_until(lambda: not _is_echoed(bed), "a circle")
    assert bed.refusals() == {ProxyRefusal.CIRCLE: 1}
    for _ in range(5):
        assert _is_echoed(bed)
    bed.wait(lambda: not len(proxy.connections), "every connection ended")


def _is_echoed(bed: Bed) -> bool:
    try:
        with bed.echo():
            return True
    except OSError:
        return False


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no other address than loopback")
        return str(sock.getsockname()[0])


def test_too_many(bed: Bed, upstream: Upstream) -> None:
    bed.start(upstream.address, health_check="none", max_connections=2)
    with bed.echo(), bed.echo():
        assert bed.is_reset()
        assert bed.refusals() == {ProxyRefusal.TOO_MANY: 1}
    bed.wait(lambda: not len(bed.proxy.connections), "they ended")
    bed.echo().close()


def test_names_are_looked_up_again(
    bed: Bed, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apiserver_proxy_connections, "LOOK_AGAIN_S", 0.01)
    answers: list[Any] = [OSError("no answer"), "127.0.0.7", "127.0.0.1"]
    asked = []

    async def find(self: Any, name: str, client: Any) -> list[str]:
        asked.append(name)
        answer = answers[0] if len(answers) == 1 else answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return [answer]

    monkeypatch.setattr(Resolver, "_find", find)
    bed.start(f"api.example:{upstream.port}", health_check="none", resolve_interval_s=0.05)
    ways = bed.proxy.connections.ways
    (at,) = bed.proxy.connections.plan.upstreams
    bed.wait(lambda: ways.addresses_of(at) == ("127.0.0.1",), "the new address is known")
    bed.echo().close()
    answers[:] = [OSError("no answer")]
    so_far = len(asked)
    wait_until(lambda: len(asked) > so_far + 1, "it was asked again")
    bed.echo().close()  # the last that is known stays in use


# Health.


def test_a_check_asks_over_tls(bed: Bed, upstream: Upstream) -> None:
    proxy = bed.start(upstream.address)
    bed.wait_checked()
    assert bed.said() == ["answered 200 for /version"]
    head = upstream.requests[0].decode()
    assert head.startswith("GET /version HTTP/1.1\r\n")
    assert f"Host: {upstream.address}\r\n" in head
    assert metric(
        http_get(proxy.health_port, "/metrics")[1],
        f'isthmus_apiserver_proxy_upstream_up{{upstream="{upstream.address}"}}',
    ) == 1  # fmt: skip


@pytest.mark.parametrize("status", [204, 302, 401, 403, 404, 429, 500])
def test_statuses(bed: Bed, upstream: Upstream, status: int) -> None:
    upstream.status = status
    bed.start(upstream.address)
    bed.wait_checked(3)
    assert bed.is_up(upstream.address) is (status in (204, 302, 401, 403))
    assert bed.said() == [f"answered {status} for /version"]


def test_health_flips_and_traffic_follows(bed: Bed, upstream: Upstream, other: Upstream) -> None:
    proxy = bed.start(upstream.address, other.address)
    bed.wait_checked()
    upstream.status = 500
    bed.wait(lambda: not bed.states()[upstream.address], "it is down")
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(bed.echo())
        found = bed.do(lambda: {str(it.at): it.connections for it in proxy.connections.upstreams})
        assert found == {upstream.address: 0, other.address: 6}
        upstream.status = 200
        bed.wait(lambda: bed.states()[upstream.address], "it is up again")
        stack.enter_context(bed.echo())
        found = bed.do(lambda: {str(it.at): it.connections for it in proxy.connections.upstreams})
        assert found == {upstream.address: 1, other.address: 6}


def test_one_that_hangs_is_down(bed: Bed, upstream: Upstream) -> None:
    upstream.hangs = True
    bed.start(upstream.address, health_check_timeout_s=0.1)
    bed.wait(lambda: not bed.states()[upstream.address], "it is down")
    assert bed.said() == ["no answer within 0.1 s"]
    upstream.hangs = False
    bed.wait(lambda: bed.states()[upstream.address], "it is up again")


def test_a_wrong_certificate_is_down(
    bed: Bed, upstream: Upstream, tmp_path: Path, files: pki.PkiFiles
) -> None:
    strangers = pki.init(tmp_path / "strangers")
    bed.start(upstream.address, ca_cert=str(strangers.ca_cert))
    bed.wait(lambda: not bed.states()[upstream.address], "it is down")
    (said,) = bed.said()
    assert "certificate" in said, said


def test_a_certificate_that_turns_wrong(bed: Bed, upstream: Upstream, tmp_path: Path) -> None:
    strangers = pki.init(tmp_path / "strangers", server_names=("127.0.0.1",))
    good, bad = upstream.context, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    bad.load_cert_chain(strangers.server_cert, strangers.server_key)
    bed.start(upstream.address)
    bed.wait_checked()
    assert bed.is_up(upstream.address)
    upstream.context = bad
    bed.wait(lambda: not bed.states()[upstream.address], "it is down")
    upstream.context = good
    bed.wait(lambda: bed.states()[upstream.address], "it is up again")


def test_the_name_in_the_certificate(bed: Bed, upstream: Upstream) -> None:
    bed.start(upstream.address, health_check_server_name="kubernetes.default.svc")
    bed.wait_checked()
    assert bed.said() == ["answered 200 for /version"]
    assert b"\r\nHost: kubernetes.default.svc:" in upstream.requests[0]


def test_a_name_that_the_certificate_lacks(bed: Bed, upstream: Upstream) -> None:
    bed.start(upstream.address, health_check_server_name="kubernetes.other.svc")
    bed.wait(lambda: not bed.states()[upstream.address], "it is down")
    assert "kubernetes.other.svc" in bed.said()[0]


def test_a_client_certificate(bed: Bed, upstream: Upstream, files: pki.PkiFiles) -> None:
    upstream.context.load_verify_locations(files.client_ca_cert)
    upstream.context.verify_mode = ssl.CERT_REQUIRED
    pair = {"client_cert": str(files.client_cert), "client_key": str(files.client_key)}
    bed.start(upstream.address, **pair)
    bed.wait_checked(3)
    assert bed.is_up(upstream.address)


def test_no_tls_at_all(bed: Bed) -> None:
    with Target() as target:
        bed.start(target.name)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with target.accept() as far:
                        far.recv()
                        far.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        bed.wait(lambda: not bed.states()[target.name], "it is down")
        assert "TLS" in bed.said()[0] or "ssl" in bed.said()[0].lower(), bed.said()


def test_by_connecting_only(bed: Bed) -> None:
    with Target() as target:
        bed.start(target.name, health_check="tcp")
        bed.wait_checked(3)
        assert bed.said() == ["connected"]
        assert bed.is_up(target.name)


# PROXY protocol and HTTP proxy.


def test_a_proxy_header_with_the_cluster(bed: Bed) -> None:
    cluster = "0dd0f2a4-8d4c-4b1f-9a4d-6c2d7f0a1b2c"
    with Target() as target:
        bed.start(
            target.name, health_check="none", send_proxy_v2=True, proxy_v2_tlv=(f"0x20={cluster}",)
        )
        with bed.connect() as client, target.accept() as far:
            client.send(b"hello")
            port = client.sock.getsockname()[1]
            listen = bed.proxy.listeners[0].port
            # proxy-protocol.txt §2.2: signature, version 2 and PROXY, TCP over IPv4, length.
            wanted = (
                bytes.fromhex("0d0a0d0a000d0a515549540a 21 11")
                + (12 + 3 + 36).to_bytes(2, "big")
                + bytes([127, 0, 0, 1, 127, 0, 0, 1])
                + port.to_bytes(2, "big")
                + listen.to_bytes(2, "big")
                + b"\x20\x00\x24"
                + cluster.encode()
            )
            assert far.read_exactly(len(wanted) + 5) == wanted + b"hello"


def test_checks_say_the_same_header(bed: Bed, files: pki.PkiFiles) -> None:
    with Upstream(files, head_bytes=16 + 12 + 3 + 2) as upstream:
        bed.start(upstream.address, send_proxy_v2=True, proxy_v2_tlv=("0x20=id",))
        bed.wait_checked()
        assert bed.said() == ["answered 200 for /version"]
        header = take_proxy_header(bytearray(upstream.heads[0]))
        assert header is not None and header.tlv(0x20) == b"id"


class HttpProxy:
    """A CONNECT proxy that wants a password and knows one name, plain or by TLS."""

    def __init__(self, leads_to: int, tls: ssl.SSLContext | None = None) -> None:
        self.heads: list[bytes] = []
        self._leads_to = leads_to
        self._tls = tls
        self._target = Target()
        self.port = self._target.port
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._target.accept()
                threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: Client) -> None:
        with contextlib.suppress(OSError), client:
            if self._tls is not None:
                client.sock = self._tls.wrap_socket(client.sock, server_side=True)
            head = client.read_head()
            self.heads.append(head)
            if b"Proxy-Authorization: Basic dXNlcjpwQHNz" not in head:
                client.send(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return
            far = Client(socket.create_connection(("127.0.0.1", self._leads_to), LIMIT_S))
            client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with far:
                _pass_on(client, far)

    def __enter__(self) -> HttpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._target._sock.shutdown(socket.SHUT_RDWR)
        self._target._sock.close()
        self._thread.join(LIMIT_S)


def _pass_on(client: Client, far: Client) -> None:
    """Copy both ways in one thread: OpenSSL's connections are not for two at once."""
    sinks = {client.sock: far, far.sock: client}
    while sinks:
        pending = [it for it in sinks if isinstance(it, ssl.SSLSocket) and it.pending()]
        for sock in pending or select.select(list(sinks), [], [], LIMIT_S)[0]:
            data = sock.recv(64 * 1024)
            if data:
                sinks[sock].send(data)
                continue
            sink = sinks.pop(sock)
            if not isinstance(sink.sock, ssl.SSLSocket):
                sink.half_close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_through_a_proxy(bed: Bed, upstream: Upstream, files: pki.PkiFiles, scheme: str) -> None:
    tls = None
    if scheme == "https":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(files.server_cert, files.server_key)
    with HttpProxy(upstream.port, tls) as through:
        proxy = bed.start(
            "api.example:6443",
            http_proxy=f"{scheme}://user:p%40ss@127.0.0.1:{through.port}",
            http_proxy_ca_cert=str(files.ca_cert) if scheme == "https" else "",
            health_check_server_name="kubernetes.default.svc",
            health_check_interval_s=0.2,
        )
        bed.wait_checked()
        assert bed.said() == ["answered 200 for /version"]
        with bed.connect() as client:
            sent = b"!" + b"".join(blocks(2, MIB))
            sending = threading.Thread(target=client.send, args=(sent,))
            sending.start()
            assert client.read_exactly(len(sent)) == sent
            sending.join()
        assert through.heads[0].startswith(b"CONNECT api.example:6443 HTTP/1.1\r\n")
        view = json.loads(http_get(proxy.admin_port, "/snapshot")[1])
        assert view["upstreams"][0]["through"] == f"{scheme}://127.0.0.1:{through.port}"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_reset_comes_through_a_proxy(bed: Bed, files: pki.PkiFiles, scheme: str) -> None:
    tls = None
    if scheme == "https":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(files.server_cert, files.server_key)
    with Target() as target:
        bed.start(
            "api.example:6443",
            http_proxy=f"{scheme}://localhost:{target.port}",
            http_proxy_ca_cert=str(files.ca_cert) if scheme == "https" else "",
            health_check="none",
        )
        with bed.connect() as client, target.accept() as far:
            if tls is not None:
                far.sock = tls.wrap_socket(far.sock, server_side=True)
            far.read_head()
            far.send(b"HTTP/1.1 200 OK\r\n\r\n")
            client.send(b"hello")
            assert far.read_exactly(5) == b"hello"
            far.reset()
            with pytest.raises(ConnectionResetError):
                client.recv()


def test_a_proxy_that_refuses(bed: Bed, upstream: Upstream) -> None:
    with HttpProxy(upstream.port) as through:
        bed.start("api.example:6443", http_proxy=f"http://localhost:{through.port}")
        assert bed.is_reset()
        assert bed.refusals() == {ProxyRefusal.UPSTREAMS_DOWN: 1}
        bed.wait_checked()
        assert "407 Proxy Authentication Required" in bed.said()[0]


def test_no_proxy_goes_directly(bed: Bed, upstream: Upstream) -> None:
    bed.start(upstream.address, http_proxy="http://nowhere.example:1", no_proxy=("127.0.0.0/8",))
    bed.echo().close()


# Reload, drain, and the program.


def write(bed: Bed, *upstreams: str, more: str = "", listen: str = "127.0.0.1:0") -> None:
    new = bed.config.with_suffix(".new")
    new.write_text(
        "apiVersion: isthmus.dev/v1alpha1\nkind: APIServerProxy\n"
        f"listen: ['{listen}']\nupstreams: [{', '.join(upstreams)}]\n{more}"
    )
    new.rename(bed.config)


def look_again(bed: Bed, proxy: StartedProxy) -> None:
    assert proxy.source.file is not None
    bed.run(proxy.source.file.check())


NO_CHECK = "healthCheck: {kind: none}\n"


def test_a_changed_file_is_taken(bed: Bed, upstream: Upstream, other: Upstream) -> None:
    write(bed, upstream.address, more=NO_CHECK)
    proxy = bed.start(config=str(bed.config))
    with bed.echo() as old:
        assert (upstream.open, other.open) == (1, 0)
        write(bed, other.address, more=NO_CHECK)
        look_again(bed, proxy)
        with bed.echo():
            assert (upstream.open, other.open) == (1, 1)
            old.send(b"still here")
            assert old.read_exactly(10) == b"still here"
    assert proxy.metrics.reloads == 1
    bed.wait(lambda: len(proxy.connections.upstreams._known) == 1, "the old one is forgotten")


def test_the_places_are_those_of_the_changed_file(bed: Bed, upstream: Upstream) -> None:
    write(bed, upstream.address, more=f"{NO_CHECK}maxConnections: 1\n")
    proxy = bed.start(config=str(bed.config))
    with bed.echo():
        assert bed.is_reset()
        more = f"{NO_CHECK}maxConnections: 8\nmaxConnectionsPerSource: 2\n"
        write(bed, upstream.address, more=more)
        look_again(bed, proxy)
        places = proxy.connections.places
        assert (places.most, places.most_per_source, len(places)) == (8, 2, 1)
        bed.echo().close()


def test_checks_that_are_turned_off_say_nothing_more(bed: Bed) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    quick = "healthCheck: {kind: tcp, interval: 50ms, fall: 1}\n"
    write(bed, nobody, more=quick)
    proxy = bed.start(config=str(bed.config))
    bed.wait(lambda: not any(bed.states().values()), "it is down")
    write(bed, nobody, more=NO_CHECK)
    look_again(bed, proxy)
    assert bed.is_up(nobody)


def test_a_wrong_file_changes_nothing(bed: Bed, upstream: Upstream) -> None:
    write(bed, upstream.address, more=NO_CHECK)
    proxy = bed.start(config=str(bed.config))
    for wrong in ("upstream: x", "healthCheck: {caCert: /nowhere}"):
        write(bed, upstream.address, more=wrong)
        look_again(bed, proxy)
        bed.echo().close()
    assert (proxy.metrics.reloads, proxy.metrics.reload_failures) == (0, 2)


def test_where_it_listens_stays(bed: Bed, upstream: Upstream, other: Upstream) -> None:
    write(bed, upstream.address, more=NO_CHECK)
    proxy = bed.start(config=str(bed.config))
    write(bed, other.address, more=NO_CHECK, listen="127.0.0.1:1")
    look_again(bed, proxy)
    with bed.echo():
        assert (upstream.open, other.open) == (0, 1)


def test_the_snapshot(bed: Bed, upstream: Upstream) -> None:
    proxy = bed.start(upstream.address)
    bed.wait_checked()
    with bed.echo():
        view = json.loads(http_get(proxy.admin_port, "/snapshot")[1])
    assert view["kind"] == "ApiserverProxySnapshot"
    (shown,) = view["upstreams"]
    assert shown["address"] == upstream.address
    assert (shown["up"], shown["connections"]) == (True, 1)
    assert shown["lastCheck"] == "answered 200 for /version"
    assert len(view["tunnels"]) == 1


def test_a_port_in_use(bed: Bed) -> None:
    with Target() as target, pytest.raises(ConfigError, match="already in use"):
        bed.start("api.example:6443", listen=(target.name,))


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
    except ConnectionError:
        return True
    return False


def test_sighup_and_sigterm(programs: Programs, bed: Bed, upstream: Upstream) -> None:
    write(bed, upstream.address, more=NO_CHECK)
    program = programs.start(
        "apiserver-proxy", f"--config={bed.config}", "--health-port=0", "--admin-port=0",
    )  # fmt: skip
    program.wait_log("serving ")
    port = program.port("port")
    with Client(socket.create_connection(("127.0.0.1", port), LIMIT_S)) as client:
        client.send(b"!hello")
        assert client.read_exactly(6) == b"!hello"
        program.signal(signal.SIGHUP)
        program.wait_log("configuration reloaded")
        program.signal(signal.SIGTERM)
        program.wait_log("draining")
        with pytest.raises(ConnectionRefusedError):
            wait_until(
                lambda: socket.create_connection(("127.0.0.1", port)).close() is not None, ""
            )
        client.send(b"still here")
        assert client.read_exactly(10) == b"still here"
        client.half_close()
        assert client.read_to_end() == b""
    assert program.wait_exit() == 0


def test_flags_of_kubernetes_default_proxy(
    programs: Programs, upstream: Upstream, tmp_path: Path
) -> None:
    with HttpProxy(upstream.port) as through:
        program = programs.start(
            "apiserver-proxy", "--listen-addr=127.0.0.1:0", "--apiserver-addr=api.example:6443",
            f"--proxy-addr=user:p%40ss@127.0.0.1:{through.port}", "--health-port=0",
            "--admin-port=0",
        )  # fmt: skip
        program.wait_log("serving ")
        with Client(
            socket.create_connection(("127.0.0.1", program.port("port")), LIMIT_S)
        ) as client:
            client.send(b"!hello")
            assert client.read_exactly(6) == b"!hello"
