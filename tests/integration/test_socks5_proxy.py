"""The SOCKS5 sidecar by curl and by hand: who is served, who is not, and what they are told."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clients import (
    LIMIT_S,
    MIB,
    Client,
    Target,
    echo_target,
    free_port,
    full_target,
    receive_all,
    send_all,
)
from programs import Programs
from proxies_bed import (
    NAME,
    Origin,
    ProxiesBed,
    ask,
    connect,
    curl,
    greet,
    open_socks5,
    origin_server,
    port_of,
    read_reply,
)
from stack import Stack, http_get, metric, wait_until

from isthmus.errors import ConfigError, DialFailure
from isthmus.programs.sidecar.metrics import Unserved
from isthmus.tools.pki import making as pki
from isthmus.wire.socks5 import Code, Greeting, Login, Request

PASSWORD = {"username": "me"}


@pytest.fixture
def bed(stack: Stack, tmp_path: Path) -> Iterator[ProxiesBed]:
    with ProxiesBed(stack, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with origin_server() as server:
        yield server


@pytest.fixture(scope="module")
def echo() -> Iterator[Target]:
    with echo_target() as target:
        yield target


def password_file(directory: Path, text: str = "secret\n") -> str:
    path = directory / "password"
    path.write_text(text)
    return str(path)


# Served.


def test_curl_by_address_and_by_name(bed: ProxiesBed, origin: Origin) -> None:
    # Before it starts: a watch hears of changes a little later.
    bed.stack.do(lambda: bed.api.put("web/origin", "127.0.0.1"))
    proxy = bed.socks5()
    at = f"127.0.0.1:{port_of(proxy)}"
    code, out, err = curl("--socks5", at, f"http://127.0.0.1:{origin.port}/by-address")
    assert (code, json.loads(out)["path"]) == (0, "/by-address"), err
    code, out, err = curl("--socks5-hostname", at, f"http://{NAME}:{origin.port}/by-name")
    assert (code, json.loads(out)["headers"]["host"]) == (0, f"{NAME}:{origin.port}"), err
    url = f"http://origin.web.svc:{origin.port}/service"
    code, out, err = curl("--socks5-hostname", at, url)
    assert (code, json.loads(out)["path"]) == (0, "/service"), err
    assert curl("-x", f"socks5h://{at}", url)[0] == 0
    # Where NO_PROXY names it curl goes without us, to a name that only the guest cluster has.
    env = {"ALL_PROXY": f"socks5h://{at}", "NO_PROXY": NAME}
    assert curl(f"http://{NAME}:{origin.port}/", env=env)[0] == 6
    assert curl(f"http://{NAME}:{origin.port}/", env={**env, "NO_PROXY": ""})[0] == 0
    bed.wait_empty(proxy)
    assert not bed.unserved(proxy)


@pytest.mark.parametrize("tls", [False, True])
def test_the_bound_address_is_ours(bed: ProxiesBed, echo: Target, tls: bool) -> None:
    proxy = bed.socks5(**bed.tls_flags if tls else {})
    with connect(proxy) as client:
        greet(client)
        reply = ask(client, "127.0.0.1", echo.port)
        assert reply.code == Code.SUCCEEDED
        assert (reply.host, bool(reply.port)) == (
            ("127.0.0.1", True) if tls else ("0.0.0.0", False)
        )
        client.send(b"hello")
        assert client.read_exactly(5) == b"hello"


def test_an_address_by_ipv6(bed: ProxiesBed) -> None:
    proxy = bed.socks5()
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        listener.settimeout(LIMIT_S)
        port = listener.getsockname()[1]
        with open_socks5(proxy, "::1", port) as client, Client(listener.accept()[0]) as far:
            client.send(b"hello")
            assert far.read_exactly(5) == b"hello"


def test_everything_at_once_before_any_answer(bed: ProxiesBed, echo: Target) -> None:
    proxy = bed.socks5()
    with connect(proxy) as client:
        request = Request(1, "127.0.0.1", echo.port).to_bytes()
        client.send(Greeting(b"\0").to_bytes() + request + b"early")
        assert client.read_exactly(2) == b"\x05\x00"
        assert read_reply(client).code == Code.SUCCEEDED
        assert client.read_exactly(5) == b"early"
        client.half_close()
        assert client.read_to_end() == b""


def test_byte_by_byte(bed: ProxiesBed, echo: Target, tmp_path: Path) -> None:
    proxy = bed.socks5(**PASSWORD, password_file=password_file(tmp_path))
    with connect(proxy) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = [
            Greeting(b"\0\2").to_bytes(),
            Login(b"me", b"secret").to_bytes(),
            Request(1, NAME, echo.port).to_bytes() + b"hello",
        ]
        for message, answer in zip(said, (b"\x05\x02", b"\x01\x00", b"\x05\x00"), strict=True):
            for byte in message:
                client.send(bytes([byte]))
            assert client.read_exactly(2) == answer
        client.read_exactly(8)
        assert client.read_exactly(5) == b"hello"


def test_half_closes_and_resets_are_kept(bed: ProxiesBed) -> None:
    proxy = bed.socks5(**bed.tls_flags)
    with Target() as target:
        with open_socks5(proxy, "127.0.0.1", target.port) as client, target.accept() as far:
            client.half_close()
            assert far.read_to_end() == b""
            far.send(b"still")
            assert client.read_exactly(5) == b"still"
            far.half_close()
            assert client.read_to_end() == b""
        with open_socks5(proxy, "127.0.0.1", target.port) as client, target.accept() as far:
            far.reset()
            with pytest.raises(ConnectionResetError):
                client.recv()
        with open_socks5(proxy, "127.0.0.1", target.port) as client, target.accept() as far:
            client.reset()
            with pytest.raises(ConnectionResetError):
                far.recv()
    bed.wait_empty(proxy)


def test_many_bytes_both_ways(bed: ProxiesBed, echo: Target) -> None:
    proxy = bed.socks5()
    with open_socks5(proxy, "127.0.0.1", echo.port) as client, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send_all, client, 1, 20 * MIB)
        assert receive_all(client) == (20 * MIB, sent.result(LIMIT_S))


def test_three_hundred_at_once(bed: ProxiesBed, echo: Target) -> None:
    proxy = bed.socks5()
    count = 300
    opened = [open_socks5(proxy, "127.0.0.1", echo.port) for _ in range(20)]
    with ThreadPoolExecutor(32) as pool:
        opened += pool.map(
            lambda _: open_socks5(proxy, NAME, echo.port), range(count - len(opened))
        )
    assert bed.stack.do(lambda: len(proxy.connections.tunnels)) == count
    for number, client in enumerate(opened):
        client.send(b"%04d" % number)
    for number, client in enumerate(opened):
        assert client.read_exactly(4) == b"%04d" % number
        client.close()
    bed.wait_empty(proxy)
    assert not bed.unserved(proxy)


# Not served.


def refused(bed: ProxiesBed, proxy: object, said: bytes) -> bytes:
    with connect(proxy) as client:  # type: ignore[arg-type]
        client.send(said)
        return client.read_to_end()


@pytest.mark.parametrize("command", [2, 3, 0, 9])
def test_tcp_only(bed: ProxiesBed, command: int, caplog: pytest.LogCaptureFixture) -> None:
    proxy = bed.socks5()
    for _ in range(2):
        with connect(proxy) as client:
            greet(client)
            assert ask(client, "0.0.0.0", 0, command).code == Code.COMMAND_NOT_SUPPORTED
            assert client.read_to_end() == b""
    bed.wait_unserved(proxy, Unserved.NOT_SUPPORTED, 2)
    lines = [record.getMessage() for record in caplog.records if "TCP only" in record.getMessage()]
    assert len(lines) == 1


FAILURES = [
    ("refused", Code.REFUSED),
    ("unresolved", Code.HOST_UNREACHABLE),
    ("silent", Code.TTL_EXPIRED),
]


@pytest.mark.parametrize(("how", "code"), FAILURES)
def test_each_failure_has_its_code(bed: ProxiesBed, how: str, code: Code) -> None:
    with full_target() as full:
        proxy = bed.socks5(**{"dial_timeout_s": 0.5} if how == "silent" else {})
        target = {
            "refused": ("127.0.0.1", free_port()),
            "unresolved": ("nowhere.guest.example", 80),
            "silent": ("127.0.0.1", full.port),
        }[how]
        with connect(proxy) as client:
            greet(client)
            assert ask(client, *target).code == code
            assert client.read_to_end() == b""
    bed.wait_unserved(proxy, Unserved.NO_DESTINATION)


def test_curl_says_what_was_wrong(bed: ProxiesBed) -> None:
    proxy = bed.socks5()
    at = f"socks5h://127.0.0.1:{port_of(proxy)}"
    code, _, err = curl("-x", at, f"http://127.0.0.1:{free_port()}/")
    assert (code, "(5)" in err) == (97, True), err


WRONG = [
    (b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", bytes([0, 91, 0, 0, 0, 0, 0, 0])),
    (b"\x16\x03\x01\x02\x00", b"\x05\xff"),
    (b"\x00", b"\x05\xff"),
    (b"\x05\x00", b"\x05\xff"),
    (b"\x05\x01\x02", b"\x05\xff"),
    (b"\x05\x02\x01\x80", b"\x05\xff"),
    (b"\x05\x01\x00\x04", b"\x05\x00\x05\x01\x00\x01" + bytes(6)),
    (b"\x05\x01\x00\x05\x01\x07", b"\x05\x00\x05\x01\x00\x01" + bytes(6)),
    (b"\x05\x01\x00\x05\x01\x00\x02", b"\x05\x00\x05\x08\x00\x01" + bytes(6)),
    (b"\x05\x01\x00\x05\x01\x00\x03\x00\x00\x50", b"\x05\x00\x05\x01\x00\x01" + bytes(6)),
    (b"\x05\x01\x00\x05\x01\x00\x03\x01\xff\x00\x50", b"\x05\x00\x05\x01\x00\x01" + bytes(6)),
    (b"\x05\x01\x00\x05\x01\x00\x01" + bytes(6), b"\x05\x00\x05\x01\x00\x01" + bytes(6)),
]  # fmt: skip


@pytest.mark.parametrize(("said", "answer"), WRONG)
def test_wrong_messages_get_the_protocols_own_answer(
    bed: ProxiesBed, said: bytes, answer: bytes
) -> None:
    proxy = bed.socks5()
    assert refused(bed, proxy, said) == answer
    with connect(proxy) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in said:
            client.send(bytes([byte]))
        assert client.read_to_end() == answer
    wait_until(lambda: sum(bed.unserved(proxy).values()) == 2, "both are counted")
    assert set(bed.unserved(proxy)) <= {Unserved.BAD_REQUEST, Unserved.NO_METHOD}
    bed.wait_empty(proxy)


def test_http_is_told_so(bed: ProxiesBed) -> None:
    proxy = bed.socks5()
    code, out, _ = curl("-x", f"http://127.0.0.1:{port_of(proxy)}", "http://127.0.0.1:1/")
    assert (code, "socks5://" in out) == (0, True)


def test_clients_that_leave_or_say_nothing(bed: ProxiesBed) -> None:
    proxy = bed.socks5(handshake_timeout_s=0.3, max_handshakes=2)
    with connect(proxy):
        pass
    bed.wait_unserved(proxy, Unserved.LEFT)
    with connect(proxy) as slow:
        slow.send(b"\x05")
        with pytest.raises(ConnectionResetError):
            slow.recv()
    assert bed.unserved(proxy)[Unserved.LATE] == 1
    waiting = [connect(proxy) for _ in range(3)]
    bed.stack.wait(lambda: proxy.metrics.unserved[Unserved.CROWDED] == 1, "the oldest has to go")
    for client in waiting:
        client.close()
    bed.wait_empty(proxy)


def test_a_client_that_leaves_takes_its_dial_along(bed: ProxiesBed) -> None:
    proxy = bed.socks5()
    with full_target() as full, connect(proxy) as client:
        greet(client)
        client.send(Request(1, "127.0.0.1", full.port).to_bytes())
        bed.stack.wait(lambda: len(proxy.connections._asked) == 1, "it dials")
        client.reset()
        bed.wait_empty(proxy)
    bed.wait_unserved(proxy, Unserved.LEFT)


def test_too_many(bed: ProxiesBed, echo: Target) -> None:
    proxy = bed.socks5(max_connections=2)
    first, second = (open_socks5(proxy, "127.0.0.1", echo.port) for _ in range(2))
    with first, second:
        with pytest.raises(ConnectionError), connect(proxy) as third:
            third.send(b"\x05\x01\x00")
            third.recv()
            raise ConnectionError("a clean end")
        bed.wait_unserved(proxy, Unserved.TOO_MANY)


# Passwords.


def test_with_a_password_nobody_gets_in_without(
    bed: ProxiesBed, origin: Origin, tmp_path: Path
) -> None:
    proxy = bed.socks5(**PASSWORD, password_file=password_file(tmp_path))
    url = f"http://127.0.0.1:{origin.port}/"
    at = f"127.0.0.1:{port_of(proxy)}"
    assert curl("-x", f"socks5h://me:secret@{at}", url)[0] == 0
    for wrong in ("me:wrong", "you:secret", "me:", "me:secret2"):
        assert curl("-x", f"socks5h://{wrong}@{at}", url)[0] == 97
    assert curl("-x", f"socks5h://{at}", url)[0] == 97
    wait_until(lambda: sum(bed.unserved(proxy).values()) == 5, "all are counted")
    assert bed.unserved(proxy) == {Unserved.WRONG_PASSWORD: 4, Unserved.NO_METHOD: 1}


def test_wrong_logins_by_hand(bed: ProxiesBed, tmp_path: Path) -> None:
    proxy = bed.socks5(**PASSWORD, password_file=password_file(tmp_path))
    for said in (b"\x00", b"\x05\x02me", b"\x01\x00\x00", Login(b"me", b"no").to_bytes()):
        with connect(proxy) as client:
            assert greet(client, b"\0\2").method == 2
            client.send(said)
            assert client.read_to_end() == b"\x01\x01"


def test_a_changed_password_counts_from_then_on(
    bed: ProxiesBed, origin: Origin, tmp_path: Path
) -> None:
    proxy = bed.socks5(**PASSWORD, password_file=password_file(tmp_path))
    url = f"http://127.0.0.1:{origin.port}/"
    at = f"127.0.0.1:{port_of(proxy)}"
    password_file(tmp_path, "")  # of no use: the one before stays
    assert curl("-x", f"socks5h://me:secret@{at}", url)[0] == 0
    password_file(tmp_path, "other")
    wait_until(
        lambda: curl("-x", f"socks5h://me:other@{at}", url)[0] == 0, "the new password counts"
    )
    assert curl("-x", f"socks5h://me:secret@{at}", url)[0] == 97


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), ("x" * 256, "at most 255 bytes"), (None, "no such file")],
)
def test_a_password_file_of_no_use(
    bed: ProxiesBed, tmp_path: Path, text: str | None, said: str
) -> None:
    path = str(tmp_path / "missing") if text is None else password_file(tmp_path, text)
    with pytest.raises(ConfigError, match=said) as caught:
        bed.socks5(**PASSWORD, password_file=path)
    assert "--password-file" in str(caught.value)
    assert "xxx" not in str(caught.value)


# The program.


def test_ports_and_drain(bed: ProxiesBed, echo: Target) -> None:
    proxy = bed.socks5()
    port = port_of(proxy)
    with open_socks5(proxy, NAME, echo.port) as client:
        client.send(b"hello")
        client.read_exactly(5)
        status, text = http_get(proxy.admin_port, "/snapshot")
        shown = json.loads(text)
        assert (status, shown["kind"], shown["program"]) == (200, "SidecarSnapshot", "socks5-proxy")
        assert [it["target"] for it in shown["tunnels"]] == [f"{NAME}:{echo.port}"]
        assert shown["tunnels"][0]["frontend"] == "socks5"
        scraped = http_get(proxy.health_port, "/metrics")[1]
        assert metric(scraped, "isthmus_socks5_proxy_connections_accepted_total") == 1
        assert metric(scraped, "isthmus_socks5_proxy_connections") == 1
        assert metric(scraped, 'isthmus_socks5_proxy_bytes_total{direction="to_target"}') == 5
        assert http_get(proxy.health_port, "/readyz")[0] == 200
        assert http_get(proxy.health_port, "/livez?verbose")[0] == 200
        drained = threading.Thread(target=lambda: bed.stack.run(proxy.drain(LIMIT_S)))
        drained.start()
        wait_until(lambda: http_get(proxy.health_port, "/readyz")[0] == 500, "it says so")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), LIMIT_S)
        client.send(b"still")
        assert client.read_exactly(5) == b"still"
    drained.join(LIMIT_S)
    assert not drained.is_alive()


def test_lookups_and_ways_are_counted(bed: ProxiesBed, echo: Target) -> None:
    proxy = bed.socks5(resolve_from_management_cluster_dns=True)
    for name in (NAME, "127.0.0.1"):
        open_socks5(proxy, name, echo.port).close()
    scraped = http_get(proxy.health_port, "/metrics")[1]
    ours = "isthmus_socks5_proxy_"
    assert metric(scraped, ours + 'name_lookups_total{result="found",source="guest_dns"}') == 1
    assert metric(scraped, ours + 'name_lookups_total{result="decided",source="address"}') == 1
    assert metric(scraped, ours + 'dials_total{way="tunnel"}') == 2
    assert metric(scraped, ours + 'dials_total{way="direct"}') == 0
    assert metric(scraped, ours + "tunnel_healthy") == 1
    # What only this pod can resolve from here on.
    bed.stack.run(bed.dns.stop())
    open_socks5(proxy, "localhost", echo.port).close()
    scraped = http_get(proxy.health_port, "/metrics")[1]
    assert metric(scraped, ours + 'name_lookups_total{result="failed",source="guest_dns"}') == 1
    assert metric(scraped, ours + 'dials_total{way="direct"}') == 1
    assert metric(scraped, ours + "tunnel_healthy") == 0
    names = json.loads(http_get(proxy.admin_port, "/snapshot")[1])["names"]
    assert (names["tunnelWorks"], names["failingSeconds"] > 0) == (False, True)
    assert {"source": "management DNS", "result": "found", "count": 1} in names["lookups"]
    assert {"way": "through the tunnel", "count": 2} in names["ways"]
    bed.wait_empty(proxy)


def test_as_a_program(programs: Programs, origin: Origin) -> None:
    server = programs.server()
    programs.agent(server)
    programs.wait_ready(server)
    proxy = programs.start(
        "socks5-proxy", "run", f"--konnectivity-uds={programs.uds}", "--disable-resolver",
        "--serving-port=0", "--health-bind-address=127.0.0.1", "--health-port=0",
        "--admin-port", "0",
    )  # fmt: skip
    proxy.wait_log("serving ")
    at = f"127.0.0.1:{proxy.port('port')}"
    assert curl("--socks5-hostname", at, f"http://localhost:{origin.port}/")[0] == 0
    proxy.signal(signal.SIGTERM)
    assert proxy.wait_exit() == 0
    assert "Traceback" not in proxy.log


def test_pysocks(bed: ProxiesBed, echo: Target) -> None:
    socks = pytest.importorskip("socks")
    proxy = bed.socks5()
    with socks.socksocket() as sock:
        sock.set_proxy(socks.SOCKS5, "127.0.0.1", port_of(proxy), rdns=True)
        sock.settimeout(LIMIT_S)
        sock.connect((NAME, echo.port))
        sock.sendall(b"hello")
        assert sock.recv(5) == b"hello"


def test_httpx(bed: ProxiesBed, origin: Origin) -> None:
    pytest.importorskip("socksio")
    import httpx

    proxy = bed.socks5()
    with httpx.Client(proxy=f"socks5://127.0.0.1:{port_of(proxy)}", timeout=LIMIT_S) as client:
        assert client.get(f"http://{NAME}:{origin.port}/").json()["path"] == "/"


def test_by_grpc(fresh: Stack, echo: Target, tmp_path: Path) -> None:
    fresh.add_server(mode=("grpc",))
    fresh.add_agent()
    with ProxiesBed(fresh, tmp_path) as bed:
        proxy = bed.socks5(konnectivity_protocol="grpc")
        for name in (NAME, "127.0.0.1"):
            with open_socks5(proxy, name, echo.port) as client:
                client.send(b"hello")
                assert client.read_exactly(5) == b"hello"
                client.half_close()
                assert client.read_to_end() == b""
        bed.wait_empty(proxy)


def test_new_certificates_are_used(
    fresh: Stack, echo: Target, tmp_path: Path, certificates: pki.PkiFiles
) -> None:
    fresh.add_server()
    fresh.add_agent()
    stranger = pki.init(tmp_path / "pki", server_names=("localhost",))
    shown = {
        tmp_path / name: (getattr(stranger, attribute), getattr(certificates, attribute))
        for name, attribute in (
            ("ca.crt", "ca_cert"),
            ("tls.crt", "client_cert"),
            ("tls.key", "client_key"),
        )
    }
    for path, (wrong, _) in shown.items():
        path.write_bytes(wrong.read_bytes())
    with ProxiesBed(fresh, tmp_path) as bed:
        ca, cert, key = map(str, shown)
        flags = {"ca_cert_path": ca, "tls_cert_path": cert, "tls_key_path": key}
        proxy = bed.socks5(**bed.tls_flags | flags)

        def code() -> int:
            with connect(proxy) as client:
                greet(client)
                return ask(client, "127.0.0.1", echo.port).code

        assert code() == Code.FAILURE
        for path, (_, right) in shown.items():
            path.write_bytes(right.read_bytes())
        wait_until(lambda: code() == Code.SUCCEEDED, "the new certificates are used")
        bed.wait_empty(proxy)


def test_no_agent_is_said_at_once(fresh: Stack, tmp_path: Path) -> None:
    fresh.add_server()
    with ProxiesBed(fresh, tmp_path) as bed:
        proxy = bed.socks5()
        with connect(proxy) as client:
            greet(client)
            assert ask(client, "127.0.0.1", 80).code == Code.FAILURE
        failures = bed.stack.do(lambda: dict(proxy.metrics.dial_failures))
        assert failures[DialFailure.NO_AGENT] == 1


def test_garbage_harms_nobody(bed: ProxiesBed, echo: Target) -> None:
    proxy = bed.socks5()
    chance = random.Random(5)
    with open_socks5(proxy, "127.0.0.1", echo.port) as other:
        for _ in range(200):
            said = chance.choice([b"", b"\x05\x01\x00", b"\x05\x01\x00\x05\x01\x00"])
            with connect(proxy) as client, contextlib.suppress(ConnectionError):
                client.send(said + chance.randbytes(chance.randrange(1, 40)))
                client.half_close()
                client.read_to_end()
        other.send(b"hello")
        assert other.read_exactly(5) == b"hello"
    bed.wait_empty(proxy)
