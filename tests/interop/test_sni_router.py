"""The SNI router between foreign programs: openssl and curl in front, haproxy on either side."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, free_port
from sni_bed import Bed, Tenant
from stack import wait_until

from isthmus.programs.sni_router.metrics import SniRefusal

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tenant]]:
    directory = tmp_path_factory.mktemp("tenants")
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Tenant(name, directory)) for name in ("a", "b", "c")}


@pytest.fixture
def bed(tmp_path: Path, tenants: dict[str, Tenant]) -> Iterator[Bed]:
    with Bed(tmp_path, tenants) as made:
        yield made


def program(name: str) -> str:
    """Where a program is; these come with every distribution, so one that is missing fails."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    assert found, f"{name} is not installed"
    return found


def at(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def s_client(bed: Bed, *args: str, said: bytes = b"") -> str:
    """What openssl's client says and hears; it leaves at the end of what it is told."""
    command = [program("openssl"), "s_client", "-connect", f"127.0.0.1:{bed.port}", *args]
    done = subprocess.run(command, input=said, capture_output=True, timeout=LIMIT_S, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


# openssl.


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_openssl_reaches_each_tenant(bed: Bed, name: str, version: str) -> None:
    bed.start()
    tenant = bed.tenants[name]
    found = s_client(
        bed, "-servername", tenant.host, "-CAfile", str(tenant.files.ca_cert),
        "-verify_return_error", "-verify_hostname", tenant.host, version,
    )  # fmt: skip
    assert "Verification: OK" in found
    assert f"Verified peername: {tenant.host}" in found or f"*.{name}.example" in found


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("-noservername",), SniRefusal.NO_NAME),
        (("-servername", "nobody.example"), SniRefusal.UNKNOWN_NAME),
    ],
)
def test_openssl_understands_the_alert(
    bed: Bed, args: tuple[str, ...], why: SniRefusal, version: str
) -> None:
    bed.start()
    found = s_client(bed, *args, version)
    assert "unrecognized name" in found
    assert "SSL alert number 112" in found
    bed.wait_refused(why)


def test_openssl_understands_that_the_backend_is_down(bed: Bed) -> None:
    bed.write(f"- {{name: x, hosts: [x.example], backends: ['127.0.0.1:{free_port()}']}}\n")
    bed.start()
    found = s_client(bed, "-servername", "x.example")
    assert "SSL alert number 80" in found


def test_a_hello_in_many_records(bed: Bed) -> None:
    tenant = bed.tenants["b"]
    alpn = ",".join(f"{index:02}-{'x' * 80}" for index in range(16))
    args = (
        "-servername", tenant.host, "-CAfile", str(tenant.files.ca_cert), "-alpn", alpn,
        "-max_send_frag", "512", "-verify_return_error",
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [program("openssl"), "s_client", "-connect", at(listener), *args]
        with running(command):
            sock, _ = listener.accept()
            with sock, sock.makefile("rb") as file:
                sizes = [int.from_bytes(file.read(5)[3:]), len(file.read(512))]
    assert sizes == [512, 512]  # it is in more than one record indeed
    bed.start()
    found = s_client(bed, *args)
    assert "Verification: OK" in found


# curl.


@pytest.mark.parametrize("how", ["--resolve", "--connect-to"])
def test_curl_to_three_tenants(bed: Bed, how: str) -> None:
    with contextlib.ExitStack() as stack:
        ports = {}
        for name, tenant in bed.tenants.items():
            ports[name] = free_port()
            stack.enter_context(s_server(tenant, ports[name]))
        bed.write(
            "".join(
                f"- {{name: {name}, hosts: [{it.host}], backends: [127.0.0.1:{ports[name]}]}}\n"
                for name, it in bed.tenants.items()
            )
        )
        bed.start()
        for tenant in bed.tenants.values():
            where = {
                "--resolve": f"{tenant.host}:{bed.port}:127.0.0.1",
                "--connect-to": f"{tenant.host}:443:127.0.0.1:{bed.port}",
            }[how]
            port = f":{bed.port}" if how == "--resolve" else ""
            done = subprocess.run(
                [
                    program("curl"), "--silent", "--show-error", "--fail", "--noproxy", "*",
                    "--cacert", str(tenant.files.ca_cert), how, where,
                    f"https://{tenant.host}{port}/",
                ],
                capture_output=True, timeout=LIMIT_S, check=False, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert f"Hostname: {tenant.host}" in done.stdout or "s_server" in done.stdout
        wrong = bed.tenants["a"]
        done = subprocess.run(
            [
                program("curl"), "--silent", "--show-error", "--noproxy", "*", "--cacert",
                str(wrong.files.ca_cert), "--resolve", f"x.example:{bed.port}:127.0.0.1",
                f"https://x.example:{bed.port}/",
            ],
            capture_output=True, timeout=LIMIT_S, check=False, text=True,
        )  # fmt: skip
        assert done.returncode == 35  # CURLE_SSL_CONNECT_ERROR
        assert "unrecognized name" in done.stderr


@contextlib.contextmanager
def s_server(tenant: Tenant, port: int) -> Iterator[None]:
    """An openssl server that answers HTTP with a page about the connection."""
    command = [
        program("openssl"), "s_server", "-accept", f"127.0.0.1:{port}", "-www", "-cert",
        str(tenant.files.server_cert), "-key", str(tenant.files.server_key),
    ]  # fmt: skip
    with running(command, port):
        yield


@contextlib.contextmanager
def running(command: list[str], *ports: int) -> Iterator[None]:
    """A program, from when it listens on the ports."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )

    def listens() -> bool:
        assert process.poll() is None, process.stdout and process.stdout.read().decode()
        try:
            for port in ports:
                socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
        except ConnectionRefusedError:
            return False
        return True

    try:
        wait_until(listens, f"{command[0]} listens")
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


# haproxy.

DEFAULTS = """\
defaults
  mode {mode}
  timeout connect 5s
  timeout client 20s
  timeout server 20s
"""


@contextlib.contextmanager
def haproxy(directory: Path, text: str, *ports: int) -> Iterator[None]:
    path = directory / "haproxy.cfg"
    path.write_text(text)
    with running([program("haproxy"), "-db", "-f", str(path)], *ports):
        yield


def test_haproxy_reads_our_header(bed: Bed, tmp_path: Path) -> None:
    """It ends TLS, and tells what the header said: the client, the server name, our TLV."""
    tenant, port = bed.tenants["a"], free_port()
    pem = tmp_path / "server.pem"
    pem.write_bytes(tenant.files.server_cert.read_bytes() + tenant.files.server_key.read_bytes())
    config = DEFAULTS.format(mode="http") + (
        "frontend f\n"
        f"  bind 127.0.0.1:{port} accept-proxy ssl crt {pem}\n"
        "  http-request return status 200 content-type text/plain lf-string"
        ' "%[src] %[src_port] %[dst] %[dst_port] %[fc_pp_authority] %[fc_pp_unique_id]\\n"\n'
    )
    with haproxy(tmp_path, config, port):
        bed.write(
            f"- name: a\n  hosts: ['*.a.example']\n  backends: ['127.0.0.1:{port}']\n"
            "  proxyProtocol:\n    tlvs: [{type: 5, value: tenant-a}, {type: 0x20, value: x}]\n"
        )
        bed.start()
        with bed.tls("a") as sock:
            own = sock.getsockname()[1]
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            reply = b""
            while data := sock.recv(65536):
                reply += data
    said = reply.decode().splitlines()[-1]
    assert said == f"127.0.0.1 {own} 127.0.0.1 {bed.port} api.a.example tenant-a"


@pytest.mark.parametrize("send", ["send-proxy", "send-proxy-v2", "send-proxy-v2 crc32c", "both"])
def test_haproxy_sends_a_header_to_us(bed: Bed, tmp_path: Path, send: str) -> None:
    """Whom haproxy accepted is whom our backends hear of."""
    options = {
        "send-proxy-v2 crc32c": "send-proxy-v2 proxy-v2-options crc32c,unique-id",
        "both": "send-proxy-v2 check-send-proxy check inter 50ms",
    }.get(send, send)
    router = bed.start(accept_proxy=True, proxy_from=("127.0.0.0/8",))
    port = free_port()
    config = DEFAULTS.format(mode="tcp") + (
        "listen l\n"
        f"  bind 127.0.0.1:{port}\n"
        "  unique-id-format %{+X}o%ci-%cp\n"
        f"  server router 127.0.0.1:{bed.port} {options}\n"
    )
    with haproxy(tmp_path, config, port):
        before = bed.do(lambda: router.metrics.refusals[SniRefusal.LEFT])
        with bed.tls("c", port=port) as sock:
            assert sock.recv(100) == b"c api.c.example -\n"
            (seen,) = bed.do(lambda: bed.connections.tunnels.views(10))
            assert seen.requester == f"address:127.0.0.1:{sock.getsockname()[1]}"
        if send == "both":
            # Its health checks say LOCAL and leave, and that is no error.
            bed.wait(lambda: router.metrics.refusals[SniRefusal.LEFT] > before, "it looks again")
    assert set(bed.refusals()) <= {SniRefusal.LEFT}


def test_haproxy_on_both_sides(bed: Bed, tmp_path: Path) -> None:
    """haproxy, we, haproxy: what the first accepted is what the last is told."""
    front, back = free_port(), free_port()
    config = DEFAULTS.format(mode="tcp") + (
        f"listen front\n  bind 127.0.0.1:{front}\n"
        f"  server router 127.0.0.1:{{router}} send-proxy-v2\n"
        f"listen back\n  bind 127.0.0.1:{back} accept-proxy\n"
        "  tcp-request inspect-delay 5s\n"
        "  tcp-request content accept if { fc_pp_authority -m str api.b.example }\n"
        "  tcp-request content reject\n"
        f"  server tenant {bed.tenants['b'].address}\n"
    )
    bed.write(
        f"- name: b\n  hosts: ['*.b.example']\n  backends: ['127.0.0.1:{back}']\n"
        "  proxyProtocol: {}\n"
    )
    bed.start(accept_proxy=True, proxy_from=("127.0.0.0/8",))
    with haproxy(tmp_path, config.replace("{router}", str(bed.port)), front, back):
        assert bed.greeting("b", port=front) == "b api.b.example -"
        with pytest.raises(OSError):
            bed.greeting("b", "x.b.example", port=front)
