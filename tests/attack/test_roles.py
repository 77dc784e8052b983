"""Certificates used for what they were not made for: every role at every port of a real server."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import hpack
import pytest
from authorities import Authority, Pair
from clients import LIMIT_S, TlsClient, ask, head_for
from cryptography import x509
from grpc_clients import GrpcCall
from stack import Stack

from isthmus.tools.pki import making as pki
from isthmus.wire.alpn import RELAY_ALPN
from isthmus.wire.http2 import (
    END_HEADERS,
    HEADERS,
    PREFACE,
    SETTINGS_ACK,
    encode_headers,
    frame,
    settings,
)
from isthmus.wire.link import take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Hello

RELAY = "relay.isthmus.internal"
REFUSED = (ssl.SSLError, OSError, EOFError, AssertionError, http.client.HTTPException)
PORTS = ("agent", "agent by gRPC", "relay", "frontend", "frontend by gRPC", "admin")


NOBODY = Pair()


def context_for(stack: Stack, shown: Pair, *alpn: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(stack.files.ca_cert))
    if shown.cert:
        context.load_cert_chain(shown.cert, shown.key)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def connect(port: int | None, context: ssl.SSLContext) -> TlsClient:
    assert port
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    try:
        return TlsClient(sock, context, "localhost")
    except BaseException:
        sock.close()
        raise


def comes_as_agent(stack: Stack, shown: Pair, *, relay: bool = False) -> bool:
    """Say hello as an agent, or as a server that relays; frames by yamux's specification."""
    alpn = RELAY_ALPN if relay else "isthmus/1"
    with connect(stack.server.agent_port, context_for(stack, shown, alpn)) as peer:
        data = to_bytes(Control(hello=Hello(agent_id="pretender", relay=relay)))
        peer.send(struct.pack("!BBHII", 0, 1, 1, 1, 0))
        peer.send(struct.pack("!BBHII", 0, 0, 0, 1, len(data)) + data)
        buffer = bytearray()
        while True:
            kind, _, _, size = struct.unpack("!xBHII", peer.read_exactly(12))
            buffer += peer.read_exactly(size) if kind == 0 else b""
            message = take_message(buffer, Control)
            if message is not None:
                return bool(message.HasField("welcome"))


class AgentCall(GrpcCall):
    """The call by which konnectivity's agents come."""

    def __init__(self, client: TlsClient) -> None:
        self.client = client
        self.response: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.was_reset = False
        self._decoder = hpack.Decoder()
        self._messages = bytearray()
        call = encode_headers(
            (
                (b":method", b"POST"),
                (b":scheme", b"https"),
                (b":path", b"/AgentService/Connect"),
                (b":authority", b"localhost"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
                (b"agentid", b"pretender"),
            )
        )
        client.send(PREFACE + settings() + SETTINGS_ACK + frame(HEADERS, END_HEADERS, 1, call))

    @property
    def welcome(self) -> bool:
        """Wait for the answer."""
        while not self.response and not self.trailers and not self.was_reset:
            self._frame()
        return "serverid" in self.response


def comes_as_grpc_agent(stack: Stack, shown: Pair) -> bool:
    with connect(stack.server.agent_port, context_for(stack, shown, "h2")) as peer:
        return AgentCall(peer).welcome


def asks_frontend(stack: Stack, shown: Pair) -> bool:
    """Ask for a target: 403 is no, whatever else came of it is yes."""
    port = stack.server.doors.ports["http-connect"]
    with connect(port, context_for(stack, shown)) as client:
        return ask(client, head_for("127.0.0.1:1")).status != 403


def asks_grpc_frontend(stack: Stack, shown: Pair) -> bool:
    port = stack.server.doors.ports["grpc"]
    with connect(port, context_for(stack, shown, "h2")) as client:
        error = GrpcCall(client).dial("127.0.0.1:1")
        assert error
        return "denied" not in error


def asks_admin(stack: Stack, shown: Pair) -> bool:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", stack.server.admin_port, timeout=LIMIT_S, context=context_for(stack, shown)
    )
    try:
        connection.request("GET", "/snapshot", headers={"Host": "localhost"})
        return connection.getresponse().status == 200
    finally:
        connection.close()


def gets_in(stack: Stack, port: str, shown: Pair) -> bool:
    ways = {
        "agent": comes_as_agent,
        "agent by gRPC": comes_as_grpc_agent,
        "relay": lambda stack, shown: comes_as_agent(stack, shown, relay=True),
        "frontend": asks_frontend,
        "frontend by gRPC": asks_grpc_frontend,
        "admin": asks_admin,
    }
    try:
        return ways[port](stack, shown)
    except REFUSED:
        return False


# Who may do what: as agent, as agent by gRPC, as relay, as client of either frontend, as operator.
AS_AGENT = {"agent", "agent by gRPC"}
AS_CLIENT = {"frontend", "frontend by gRPC"}


def start(stack: Stack, **settings: Any) -> None:
    files = stack.files
    stack.add_server(
        **{
            "mode": ("grpc", "http-connect"),
            "http_connect_port": 0,
            "peer_relay_name": (RELAY,),
            "admin_cert": str(files.server_cert),
            "admin_key": str(files.server_key),
            **settings,
        }
    )


def table(stack: Stack, roles: dict[str, Pair]) -> dict[str, set[str]]:
    """At which ports each role gets in."""
    return {
        role: {port for port in PORTS if gets_in(stack, port, shown)}
        for role, shown in roles.items()
    }


def of(files: pki.PkiFiles, kind: str) -> Pair:
    return Pair(str(getattr(files, f"{kind}_cert")), str(getattr(files, f"{kind}_key")))


def strangers(directory: Path) -> dict[str, Pair]:
    other = pki.init(directory, other_names=pki.OtherNames(relay=(RELAY,)))
    kinds = ("agent", "client", "relay", "server")
    return {"nobody": NOBODY, **{f"another {kind}": of(other, kind) for kind in kinds}}


def test_with_an_authority_for_each_every_certificate_opens_its_own_port_only(
    tmp_path: Path,
) -> None:
    """Agents, clients, servers, operators and strangers at each port of a server by isthmus pki."""
    files = pki.init(tmp_path / "pki", other_names=pki.OtherNames(relay=(RELAY,)))
    operators = pki.init(tmp_path / "operators")
    roles = {kind: of(files, kind) for kind in ("agent", "client", "server", "relay")}
    roles["operator"] = of(operators, "client")
    with Stack(files) as stack:
        start(stack, admin_client_ca=str(operators.client_ca_cert))
        assert table(stack, roles | strangers(tmp_path / "other")) == {
            "agent": AS_AGENT,
            "client": AS_CLIENT,
            "server": set(),
            "relay": {"relay"},
            "operator": {"admin"},
            "nobody": set(),
            "another agent": set(),
            "another client": set(),
            "another relay": set(),
            "another server": set(),
        }


def test_with_one_authority_the_marks_of_pki_tell_them_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An old directory of isthmus pki, its certificates renewed: one CA at every flag."""
    files = pki.init(tmp_path / "pki", one_ca=True, other_names=pki.OtherNames(relay=(RELAY,)))
    assert files.has_one_ca
    roles = {kind: of(files, kind) for kind in ("agent", "client", "server", "relay")}
    with Stack(files) as stack:
        start(stack, admin_client_ca=str(files.ca_cert))
        assert table(stack, roles | strangers(tmp_path / "other")) == {
            "agent": AS_AGENT,
            "client": AS_CLIENT | {"admin"},
            "server": set(),
            "relay": {"relay"},
            "nobody": set(),
            "another agent": set(),
            "another client": set(),
            "another relay": set(),
            "another server": set(),
        }
    assert caplog.text.count("trust the same authority") == 2  # what else it signed may be unmarked


def test_with_one_authority_of_somebody_else_names_tell_them_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One CA, no marks, every usage allowed: the names of --agent-names and the like decide."""
    files = pki.init(tmp_path / "pki", one_ca=True)
    authority = Authority(files, tmp_path / "theirs")
    roles = {
        "agent": authority.issue("edge-7"),
        "client": authority.issue("kube-apiserver"),
        "client by URI": authority.issue(
            "", x509.UniformResourceIdentifier("spiffe://a/apiserver")
        ),
        "relay": authority.issue("proxy", x509.DNSName(RELAY)),
        "operator": authority.issue("ops"),
        "anybody": authority.issue("edge"),
    }
    roles["nameless"] = authority.issue("", x509.DNSName("somebody.example"))
    with Stack(files) as stack:
        start(
            stack,
            admin_client_ca=str(files.ca_cert),
            agent_names=("edge-*",),
            client_names=("kube-apiserver", "spiffe://a/*"),
            admin_client_names=("ops",),
        )
        assert table(stack, roles | {"nobody": NOBODY}) == {
            "agent": AS_AGENT,
            "client": AS_CLIENT,
            "client by URI": AS_CLIENT,
            "relay": {"relay"},
            "operator": {"admin"},
            "anybody": set(),
            "nameless": set(),
            "nobody": set(),
        }
    assert "trust the same authority" not in caplog.text


def test_with_one_authority_and_no_names_it_goes_on_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As installations from before are: nothing tells agents from clients, and the log says so."""
    caplog.set_level(logging.WARNING, "isthmus.server")
    files = pki.init(tmp_path / "pki", one_ca=True)
    theirs = Authority(files, tmp_path / "theirs").issue("node-7")
    operators = pki.init(tmp_path / "operators")
    with Stack(files) as stack:
        start(stack, admin_client_ca=str(operators.client_ca_cert))
        assert table(stack, {"node": theirs}) == {"node": AS_AGENT | AS_CLIENT}
    said = [it.getMessage() for it in caplog.records if "same authority" in it.getMessage()]
    assert len(said) == 1
    assert "an agent's certificate opens the frontend" in said[0]
    assert "a client's certificate can register as an agent" in said[0]


def test_whoever_is_refused_is_told_and_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent's certificate at the frontend of one authority: 403, and why."""
    files = pki.init(tmp_path / "pki", one_ca=True)
    with Stack(files) as stack:
        start(stack, audit_log_path=str(tmp_path / "audit"))
        port = stack.server.doors.ports["http-connect"]
        with connect(port, context_for(stack, of(files, "agent"))) as client:
            answer = ask(client, head_for("127.0.0.1:1"))
        assert answer.status == 403
        assert "has a certificate for an agent, not for a client" in answer.body
        assert not comes_as_agent(stack, of(files, "client"))
    assert "certificate:isthmus-agent" in (tmp_path / "audit").read_text()
    assert "has a certificate for a client, not for an agent" in str(
        [record.__dict__ for record in caplog.records]
    )
