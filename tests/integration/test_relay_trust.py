"""Who may relay: a name in a certificate, the right protocol and the right mark, or nobody."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import Target, TlsClient, ask, connect_uds, echo_target, head_for
from relay_bed import NAME, TAKEN, Relays, peer_files
from stack import Server, Stack, wait_until

from isthmus.errors import ConfigError
from isthmus.links.agent_side import MuxPeerTalk
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import revoke
from isthmus.wire.alpn import RELAY_ALPN
from isthmus.wire.link import to_bytes
from isthmus.wire.link_pb2 import Control, Dial, Hello

REFUSED = 'isthmus_server_link_failures_total{reason="refused"}'
PROTOCOL = 'isthmus_server_link_failures_total{reason="protocol"}'
LINKS = 'isthmus_server_relay_links{direction="%s"}'


@pytest.fixture
def relays(fresh: Stack, certificates: pki.PkiFiles, tmp_path: Path) -> Iterator[Relays]:
    yield Relays(fresh, peer_files(certificates, tmp_path / "peer"))


def cannot(relays: Relays, server: Server) -> None:
    """Its clients hear that there is no agent."""
    with connect_uds(server.settings.uds_name) as client:
        assert ask(client, head_for("127.0.0.1:1")).status == 503


def works(relays: Relays, server: Server) -> None:
    with echo_target() as target, relays.tunnel(server, target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"
    relays.end_all()


def test_an_agent_s_certificate_does_not_do(
    relays: Relays, certificates: pki.PkiFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "isthmus.audit")
    b = relays.helper("b")
    relays.agent(b, "agent-b")
    fresh = relays.asker(
        b, peer_cert=str(certificates.agent_cert), peer_key=str(certificates.agent_key)
    )
    wait_until(lambda: relays.counted(fresh, REFUSED) > 0, "it is refused")
    assert relays.counted(b, LINKS % "taken") == relays.counted(fresh, LINKS % "sent") == 0
    cannot(relays, fresh)
    assert any("allowed to relay" in str(record.__dict__) for record in caplog.records)


def test_a_server_relays_for_nobody_by_default(relays: Relays) -> None:
    b = relays.helper("b", peer_relay_name=())
    relays.agent(b, "agent-b")
    fresh = relays.asker(b)
    tls = 'isthmus_server_link_failures_total{reason="tls"}'
    wait_until(lambda: relays.counted(fresh, tls) > 0, "nothing is negotiated")
    assert {it.agent_id for it in relays.stack.do(lambda: list(b.agents))} == {"agent-b"}
    cannot(relays, fresh)


def test_a_certificate_of_another_authority(relays: Relays, tmp_path: Path) -> None:
    other = peer_files(pki.init(tmp_path / "other"), tmp_path / "other-peer")
    b = relays.helper("b")
    fresh = relays.asker(b, peer_cert=str(other.client_cert), peer_key=str(other.client_key))
    bad = 'isthmus_server_tls_refused_total{port="agent",reason="bad_certificate"}'
    wait_until(lambda: relays.counted(b, bad) > 0, "it is refused")
    cannot(relays, fresh)


def test_a_server_of_another_name_is_not_believed(relays: Relays) -> None:
    b = relays.helper("b")
    relays.agent(b, "agent-b")
    fresh = relays.asker(b, peer_server_name="elsewhere.example")
    tls = 'isthmus_server_link_failures_total{reason="tls"}'
    wait_until(lambda: relays.counted(fresh, tls) > 0, "its name is looked at")
    cannot(relays, fresh)


def test_a_certificate_that_is_replaced_is_picked_up(
    relays: Relays, certificates: pki.PkiFiles, tmp_path: Path
) -> None:
    cert, key = tmp_path / "now.crt", tmp_path / "now.key"
    shutil.copy(certificates.agent_cert, cert)
    shutil.copy(certificates.agent_key, key)
    b = relays.helper("b")
    relays.agent(b, "agent-b")
    fresh = relays.asker(b, peer_cert=str(cert), peer_key=str(key))
    wait_until(lambda: relays.counted(fresh, REFUSED) > 0, "it is refused")
    shutil.copy(relays.peer.client_key, key)
    shutil.copy(relays.peer.client_cert, cert)
    relays.wait_relay(fresh)
    works(relays, fresh)


def test_a_server_whose_certificate_is_revoked_is_asked_no_more(
    relays: Relays, caplog: pytest.LogCaptureFixture
) -> None:
    peer = relays.peer
    crl = revoke([], directory=peer.directory).path
    b = relays.helper("b", cluster_cert=str(peer.server_cert), cluster_key=str(peer.server_key))
    relays.agent(b, "agent-b")
    fresh = relays.asker(b, cluster_crl_file=str(crl))
    relays.wait_relay(fresh)
    with Target() as target, relays.tunnel(fresh, target.name) as client, target.accept() as far:
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
        revoke([peer.server_cert], directory=peer.directory)
        with pytest.raises(ConnectionError):
            far.read_exactly(1)
    relays.end_all()
    assert any("server cut" in it.getMessage() for it in caplog.records)
    tls = 'isthmus_server_link_failures_total{reason="tls"}'
    wait_until(lambda: relays.counted(fresh, tls) > 1, "it is refused in its handshake")
    cannot(relays, fresh)


# Whoever has the certificate, but not the manners.


def peer(relays: Relays, server: Server, alpn: str = RELAY_ALPN) -> TlsClient:
    context = ssl.create_default_context(cafile=str(relays.peer.ca_cert))
    context.load_cert_chain(relays.peer.client_cert, relays.peer.client_key)
    context.set_alpn_protocols([alpn])
    sock = socket.create_connection(("127.0.0.1", server.agent_port), 20)
    try:
        return TlsClient(sock, context, "localhost")
    except BaseException:
        sock.close()
        raise


def stream(number: int, data: bytes) -> bytes:
    """A new yamux stream with data, by its specification's table."""
    opening = b"\0\1\0\1" + number.to_bytes(4, "big") + bytes(4)
    return opening + b"\0\0\0\0" + number.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(("alpn", "relay"), [(RELAY_ALPN, False), ("isthmus/1", True)])
def test_hello_and_alpn_have_to_agree(relays: Relays, alpn: str, relay: bool) -> None:
    b = relays.helper("b")
    before = relays.counted(b, PROTOCOL)
    with peer(relays, b, alpn) as other:
        other.send(stream(1, to_bytes(Control(hello=Hello(agent_id="odd", relay=relay)))))
        wait_until(lambda: relays.counted(b, PROTOCOL) == before + 1, "it is refused")
    assert not len(relays.stack.do(lambda: list(b.agents)))


def test_a_dial_that_is_not_marked_is_refused(relays: Relays) -> None:
    b = relays.helper("b")
    relays.agent(b, "agent-b")
    with peer(relays, b) as other, echo_target() as target:
        other.send(stream(1, to_bytes(Control(hello=Hello(agent_id="odd", relay=True)))))
        wait_until(lambda: relays.counted(b, LINKS % "taken") == 1, "it is let in")
        dial = Dial(host="127.0.0.1", port=target.port)
        other.send(stream(3, to_bytes(dial)))
        wait_until(lambda: relays.counted(b, TAKEN % "refused") == 1, "it is refused")
        other.send(stream(5, to_bytes(Dial(host="no host", port=1, relayed=True))))
        wait_until(lambda: relays.counted(b, TAKEN % "refused") == 2, "so is nonsense")
        dial.relayed = True
        other.send(stream(7, to_bytes(dial)))
        wait_until(lambda: relays.counted(b, TAKEN % "joined") == 1, "a proper one is dialed")


def test_a_server_opens_nothing_towards_one_that_asks(relays: Relays) -> None:
    """Nor is the one that asks ever chosen as if it were an agent."""
    b = relays.helper("b")
    fresh = relays.asker(b)
    assert fresh.relays is not None
    links = fresh.relays.links
    relays.stack.wait(lambda: len(links) == 1 and len(b.agent_door.relays) == 1, "linked")
    cannot(relays, b)
    talk = relays.stack.do(lambda: next(iter(links)).talk)
    assert isinstance(talk, MuxPeerTalk)

    def push() -> None:
        (link,) = b.agent_door.relays
        assert link.talk is not None
        session = link.talk.session
        assert session.open() is not None  # type: ignore[attr-defined]

    relays.stack.do(push)
    relays.stack.wait(lambda: all(it.load == 0 for it in b.links), "it is reset")
    assert relays.stack.do(lambda: len(links)) == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"peer_relay": True}, "--peer-relay needs to know other servers"),
        ({"peer_cert": "x"}, "--peer-cert needs --peer-key"),
        ({"peer_relay_name": ("",)}, "--peer-relay-name"),
        ({"peer_relay_name": (NAME,), "link": "grpc"}, "--link=grpc cannot relay"),
        (
            {"peer_relay_name": (NAME,), "cluster_ca_cert": "", "insecure_agents": True},
            "--peer-relay-name needs --cluster-ca-cert",
        ),
    ],
)
def test_flags_that_make_no_sense(relays: Relays, wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        relays.stack.add_server(**wrong)


def test_a_certificate_that_is_not_for_clients_is_said_at_the_start(relays: Relays) -> None:
    b = relays.helper("b")
    with pytest.raises(
        ConfigError, match=r"--cluster-cert, the client certificate for other servers, .*"
    ):
        relays.asker(b, peer_cert="", peer_key="")
