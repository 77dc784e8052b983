"""Attacks on what may be reached and read: spellings, metadata, smuggling, web pages, odd files."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from clients import LIMIT_S, Client, Target, ask, connect_uds, echo_target, head_for, status_of
from grpc_clients import GrpcCall
from node_clients import node, refused
from own_network import needs_root
from programs import COMMAND, ENVIRONMENT, Program, Programs
from proxies_bed import ProxiesBed, connect, greet
from proxies_bed import ask as ask_socks5
from stack import Stack, http_get, wait_until

from isthmus.dial.dialers.direct import PermittedOnly
from isthmus.errors import DialFailure
from isthmus.programs.server.dials import Records
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.tools.pki.making import PkiFiles
from isthmus.wire.kep1281_pb2 import ConnectOptions
from isthmus.wire.payload import CONNECT_OPTIONS

#: 127.0.0.1 and ::1 are denied; 127.0.0.2 is not, and is where honest clients go.
POLICY = """\
apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
default: allow
rules:
  - name: no-loopback
    effect: deny
    match: {cidrs: [127.0.0.1/32, "::1/128"]}
"""
#: Each is 127.0.0.1 or ::1 for the kernel, a translator or a tunnel.
SPELLINGS = [
    "127.0.0.1",
    "0.0.0.0",
    "::",
    "::1",
    "::ffff:0.0.0.0",
    "::ffff:127.0.0.1",
    "::ffff:0:0",
    "64:ff9b::7f00:1",
    "64:ff9b::",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::1",
    "::127.0.0.1",
]
#: What only some resolvers take for an address.
ODD = ["127.1", "0x7f.1", "0177.0.0.1", "2130706433", "0", "127.0.0.1.", "::1%lo", "[::1]"]


#: Where clouds keep the credentials of their machines, and other spellings of that.
METADATA = [
    "169.254.169.254",
    "fe80::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:c1::a9fe:a9fe",
    "168.63.129.16",
    "::ffff:100.100.100.200",
    "64:ff9b::a9fe:a9fe",
]


class Frontends:
    """A server with a policy, an agent and a SOCKS5 sidecar, as processes."""

    def __init__(self, programs: Programs, directory: Path) -> None:
        policy = directory / "policy.yaml"
        policy.write_text(POLICY)
        self.connect_uds = f"{programs.uds}.connect"
        self.grpc_uds = programs.uds
        self.server = programs.server(
            "--mode=grpc,http-connect", f"--http-connect-uds-name={self.connect_uds}",
            f"--policy-file={policy}",
        )  # fmt: skip
        self.agent = programs.agent(self.server)
        programs.wait_ready(self.server)
        self.sidecar: Program = programs.start(
            "socks5-proxy", "run", f"--konnectivity-uds={self.connect_uds}", "--disable-resolver",
            "--serving-port=0", "--health-bind-address=127.0.0.1", "--health-port=0",
            "--admin-port=0",
        )  # fmt: skip
        self.sidecar.wait_log("serving ")

    def connect(self, host: str, port: int) -> str:
        """What a CONNECT is answered; empty where it is a tunnel."""
        with connect_uds(self.connect_uds) as client:
            client.send(head_for(authority(host, port)))
            head = client.read_head()
            return "" if status_of(head) == 200 else head.decode() + client.read_to_end().decode()

    def packet(self, host: str, port: int) -> str:
        """What konnectivity's DIAL_REQ is answered."""
        with connect_uds(self.grpc_uds) as client:
            return GrpcCall(client).dial(authority(host, port))

    def payload(self, host: str, port: int) -> str:
        """What a call of KEP-1281's protocol is answered."""
        options = ConnectOptions(remote_addr=authority(host, port)).SerializeToString()
        with connect_uds(self.grpc_uds) as client:
            call = GrpcCall(client, metadata=((CONNECT_OPTIONS, b64encode(options)),))
            call.wait_response()
            return call.trailers.get("grpc-message", "")

    def socks5(self, host: str, port: int) -> str:
        """What a SOCKS5 client is answered."""
        at = ("127.0.0.1", self.sidecar.port("port"))
        with Client(socket.create_connection(at, LIMIT_S)) as client:
            greet(client)
            reply = ask_socks5(client, host, port)
            return "" if reply.code == 0 else "denied" if reply.code == 2 else str(reply)


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@pytest.fixture(scope="module")
def frontends(
    certificates: PkiFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Frontends]:
    directory = tmp_path_factory.mktemp("frontends")
    with Programs(certificates, directory) as programs:
        yield Frontends(programs, directory)


@pytest.fixture
def stack(certificates: PkiFiles) -> Iterator[Stack]:
    """A server and an agent, linked."""
    with Stack(certificates) as made:
        made.add_server()
        made.add_agent()
        yield made
        made.wait_idle()


@pytest.mark.parametrize("kind", ["connect", "packet", "payload", "socks5"])
def test_no_spelling_gets_past_a_rule(frontends: Frontends, kind: str) -> None:
    """A client spells a denied address as the kernel, a translator or a tunnel would read it."""
    said: Callable[[str, int], str] = getattr(frontends, kind)
    with Target("127.0.0.1") as denied, Target("127.0.0.2") as honest:
        answers = {host: said(host, denied.port) for host in SPELLINGS}
        assert not [host for host, answer in answers.items() if "denied" not in answer], answers
        odd = {host: said(host, denied.port) for host in ODD}
        assert all(odd.values()), odd
        # Nobody came, and others are served.
        assert not denied.came()
        assert said("127.0.0.2", honest.port) == ""
        assert said("::ffff:127.0.0.2", honest.port) == ""


@pytest.mark.parametrize("kind", ["connect", "packet", "payload", "socks5"])
def test_no_frontend_leads_to_a_metadata_address(frontends: Frontends, kind: str) -> None:
    """A client asks for the credentials of the machine that an agent runs on."""
    said: Callable[[str, int], str] = getattr(frontends, kind)
    answers = {host: said(host, 80) for host in METADATA}
    assert not [host for host, answer in answers.items() if "denied" not in answer], answers
    with Target("127.0.0.2") as honest:
        assert said("127.0.0.2", honest.port) == ""


@pytest.mark.parametrize("chained", [False, True], ids=["alone", "by another proxy"])
def test_no_sidecar_leads_to_a_metadata_address(
    stack: Stack, tmp_path: Path, chained: bool
) -> None:
    """A client of https-proxy asks for them, of the machine of a control plane or of a proxy."""
    with ProxiesBed(stack, tmp_path) as bed, Target() as other:
        by = {key: f"http://{other.name}" for key in ("http_proxy", "https_proxy") if chained}
        proxy = bed.https(connect_directly_to_cloud_apis=True, **by)
        for host in METADATA:
            with connect(proxy) as client:
                answer = ask(client, head_for(authority(host, 80)))
                assert (answer.status, host) == (403, host)
            with connect(proxy) as client:
                url = f"http://{authority(host, 80)}/latest/meta-data/"
                client.send(f"GET {url} HTTP/1.1\r\nHost: {authority(host, 80)}\r\n\r\n".encode())
                assert status_of(client.read_head()) == 403
        assert not other.came()
        if chained:
            return
        with echo_target() as honest, connect(proxy) as client:
            client.send(head_for(honest.name))
            assert status_of(client.read_head()) == 200


@pytest.mark.parametrize("listed", ["0.0.0.0/0:80", "[::/0]:80", "metadata.example:80"])
def test_no_node_reaches_the_metadata_of_a_control_plane(fresh: Stack, listed: str) -> None:
    """An agent asks a server for them, whose list is wide, or has a name that leads there."""
    on = (f"{CLUSTER_TO_MASTER}=true",)
    with Target() as honest:
        named = f"127.0.0.1:{honest.port}"
        fresh.add_server(feature_gates=on, allowed_destination=(listed, named))
        fresh.add_agent(feature_gates=on)
        dials = fresh.server.node_dials
        names = {"metadata.example": METADATA[:8]}
        dials.dialer.resolver = PermittedOnly(fresh.loop, dials.destinations, names)
        for host in (*METADATA, "metadata.example"):
            assert (refused(fresh, host, 80)[0], host) == (DialFailure.DENIED, host)
        with node(fresh, "127.0.0.1", honest.port) as client, honest.accept() as far:
            client.send(b"hello")
            assert far.read_exactly(5) == b"hello"
        fresh.wait_idle()


#: Heads of one request whose end two readers would see at two places.
SMUGGLING = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "transfer-encoding: CHUNKED\r\ncontent-length: 0\r\n",
    "Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
    "Content-Length: 5\r\nContent-Length: 6\r\n",
    "Content-Length: 5, 6\r\n",
    "Content-Length: +5\r\n",
    "Content-Length: 0x5\r\n",
    "Content-Length: -5\r\n",
    "Content-Length : 5\r\n",
    "Transfer-Encoding : chunked\r\n",
]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_no_second_request_is_smuggled(stack: Stack, tmp_path: Path, version: str) -> None:
    """A client of https-proxy hides a request in the body of another."""
    hidden = "0\r\n\r\nGET /admin HTTP/1.1\r\nHost: hidden\r\n\r\n"
    heads = [*SMUGGLING, *["Transfer-Encoding: chunked\r\n"] * (version == "1.0")]
    with ProxiesBed(stack, tmp_path) as bed, Target() as victim, echo_target() as honest:
        proxy = bed.https()
        for head in heads:
            with connect(proxy) as client:
                url = f"http://{victim.name}/"
                client.send(f"POST {url} HTTP/{version}\r\nHost: x\r\n{head}\r\n{hidden}".encode())
                assert (status_of(client.read_head()) in (400, 501), head) == (True, head)
                client.read_to_end()  # and no second answer: it is closed
        assert not victim.came()
        with connect(proxy) as client:
            client.send(head_for(honest.name))
            assert status_of(client.read_head()) == 200


def test_an_answer_with_two_ends_is_not_passed_on(stack: Stack, tmp_path: Path) -> None:
    """A destination behind https-proxy answers so that a cache would see another answer."""
    with ProxiesBed(stack, tmp_path) as bed, Target() as far, echo_target() as honest:
        proxy = bed.https()
        with connect(proxy) as client:
            client.send(f"GET http://{far.name}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            with far.accept() as peer:
                peer.read_head()
                peer.send(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
                    b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
                )
                assert status_of(client.read_head()) == 502
                client.read_to_end()
        with connect(proxy) as client:
            client.send(head_for(honest.name))
            assert status_of(client.read_head()) == 200


#: What a browser says of a page of another site, and one case more of DNS rebinding.
ELSEWHERE: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "anything"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "0.0.0.0"},
]
PRIVATE = [
    "/debug/pprof/profile?seconds=1",
    "/debug/pprof/heap",
    "/debug/pprof/goroutine",
    "/debug/pprof/cmdline",
    "/debug/pprof/",
    "/snapshot",
    "/history",
    "/audit",
    "/logs",
    "/configz",
    "/metrics",
    "/ui/events",
]


def test_no_page_of_another_site_has_a_profile_taken(programs: Programs) -> None:
    """A page on the web makes an operator's browser ask the admin port."""
    server = programs.server("--enable-profiling")
    port = server.port("admin_port")

    def ask_admin(path: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        try:
            client.putrequest("GET", path, skip_host="Host" in headers)
            for name, value in headers.items():
                client.putheader(name, value)
            client.endheaders()
            answer = client.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}
        finally:
            client.close()

    for path in PRIVATE:
        for headers in ELSEWHERE:
            status, said = ask_admin(path, headers)
            assert (status, path, headers) == (403, path, headers)
            assert "access-control-allow-origin" not in said
    own = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{port}"}
    for path in PRIVATE[1:-1]:
        assert (ask_admin(path, own)[0], path) == (200, path)
        assert (ask_admin(path, {})[0], path) == (200, path)
    # A link to the page itself may be anywhere, and probes are nobody's secret.
    for path in ("/ui/", "/healthz"):
        assert ask_admin(path, ELSEWHERE[1])[0] == 200


#: Agents prove who they are by a token, which the Kubernetes API is asked about.
BY_TOKEN = [
    "--cluster-ca-cert=",
    "--authentication-audience=x",
    "--agent-namespace=n",
    "--agent-service-account=a",
]


def become(path: Path, kind: str) -> None:
    """Put something that is no file where a file was, at once."""
    other = path.with_suffix(".new")
    match kind:
        case "pipe":
            os.mkfifo(other)
        case "device":
            other.symlink_to("/dev/zero")
        case _:
            other.mkdir()
            path.unlink()
    os.rename(other, path)


def complained(program: Program, path: Path, said: str) -> bool:
    """Whether its log says this of a file, and says it once."""
    found = [line for line in program.log.splitlines() if f"{path}: " in line and said in line]
    return len(found) == 1


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S * 3
    )


@pytest.mark.parametrize(
    ("program", "flag"),
    [
        ("server", "--cluster-cert"),
        ("server", "--cluster-key"),
        ("server", "--cluster-ca-cert"),
        ("server", "--server-crl-file"),
        ("server", "--policy-file"),
        ("server", "--agent-identity-binding"),
        ("server", "--kubeconfig"),
        ("agent", "--ca-cert"),
        ("agent", "--agent-key"),
    ],
)
def test_a_pipe_at_the_start_is_one_sentence(
    programs: Programs, tmp_path: Path, program: str, flag: str
) -> None:
    """Somebody puts a pipe where a program looks for a file: it would wait for its writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    flags = programs.server_flags() if program == "server" else programs.agent_flags(1)
    flags += BY_TOKEN if flag == "--kubeconfig" else []
    done = start(program, *flags, f"{flag}={pipe}")
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert flag in lines[-1] and "is a pipe, not a file" in lines[-1], done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    # Each kind as one file: tests/unit/net/test_plain_file.py.
    "kind",
    ["pipe", *(pytest.param(it, marks=pytest.mark.nightly) for it in ("device", "directory"))],
)
def test_a_file_that_becomes_something_else_stalls_nobody(
    programs: Programs, tmp_path: Path, kind: str
) -> None:
    """Somebody replaces the files of a running server and agent by what never ends."""
    policy, token = tmp_path / "policy.yaml", tmp_path / "token"
    policy.write_text(POLICY)
    token.write_text("a-token-of-some-length")
    files = {name: tmp_path / name for name in ("server_cert", "server_key", "agent_cert")}
    for name, path in files.items():
        shutil.copy(getattr(programs.files, name), path)
    server = programs.server(
        f"--policy-file={policy}", f"--cluster-cert={files['server_cert']}",
        f"--cluster-key={files['server_key']}", f"--admin-token-file={token}",
    )  # fmt: skip
    agent = programs.agent(server, f"--agent-cert={files['agent_cert']}")
    programs.wait_ready(server)
    for path in (policy, token, *files.values()):
        become(path, kind)
    said = "s a directory" if kind == "directory" else f"is a {kind}, not a file"
    watched = [(server, policy), (server, files["server_cert"]), (agent, files["agent_cert"])]
    for program, path in watched:
        wait_until(partial(complained, program, path, said), f"a complaint about {path.name}")
    assert http_get(server.port("admin_port"), "/snapshot")[0] == 401  # the token still counts
    assert http_get(server.port("health_port"), "/readyz")[0] == 200
    # The rules and certificates from before hold.
    with Target("127.0.0.1") as denied, Target("127.0.0.2") as honest:
        with programs.connect_uds() as client:
            assert ask(client, head_for(denied.name)).status == 403
        with programs.connect_uds() as client:
            client.send(head_for(honest.name))
            assert status_of(client.read_head()) == 200
    programs.agent(server)
    assert all(complained(program, path, said) for program, path in watched)
    # What is right again is taken.
    if kind == "directory":
        policy.rmdir()
    else:
        policy.unlink()
    policy.write_text(POLICY.replace("127.0.0.1/32", "127.0.0.2/32"))
    server.wait_log(f"reloaded {policy}")


def test_a_kubeconfig_without_end(programs: Programs, tmp_path: Path) -> None:
    """Somebody gives a kubeconfig of a terabyte, which is a hole: it would be read into memory."""
    path = tmp_path / "kubeconfig"
    path.touch()
    os.truncate(path, 1 << 40)
    done = start("server", *programs.server_flags(), *BY_TOKEN, f"--kubeconfig={path}")
    assert done.returncode == 2
    assert "is larger than 4194304 bytes" in done.stderr.strip().splitlines()[-1]


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte of it."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


@needs_root
@pytest.mark.parametrize(
    ("mode", "workers"),
    [
        ("deny", 2),
        ("continue", 1),
        pytest.param("deny", 1, marks=pytest.mark.nightly),
        pytest.param("continue", 2, marks=pytest.mark.nightly),
    ],
)
def test_a_full_disk_hides_nothing(
    programs: Programs, tmp_path: Path, mode: str, workers: int
) -> None:
    """Somebody fills the disk of the audit log, so that what they do next is not written down."""
    with small_disk(tmp_path / "disk") as disk, Target("127.0.0.1") as target:
        server = programs.start(
            "server", *programs.server_flags(), f"--audit-log-path={disk / 'audit.log'}",
            f"--audit-on-failure={mode}", f"--workers={workers}",
        )  # fmt: skip
        wait_until(lambda: "serving " in server.log, "workers are started", limit_s=3 * LIMIT_S)
        programs.agent(server)
        programs.wait_ready(server)

        def dialed() -> str:
            with programs.connect_uds() as client:
                client.send(head_for(target.name))
                head = client.read_head()
                return "" if status_of(head) == 200 else client.read_to_end().decode()

        def failing() -> bool:
            text = http_get(server.port("health_port"), "/metrics")[1]
            found = [
                it for it in text.splitlines() if it.startswith("isthmus_server_audit_failing")
            ]
            return any(float(it.rsplit(" ", 1)[1]) > 0 for it in found)

        wait_until(lambda: dialed() == "", "an honest dial")
        assert not failing()
        filler = fill(disk)
        refusal = "the audit log cannot be written, and --audit-on-failure is deny"
        # The first record after that is the one that shows it.
        wait_until(lambda: bool(dialed()) or failing(), "the server notices")
        wait_until(failing, "the metric says so")
        if mode == "deny":
            wait_until(lambda: refusal in dialed(), "dials are refused")
            count = http_get(server.port("health_port"), "/metrics")[1]
            assert 'isthmus_server_policy_denials_total{rule="(audit)"}' in count
        else:
            assert dialed() == ""
        assert http_get(server.port("health_port"), "/readyz")[0] == 200
        filler.unlink()
        wait_until(lambda: not failing(), "records are written again")
        wait_until(lambda: dialed() == "", "dials go on")
        server.wait_log("audit log writable again")


def test_a_node_is_refused_while_nothing_is_written_down(fresh: Stack) -> None:
    """The same by a node, which asks a server for a connection that would leave no trace."""
    on = (f"{CLUSTER_TO_MASTER}=true",)
    with Target() as honest:
        fresh.add_server(
            feature_gates=on, allowed_destination=(honest.name,), audit_on_failure="deny",
            audit_log_path=str(fresh.dir / "audit.log"),
        )  # fmt: skip
        fresh.add_agent(feature_gates=on)
        fresh.do(lambda: fresh.server.part(Records)._told(True))
        failure, why = refused(fresh, "127.0.0.1", honest.port)
        assert failure is DialFailure.DENIED and "the audit log cannot be written" in why
        fresh.do(lambda: fresh.server.part(Records)._told(False))
        with node(fresh, "127.0.0.1", honest.port) as client, honest.accept() as far:
            client.send(b"hello")
            assert far.read_exactly(5) == b"hello"
        fresh.wait_idle()
