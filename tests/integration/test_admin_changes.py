"""Ending tunnels by the admin port: every program, every way in, and who may."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver_bed import Bed as ApiserverBed
from apiserver_bed import Upstream
from clients import LIMIT_S, Target, TlsClient, connect_uds, tunnel
from grpc_clients import GrpcCall
from proxies_bed import ProxiesBed, open_socks5
from sni_bed import Bed as SniBed
from sni_bed import Tenant
from stack import Stack, client_context, http_get, wait_until

from isthmus.tools.pki import making as pki

TOKEN = "0123456789abcdef0123456789abcdef"
ENDED = "ended by an administrator"
RESET = (ssl.SSLError, ConnectionError)
ME = "root" if os.geteuid() == 0 else None
pytestmark = pytest.mark.skipif(ME is None, reason="asks as other users")


@pytest.fixture(scope="module", params=["auto", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(certificates: pki.PkiFiles, link: str) -> Iterator[Stack]:
    with Stack(certificates, link) as stack:
        add_server(stack)
        stack.add_agent(agent_id="node-1")
        yield stack


def add_server(stack: Stack, **settings: Any) -> None:
    """A server with both frontends and an audit log."""
    stack.add_server(
        mode=("grpc", "http-connect"),
        http_connect_uds_name=str(stack.dir / "connect.sock"),
        http_connect_port=0,
        audit_log_path=str(stack.dir / "audit.log"),
        **settings,
    )


def post(
    port: int, path: str, *, tls: ssl.SSLContext | None = None, intent: str = "end", **headers: str
) -> tuple[int, str]:
    """Ask an admin port for a change; the status and the text."""
    connection: http.client.HTTPConnection
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=LIMIT_S, context=tls)
    with contextlib.closing(connection):
        connection.request("POST", path, headers={"X-Isthmus-Intent": intent, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def only_tunnel(port: int) -> dict[str, Any]:
    """The one tunnel of a program."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = json.loads(http_get(port, "/snapshot")[1])["tunnels"]
        return len(found) == 1

    wait_until(there, "there is one tunnel")
    return found[0]


def end_only(port: int) -> dict[str, Any]:
    """End the one tunnel of a program, which is shown as it was."""
    found = only_tunnel(port)
    status, text = post(port, f"/tunnels/{found['id']}/end")
    assert status == 200, text
    assert json.loads(text) == {"ended": found["id"], "connectionId": found["connectionId"]}
    assert post(port, f"/tunnels/{found['id']}/end") == (404, f"no such tunnel: {found['id']}\n")
    return found


def last_ending(port: int) -> tuple[str, str]:
    """How the last tunnel of a program ended, and by whom."""
    ending = json.loads(http_get(port, "/snapshot")[1])["recentEndings"][0]
    return ending["ending"], ending["by"]


# Ways in, each an open tunnel: who sees how it ends.


@contextlib.contextmanager
def by_uds(stack: Stack, target: Target) -> Iterator[Callable[[], None]]:
    with tunnel(connect_uds(stack.server.settings.http_connect_uds_name), target.name) as client:

        def cut() -> None:
            with contextlib.suppress(ConnectionError):  # a UNIX socket cannot be told to reset
                assert client.recv() == b""

        yield cut


@contextlib.contextmanager
def by_tls(stack: Stack, target: Target) -> Iterator[Callable[[], None]]:
    port = stack.server.doors.ports["http-connect"]
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    client = TlsClient(sock, client_context(stack.files), "localhost")
    with tunnel(client, target.name):

        def cut() -> None:
            with pytest.raises(RESET):
                client.recv()

        yield cut


@contextlib.contextmanager
def by_grpc(stack: Stack, target: Target) -> Iterator[Callable[[], None]]:
    with stack.uds() as client:
        call = GrpcCall(client)
        assert call.dial(target.name) == ""

        def cut() -> None:
            errors = []
            while (packet := call.packet()) is not None:
                errors.append(packet.closeResponse.error)
            assert any(errors) or call.was_reset or call.trailers["grpc-status"] != "0"

        yield cut


ways = pytest.mark.parametrize("way", [by_uds, by_tls, by_grpc])
Way = Callable[[Stack, Target], contextlib.AbstractContextManager[Callable[[], None]]]


@ways
def test_a_tunnel_is_ended_at_the_server(
    stack: Stack, way: Way, link: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    port = stack.server.admin_port
    with Target() as target, way(stack, target) as cut, target.accept() as far:
        found = end_only(port)
        cut()
        with pytest.raises(ConnectionResetError):
            far.recv()
    assert last_ending(port) == (ENDED, f"operator {ME}")
    stack.wait_idle()
    # Our own agent hears why; konnectivity's protocol has no word for it.
    told = (ENDED, "client") if link == "auto" else ("reset by peer", "client")
    wait_until(lambda: last_ending(stack.agent.admin_port) == told, "the agent knows")
    record = json.loads(http_get(port, "/audit?limit=1")[1])["records"][0]
    assert (record["stage"], record["connectionId"]) == ("End", found["connectionId"])
    assert (record["ending"], record["endedBy"]) == (ENDED, f"operator {ME}")
    path = Path(stack.server.settings.audit.log_path)
    wait_until(
        lambda: any(json.loads(line) == record for line in path.read_bytes().splitlines()),
        "the record is in the file",
    )
    [said] = [it for it in caplog.records if it.getMessage() == "tunnel ended by an operator"]
    assert vars(said)["fields"] == {
        "tunnel": found["id"],
        "connection": found["connectionId"],
        "operator": f"operator {ME}",
    }


@ways
def test_a_tunnel_is_ended_at_the_agent(stack: Stack, way: Way, link: str) -> None:
    with Target() as target, way(stack, target) as cut, target.accept() as far:
        end_only(stack.agent.admin_port)
        cut()
        with pytest.raises(ConnectionResetError):
            far.recv()
    assert last_ending(stack.agent.admin_port) == (ENDED, f"operator {ME}")
    stack.wait_idle()
    ending, by = last_ending(stack.server.admin_port)
    assert (ending, by) == ((ENDED, "target") if link == "auto" else ("reset by peer", "target"))


def test_a_tunnel_with_bytes_under_way_is_ended(stack: Stack) -> None:
    """Nobody reads: both directions are full, and the end does not wait for anybody."""
    port = stack.server.admin_port
    with Target() as target:
        uds = connect_uds(stack.server.settings.http_connect_uds_name)
        with tunnel(uds, target.name) as client, target.accept() as far:
            for each in (client, far):
                each.sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        each.sock.send(b"x" * 65536)
                each.sock.settimeout(LIMIT_S)
            end_only(port)
            with pytest.raises(ConnectionError):
                while far.recv():
                    pass
    assert last_ending(port) == (ENDED, f"operator {ME}")


# Who may.


def curl_as(uid: int, port: int, path: str, *more: str) -> str:
    """Ask as another user of this machine; the text, and the status behind it."""
    asked = subprocess.run(
        ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", str(LIMIT_S),
         "--write-out", "%{http_code}", *more, f"http://127.0.0.1:{port}{path}"],
        capture_output=True, text=True, timeout=LIMIT_S, user=uid, cwd="/",
    )  # fmt: skip
    return asked.stdout


def test_another_user_of_this_machine_may_look_but_not_end(stack: Stack) -> None:
    change = ("--request", "POST", "--header", "X-Isthmus-Intent: end")
    with Target() as target, by_uds(stack, target), target.accept() as far:
        for program in (stack.server, stack.agent):
            port = program.admin_port
            number = only_tunnel(port)["id"]
            assert curl_as(65534, port, "/snapshot?limit=0").endswith("200")
            said = curl_as(65534, port, f"/tunnels/{number}/end", *change)
            assert said.startswith("only root and the user of this program may make changes")
            assert said.endswith("403")
            assert only_tunnel(port)["id"] == number
        said = curl_as(0, stack.agent.admin_port, f"/tunnels/{number}/end", *change)
        assert said.endswith("200")
        with pytest.raises(ConnectionResetError):
            far.recv()


@pytest.mark.parametrize("kind", ["server", "agent"])
def test_nobody_ends_a_tunnel_through_a_tunnel(stack: Stack, kind: str) -> None:
    """The agent connects to an admin port of its own process and user, and for somebody else."""
    uds = stack.server.settings.http_connect_uds_name
    port = getattr(stack, kind).admin_port
    with tunnel(connect_uds(uds), f"127.0.0.1:{port}") as client:
        number = only_tunnel(port)["id"]
        request = f"POST /tunnels/{number}/end HTTP/1.1\r\nHost: localhost\r\n"
        client.send(f"{request}X-Isthmus-Intent: end\r\nContent-Length: 0\r\n\r\n".encode())
        assert client.read_head().startswith(b"HTTP/1.1 403 ")
        assert b"through a tunnel of this program" in client.recv()
        assert only_tunnel(port)["id"] == number


def test_a_page_of_another_site_may_not(stack: Stack) -> None:
    port = stack.server.admin_port
    with Target() as target, by_uds(stack, target), target.accept():
        path = f"/tunnels/{only_tunnel(port)['id']}/end"
        at = f"127.0.0.1:{port}"
        assert post(port, path, intent="")[0] == 403
        assert post(port, path, Origin="http://evil.example")[0] == 403
        assert post(port, path, Host=f"evil.example:{port}", Origin=f"http://{at}")[0] == 403
        assert http_get(port, path)[0] == 405
        assert post(stack.server.health_port, path)[0] == 404
        assert only_tunnel(port)
        assert post(port, path, Host=at, Origin=f"http://{at}")[0] == 200


def test_whose_certificate_it_is_stands_in_the_audit_log(fresh: Stack) -> None:
    files = fresh.files
    add_server(
        fresh,
        admin_cert=str(files.server_cert),
        admin_key=str(files.server_key),
        admin_client_ca=str(files.client_ca_cert),
    )
    fresh.add_agent()
    port = fresh.server.admin_port
    with Target() as target, by_uds(fresh, target), target.accept() as far:
        number = fresh.do(lambda: next(iter(fresh.server.tunnels._open)))
        status, text = post(port, f"/tunnels/{number}/end", tls=client_context(files))
        assert status == 200, text
        with pytest.raises(ConnectionResetError):
            far.recv()
    fresh.wait_idle()
    assert fresh.server.audit is not None
    [line] = fresh.server.audit.log.recent(0, 1)[0]
    assert json.loads(line)["endedBy"] == "operator CN=isthmus-client"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_token_is_enough(fresh: Stack, tmp_path: Path, host: str) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    given: dict[str, str] = {"admin_token_file": str(token), "admin_bind_address": host}
    tls = None
    if host != "127.0.0.1":
        given |= {"admin_cert": str(fresh.files.server_cert)}
        given |= {"admin_key": str(fresh.files.server_key)}
        tls = ssl.create_default_context(cafile=str(fresh.files.ca_cert))
    add_server(fresh, **given)
    fresh.add_agent()
    port = fresh.server.admin_port
    shown = {"Authorization": f"Bearer {TOKEN}"}
    with Target() as target, by_uds(fresh, target), target.accept() as far:
        path = f"/tunnels/{fresh.do(lambda: next(iter(fresh.server.tunnels._open)))}/end"
        assert post(port, path, tls=tls)[0] == 401
        assert post(port, path, tls=tls, Authorization=f"Bearer {TOKEN[:-1]}")[0] == 401
        assert post(port, path, tls=tls, **shown)[0] == 200
        with pytest.raises(ConnectionResetError):
            far.recv()
    fresh.wait_idle()
    assert fresh.server.audit is not None
    [line] = fresh.server.audit.log.recent(0, 1)[0]
    assert json.loads(line)["endedBy"] == "operator with the token"


def test_tls_without_certificates_of_clients_looks_at_their_users(fresh: Stack) -> None:
    files = fresh.files
    add_server(fresh, admin_cert=str(files.server_cert), admin_key=str(files.server_key))
    tls = ssl.create_default_context(cafile=str(files.ca_cert))
    assert post(fresh.server.admin_port, "/tunnels/7/end", tls=tls) == (
        404,
        "no such tunnel: 7\n",
    )


# The other programs.


def test_an_sni_router(tmp_path: Path, certificates: pki.PkiFiles) -> None:
    with Tenant("a", tmp_path) as tenant, SniBed(tmp_path, {"a": tenant}) as bed:
        bed.start()
        context = ssl.create_default_context(cafile=str(tenant.files.ca_cert))
        plain = socket.create_connection(("127.0.0.1", bed.port), LIMIT_S)
        with TlsClient(plain, context, tenant.host) as client:
            assert client.recv().startswith(b"a ")
            end_only(bed.router.admin_port)
            with pytest.raises(ConnectionResetError):
                client.recv()
        assert last_ending(bed.router.admin_port) == (ENDED, f"operator {ME}")
        assert_shown(bed.router.admin_port, "sni-router")


def test_an_apiserver_proxy(tmp_path: Path, certificates: pki.PkiFiles) -> None:
    with Upstream(certificates) as upstream, ApiserverBed(tmp_path, certificates) as bed:
        bed.start(f"127.0.0.1:{upstream.port}")
        bed.wait_checked()
        with bed.echo() as client:
            end_only(bed.proxy.admin_port)
            with pytest.raises(ConnectionResetError):
                client.recv()
        assert last_ending(bed.proxy.admin_port) == (ENDED, f"operator {ME}")
        assert_shown(bed.proxy.admin_port, "apiserver-proxy")


def test_sidecars(fresh: Stack, tmp_path: Path) -> None:
    fresh.add_server()
    fresh.add_agent()
    with ProxiesBed(fresh, tmp_path) as bed, Target() as target:
        sidecar = bed.socks5()
        with open_socks5(sidecar, "127.0.0.1", target.port) as client, target.accept() as far:
            end_only(sidecar.admin_port)
            with pytest.raises(ConnectionResetError):
                client.recv()
            assert far.recv() == b""  # the sidecar's way to the server is a UNIX socket
        assert last_ending(sidecar.admin_port) == (ENDED, f"operator {ME}")
        assert_shown(sidecar.admin_port, "socks5-proxy")
        assert_shown(bed.https().admin_port, "https-proxy")


def assert_shown(port: int, program: str) -> None:
    """An admin port has everything that every program's has."""
    kinds = {"/history": "History", "/audit": "AuditRecords", "/logs": "LogLines",
             "/configz": "Configuration"}  # fmt: skip
    for path, kind in kinds.items():
        status, text = http_get(port, path)
        assert (status, json.loads(text)["kind"]) == (200, kind)
    shown = json.loads(http_get(port, "/configz")[1])
    assert shown["program"] == program and shown["instance"]
    assert shown["flags"]["admin-port"] == {"value": "0", "given": True}
    assert http_get(port, "/ui/")[0] == 200
