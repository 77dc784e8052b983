"""The health and admin ports, asked over real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import aiohttp
import pytest
import uvloop
from asking import TUNNELS, asking, listen, view, watched
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client.parser import text_string_to_metric_families

from isthmus.errors import ConfigError
from isthmus.frame.admin import ports
from isthmus.frame.admin.answers import PING, Check
from isthmus.frame.admin.ports import Port
from isthmus.frame.admin.routes import AGENT, admin_routes, health_routes
from isthmus.frame.model.snapshot import ServerView
from isthmus.net import http_site
from isthmus.net.contexts import HotContext, TlsFiles, server_context
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.server.metrics import ServerMetrics


def test_the_servers_health_port() -> None:
    alive = [PING, Check("listener:8091")]
    checks = [Check("agents", "no connection to any proxy agent")]

    async def main() -> None:
        routes = health_routes(
            watched(live=lambda: alive, ready=lambda: checks, metrics=ServerMetrics().render)
        )
        async with asking(routes) as ask:
            for path in ("/healthz", "/livez"):
                answer = await ask(path)
                assert (answer.status, answer.text) == (200, "ok")
                answer = await ask(f"{path}?verbose")
                assert answer.text == "[+]ping ok\n[+]listener:8091 ok\ncheck passed\n"
            alive[1] = Check("listener:8091", "its socket was closed")
            answer = await ask("/livez")
            assert answer.status == 500
            assert answer.text == ("[+]ping ok\n[-]listener:8091 failed: its socket was closed\n")
            for path in ("/readyz", "/ready"):
                answer = await ask(path)
                assert (answer.status, answer.text) == (500, "no connection to any proxy agent")
            answer = await ask("/readyz?verbose")
            assert answer.status == 500
            assert answer.text == "[-]agents failed: no connection to any proxy agent\n"
            checks[:] = [Check("agents")]
            answer = await ask("/readyz")
            assert (answer.status, answer.text) == (200, "ok")
            assert (await ask("/ready?verbose")).text == "[+]agents ok\ncheck passed\n"
            assert (await ask("/snapshot")).status == 404

    asyncio.run(main())


def test_the_agents_health_port() -> None:
    alive = [PING, Check("task:servers", "ended")]
    checks = [PING, Check("server-connected", "no servers connected")]

    async def main() -> None:
        routes = health_routes(
            watched(live=lambda: alive, ready=lambda: checks, metrics=AgentMetrics().render), AGENT
        )
        async with asking(routes) as ask:
            answer = await ask("/healthz")
            assert answer.status == 503
            assert answer.text == "[+]ping ok\n[-]task:servers failed: ended\n"
            answer = await ask("/readyz")
            assert answer.status == 503
            assert answer.text == ("[+]ping ok\n[-]server-connected failed: no servers connected\n")
            checks[1] = Check("server-connected")
            assert (await ask("/ready")).text == "ok"
            assert (await ask("/readyz?verbose=1")).text == (
                "[+]ping ok\n[+]server-connected ok\ncheck passed\n"
            )

    asyncio.run(main())


def test_metrics_are_prometheus_text() -> None:
    metrics = ServerMetrics()
    metrics.gauges.tunnels = lambda: 12

    async def main() -> None:
        routes = admin_routes(watched(metrics=metrics.render))
        async with asking(routes, admin=True) as ask:
            answer = await ask("/metrics")
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            found = {
                sample.name: sample.value
                for family in text_string_to_metric_families(answer.text)
                for sample in family.samples
            }
            assert found["konnectivity_network_proxy_server_established_connections"] == 12

    asyncio.run(main())


def test_the_snapshot_and_its_limit() -> None:
    async def main() -> None:
        routes = admin_routes(watched())
        async with asking(routes, admin=True) as ask:
            for query, shown in (
                ("", 1000),
                ("?limit=5", 5),
                ("?limit=0", 0),
                ("?limit=9999", 2500),
            ):
                answer = await ask(f"/snapshot{query}")
                assert answer.headers["Content-Type"] == "application/json"
                read = json.loads(answer.text)
                assert len(read["tunnels"]) == shown
                assert read["truncated"] == TUNNELS - shown
            for bad in ("-1", "x", "", "1e3", "٣", "9" * 30):
                answer = await ask("/snapshot", params={"limit": bad})
                assert answer.status == 400, bad

    asyncio.run(main())


def test_other_work_goes_on_while_a_large_snapshot_is_written() -> None:
    async def main() -> None:
        turns = 0
        done = asyncio.Event()

        async def other_work() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        def counting(limit: int) -> ServerView:
            nonlocal turns
            shown = view(limit)
            turns = 0
            return shown

        async with asking(admin_routes(watched(snapshot=counting))) as ask:
            work = asyncio.create_task(other_work())
            await ask("/snapshot?limit=2500")
            assert turns > 2500 // 100
            done.set()
            await work

    asyncio.run(main())


def test_the_agents_admin_port_redirects_metrics_as_go_does() -> None:
    async def main() -> None:
        routes = admin_routes(watched(), AGENT, metrics_at=8093)
        async with asking(routes, admin=True) as ask:
            answer = await ask("/metrics?x=1")
            assert answer.status == 301
            assert answer.headers["Location"] == "//127.0.0.1:8093/metrics?x=1"
            answer = await ask("/metrics", headers={"Host": "[::1]:8094"})
            assert answer.headers["Location"] == "//[::1]:8093/metrics"
            assert (await ask("/snapshot")).status == 200

    asyncio.run(main())


def test_only_get_and_head() -> None:
    async def main() -> None:
        routes = health_routes(watched())
        async with asking(routes) as ask:
            for method in ("POST", "PUT", "DELETE", "OPTIONS"):
                answer = await ask("/healthz", method)
                assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
            answer = await ask("/healthz", "HEAD")
            assert (answer.status, answer.text) == (200, "")
            assert answer.headers["Content-Length"] == "2"
            assert (await ask("/nothing", "POST")).status == 404

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST.:8095", 200),
        ("127.0.0.1:8095", 200),
        ("127.8.9.1", 200),
        ("[::1]:8095", 200),
        ("evil.example", 403),
        ("evil.example:8095", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.1", 403),
        ("0.0.0.0", 403),
        ("[::]", 403),
        ("", 403),
    ],
)
def test_the_admin_port_answers_only_to_loopback_names(host: str, status: int) -> None:
    async def main() -> None:
        routes = admin_routes(watched())
        async with asking(routes, admin=True) as ask:
            assert (await ask("/snapshot?limit=0", headers={"Host": host})).status == status

    asyncio.run(main())


def test_the_health_port_answers_to_any_name() -> None:
    async def main() -> None:
        async with asking(health_routes(watched())) as ask:
            assert (await ask("/healthz", headers={"Host": "node-1.example"})).status == 200

    asyncio.run(main())


async def raw(port: Port, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
    writer.write(request)
    answer = await reader.readuntil(b"\r\n")
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /snapshot?limit=0 HTTP/1.0\r\n\r\n", 200),
        (b"GET /snapshot?limit=0 HTTP/1.1\r\n\r\n", None),
        (b"GET /snapshot HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", None),
        (b"GET /snapshot HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n", 400),
        (b"\x16\x03\x01 this is not HTTP\r\n\r\n", 400),
    ],
)
def test_odd_requests(request_head: bytes, status: int | None) -> None:
    async def main() -> None:
        port = await listen(admin_routes(watched()), admin=True)
        answered = int((await raw(port, request_head)).split()[1])
        await port.close()
        if status is None:
            assert answered in (400, 403)
        else:
            assert answered == status

    asyncio.run(main())


def test_a_failing_callable_is_500_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bytes:
        raise RuntimeError("inner detail")

    async def main() -> None:
        async with asking(health_routes(watched(metrics=broken))) as ask:
            for _ in range(3):
                answer = await ask("/metrics")
                assert answer.status == 500
                assert "inner detail" not in answer.text
            assert (await ask("/healthz")).status == 200

    asyncio.run(main())
    (record,) = [record for record in caplog.records if record.name == "isthmus.ports"]
    assert record.getMessage() == "request failed"
    assert record.exc_info is not None


def test_broken_requests_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        port = await listen(health_routes(watched()))
        for _ in range(5):
            assert b" 400 " in await raw(port, b"BREW /healthz HTTP/1.1\r\n\r\n")
        await port.close()

    asyncio.run(main())
    (record,) = [record for record in caplog.records if record.name == "isthmus.ports"]
    assert (record.getMessage(), record.exc_info) == ("bad request", None)


def test_a_port_in_use_is_one_sentence_with_the_flag() -> None:
    async def main() -> str:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            number = taken.getsockname()[1]
            with pytest.raises(ConfigError) as caught:
                await listen({}, port=number, port_flag="--health-port")
            assert str(caught.value) == (f"--health-port: port {number} on 127.0.0.1 is in use")
        # The same port is free again: nothing was left open.
        await (await listen({}, port=number)).close()
        return str(caught.value)

    asyncio.run(main())


def test_an_address_of_another_machine_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^--p: port 0 on 192\.0\.2\.1 cannot be bound: not an"):
        asyncio.run(_listen("192.0.2.1"))  # TEST-NET-1, RFC 5737


def test_a_name_that_cannot_be_resolved_names_its_flag() -> None:
    with pytest.raises(ConfigError, match=r"^--h: cannot resolve 'no\.such\.invalid'$"):
        asyncio.run(_listen("no.such.invalid"))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.0.2.1"])
def test_an_admin_port_off_loopback_needs_tls(host: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--h: .* is not loopback, where an admin port requires TLS"
    ):
        asyncio.run(_listen(host, admin=True))


async def _listen(host: str, **more: object) -> None:
    port = await listen({}, host, **more)
    await port.close()


def test_every_address_is_one_port_for_both_families() -> None:
    async def main() -> None:
        port = await listen(health_routes(watched()), "")
        hosts = ["127.0.0.1", *(["::1"] if _has_ipv6_loopback() else [])]
        for host in hosts:
            reader, writer = await asyncio.open_connection(host, port.number)
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert (await reader.read()).endswith(b"ok")
            writer.close()
            await writer.wait_closed()
        await port.close()

    asyncio.run(main())


def _has_ipv6_loopback() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_localhost_is_loopback_and_a_closed_port_refuses() -> None:
    async def main() -> None:
        port = await listen(
            admin_routes(watched()),
            "localhost",
            admin=True,
        )
        assert b" 200 " in await raw(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await port.close()
        with pytest.raises(ConnectionRefusedError):
            await raw(port, b"")

    asyncio.run(main())


def test_an_unfinished_head_does_not_hold_a_connection_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "IDLE_S", 0.05)

    async def main() -> None:
        port = await listen(health_routes(watched()))
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await port.close()

    asyncio.run(main())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "both.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + built.public_bytes(serialization.Encoding.PEM)
    )
    return file


def hot(certificate: Path, *, ca: str = "") -> HotContext:
    files = TlsFiles(cert=str(certificate), key=str(certificate), ca=ca)
    return HotContext(files, server_context, purpose="server")


def test_with_client_certificates_an_admin_port_may_be_anywhere(certificate: Path) -> None:
    context = hot(certificate, ca=str(certificate))
    trust = ssl.create_default_context(cafile=str(certificate))
    trust.load_cert_chain(certificate)

    async def main() -> None:
        routes = admin_routes(watched(), AGENT, metrics_at=8093)
        port = await listen(routes, "", admin=True, tls=context)
        base = f"https://127.0.0.1:{port.number}"
        headers = {"Host": "node-1.example"}
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            async with session.get(f"{base}/snapshot") as response:
                assert (await response.json())["kind"] == "ServerSnapshot"
            async with session.get(f"{base}/metrics", allow_redirects=False) as response:
                assert response.headers["Location"] == "http://node-1.example:8093/metrics"
        assert port.trouble() == ""
        await port.close()
        assert port.trouble() == "its socket was closed"

    uvloop.run(main())


def test_tls_alone_keeps_an_admin_port_on_loopback(certificate: Path) -> None:
    async def main() -> None:
        routes = admin_routes(watched())
        with pytest.raises(ConfigError, match=r"^--h: every address is not loopback, "):
            await listen(routes, "", admin=True, tls=hot(certificate))
        port = await listen(routes, admin=True, tls=hot(certificate))
        trust = ssl.create_default_context(cafile=str(certificate))
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"https://127.0.0.1:{port.number}/livez"
            async with session.get(url) as response:
                assert response.status == 200
            async with session.get(url, headers={"Host": "evil.example"}) as response:
                assert response.status == 403
        await port.close()

    uvloop.run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("by_tls", [False, True])
def test_silent_connections_do_not_shut_others_out(
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[Awaitable[None]], None],
    by_tls: bool,
) -> None:
    """Not even those of their own address; who makes room is closed, the oldest first."""
    monkeypatch.setattr(http_site, "MOST_OPEN", 3)

    async def main() -> None:
        routes = admin_routes(watched())
        port = await listen(routes, admin=True, tls=hot(certificate) if by_tls else None)
        silent = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(5)]
        trust = ssl.create_default_context(cafile=str(certificate))
        scheme = "https" if by_tls else "http"
        async with (
            asyncio.timeout(20),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
            session.get(f"{scheme}://127.0.0.1:{port.number}/livez") as response,
        ):
            assert response.status == 200
            for reader, _ in silent[:3]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            assert not any(reader.at_eof() for reader, _ in silent[3:])
            (site,) = port._sites
            assert len(site._visitors) == 3
        await port.close()
        for _, writer in silent:
            writer.close()

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_handshake_that_never_comes(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[Awaitable[None]], None]
) -> None:
    monkeypatch.setattr(http_site, "HANDSHAKE_S", 0.1)
    refused: list[OSError] = []

    async def main() -> None:
        routes = admin_routes(watched())
        port = await listen(routes, admin=True, tls=hot(certificate), refused=refused.append)
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            (site,) = port._sites
            while len(site._visitors):
                await asyncio.sleep(0)
        writer.close()
        await port.close()

    run(main())
    assert len(refused) == 1 and not isinstance(refused[0], ssl.SSLError)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_handshake_is_given_up_when_its_port_closes(
    certificate: Path, run: Callable[[Awaitable[None]], None]
) -> None:
    async def main() -> None:
        routes = admin_routes(watched())
        port = await listen(routes, admin=True, tls=hot(certificate))
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        writer.write(b"\x16\x03\x01")
        await writer.drain()
        (site,) = port._sites
        async with asyncio.timeout(20):
            while not site._handshakes:
                await asyncio.sleep(0)
        await port.close()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    run(main())


def test_the_same_on_uvloop() -> None:
    async def main() -> None:
        routes = admin_routes(watched(metrics=ServerMetrics().render))
        async with asking(routes, admin=True) as ask:
            assert len(json.loads((await ask("/snapshot")).text)["tunnels"]) == 1000
            assert (await ask("/metrics")).status == 200

    uvloop.run(main())
