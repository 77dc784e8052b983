"""Certificates that are taken back while they are in use: links and clients are cut, others not."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, Client, Target, TlsClient, ask, head_for, tunnel
from grpc_clients import GrpcCall
from stack import Stack, client_context, metric, wait_until

from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles, revoke

NAMES = ("localhost", "127.0.0.1")


@pytest.fixture
def mine(tmp_path: Path) -> PkiFiles:
    files = pki.init(tmp_path / "mine", server_names=NAMES, one_ca=True)
    revoke([], directory=files.directory)
    return files


@pytest.fixture
def others(mine: PkiFiles, tmp_path: Path) -> PkiFiles:
    """More certificates of the same authority."""
    directory = tmp_path / "others"
    directory.mkdir()
    for path in (mine.ca_cert, mine.ca_key):
        shutil.copy(path, directory)
    return pki.renew(directory, server_names=NAMES)


@pytest.fixture
def own(mine: PkiFiles) -> Iterator[Stack]:
    with Stack(mine) as stack:
        yield stack


def crl(files: PkiFiles) -> str:
    return str(files.directory / "ca.crl")


def connect(stack: Stack, files: PkiFiles) -> TlsClient:
    assert stack.server.frontend_port is not None
    sock = socket.create_connection(("127.0.0.1", stack.server.frontend_port), LIMIT_S)
    try:
        return TlsClient(sock, client_context(files), "localhost")
    except BaseException:
        sock.close()
        raise


def ended_by_revocation(stack: Stack) -> int:
    """How many tunnels ended so, as audit and snapshot say it."""
    ended = [it for it in stack.snapshot()["recentEndings"] if it["by"] == "revocation"]
    assert {it["ending"] for it in ended} <= {"ended by an administrator"}
    return len(ended)


def assert_cut(client: Client) -> None:
    """It was reset, or cut in the middle of TLS: never a clean end."""
    with pytest.raises((ConnectionError, ssl.SSLError)):
        while client.recv():
            pass


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_an_agent(
    own: Stack, mine: PkiFiles, others: PkiFiles, link: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = own.add_server(cluster_crl_file=crl(mine))
    good = own.add_agent(link=link, agent_id="good")
    bad = own.add_agent(
        link=link,
        agent_id="bad",
        agent_cert=str(others.agent_cert),
        agent_key=str(others.agent_key),
    )
    with contextlib.ExitStack() as opened:
        target = opened.enter_context(Target())
        pairs = []
        while {it.outcome.agent_id for it in own.do(lambda: server.tunnels.all)} != {"good", "bad"}:
            client = opened.enter_context(tunnel(own.uds(), target.name))
            far = opened.enter_context(target.accept())
            client.send(b"a")  # or another agent could do the dial again, and nobody would notice
            assert far.read_exactly(1) == b"a"
            far.send(b"b")
            assert client.read_exactly(1) == b"b"
            pairs.append((client, far))
        by_agent = [it.outcome.agent_id for it in own.do(lambda: server.tunnels.all)]
        revoke([others.agent_cert], directory=mine.directory)
        own.wait(lambda: {it.agent_id for it in server.agents} == {"good"}, "the link is cut")
        for (client, far), agent_id in zip(pairs, by_agent, strict=True):
            if agent_id == "good":
                client.send(b"x")
                assert far.read_exactly(1) == b"x"
            else:
                with contextlib.suppress(ConnectionError):  # a UNIX socket cannot be reset
                    assert client.recv() == b""
                assert_cut(far)
        assert own.is_linked(good) and not own.is_linked(bad)
    assert ended_by_revocation(own) == by_agent.count("bad")
    [said] = [it for it in caplog.records if it.name == "isthmus.audit"]
    assert said.getMessage() == "agent cut"
    fields = vars(said)["fields"]
    assert fields["agent_id"] == "bad" and "revoked" in fields["reason"]
    # It comes again, and is refused each time.
    refused = 'isthmus_server_tls_refused_total{port="agent",reason="revoked"}'
    wait_until(lambda: metric(own.metrics(), refused) > 1, "it is refused in its handshake")
    assert metric(own.metrics(), 'isthmus_server_revocation_cuts_total{kind="link"}') >= 1
    named = f'{{file="{crl(mine)}"}}'
    assert metric(own.metrics(), f"isthmus_server_crl_revoked_certificates{named}") == 1
    own.wait_idle()


def test_a_client_of_connect(own: Stack, mine: PkiFiles, others: PkiFiles) -> None:
    server = own.add_server(server_crl_file=crl(mine))
    own.add_agent()
    with contextlib.ExitStack() as opened:
        target = opened.enter_context(Target())
        good = opened.enter_context(tunnel(connect(own, mine), target.name))
        far_good = opened.enter_context(target.accept())
        bad = opened.enter_context(tunnel(connect(own, others), target.name))
        far_bad = opened.enter_context(target.accept())
        silent = opened.enter_context(connect(own, others))  # has not said what it wants
        own.wait(lambda: len(server.tunnels) == 2, "both tunnels stand")
        revoke([others.client_cert], directory=mine.directory)
        assert_cut(bad)
        assert_cut(silent)
        assert_cut(far_bad)
        good.send(b"x")
        assert far_good.read_exactly(1) == b"x"
    own.wait_idle()
    assert ended_by_revocation(own) == 1
    with pytest.raises((ConnectionError, ssl.SSLError)), connect(own, others) as again:
        ask(again, head_for("127.0.0.1:1"))
        again.read_exactly(1)
    refused = 'isthmus_server_tls_refused_total{port="frontend",reason="revoked"}'
    assert metric(own.metrics(), refused) == 1


def test_a_client_of_grpc(own: Stack, mine: PkiFiles, others: PkiFiles) -> None:
    own.add_server(mode=("grpc",), server_crl_file=crl(mine))
    own.add_agent()
    with contextlib.ExitStack() as opened:
        target = opened.enter_context(Target())
        calls = []
        for files in (mine, others):
            call = GrpcCall(opened.enter_context(connect(own, files)))
            assert call.dial(target.name) == ""
            calls.append((call, opened.enter_context(target.accept())))
        (good, far_good), (bad, far_bad) = calls
        revoke([others.client_cert], directory=mine.directory)
        assert_cut(bad.client)
        assert_cut(far_bad)
        good.send(b"x")
        assert far_good.read_exactly(1) == b"x"
        assert ended_by_revocation(own) == 1
    own.wait_idle()


def test_an_agent_without_a_byte_is_replaced_by_another(
    own: Stack, mine: PkiFiles, others: PkiFiles
) -> None:
    server = own.add_server(cluster_crl_file=crl(mine))
    own.add_agent(agent_cert=str(others.agent_cert), agent_key=str(others.agent_key))
    with Target() as target, tunnel(own.uds(), target.name) as client, target.accept() as first:
        own.add_agent(agent_id="good")
        revoke([others.agent_cert], directory=mine.directory)
        assert_cut(first)
        with target.accept() as again:
            client.send(b"x")
            assert again.read_exactly(1) == b"x"
            assert [it.outcome.agent_id for it in own.do(lambda: server.tunnels.all)] == ["good"]
    own.wait_idle()


def test_one_file_for_both_flags_is_one_sample(own: Stack, mine: PkiFiles) -> None:
    own.add_server(cluster_crl_file=crl(mine), server_crl_file=crl(mine))
    name = "isthmus_server_crl_revoked_certificates{"
    assert len([line for line in own.metrics().splitlines() if line.startswith(name)]) == 1


def test_a_server(own: Stack, mine: PkiFiles, others: PkiFiles) -> None:
    bad = own.add_server(cluster_cert=str(others.server_cert), cluster_key=str(others.server_key))
    agent = own.add_agent(crl_file=crl(mine))
    revoke([others.server_cert], directory=mine.directory)
    own.wait(lambda: not len(bad.agents), "the agent has left")
    failed = 'isthmus_agent_link_failures_total{reason="tls"}'
    wait_until(lambda: metric(own.metrics(agent), failed) > 1, "it does not come back")
    assert own.do(lambda: not len(bad.agents))


def s_client(stack: Stack, files: PkiFiles, port: int) -> str:
    """What OpenSSL's own client hears after a handshake that it finds good, or says of it."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", "localhost",
         "-CAfile", files.ca_cert, "-cert", files.client_cert, "-key", files.client_key,
         "-verify_return_error", "-quiet"],
        input=head_for("127.0.0.1:1"), capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.stdout.decode()


def test_openssls_own_client(own: Stack, mine: PkiFiles, others: PkiFiles) -> None:
    server = own.add_server(server_crl_file=crl(mine))
    own.add_agent()
    assert server.frontend_port is not None
    assert s_client(own, others, server.frontend_port).startswith("HTTP/1.1 502")
    revoke([others.client_cert], directory=mine.directory)
    refused = 'isthmus_server_tls_refused_total{port="frontend",reason="revoked"}'

    def is_refused() -> bool:
        s_client(own, others, server.frontend_port or 0)
        return metric(own.metrics(), refused) > 0

    wait_until(is_refused, "the list is read")
    assert s_client(own, others, server.frontend_port) == ""
    assert s_client(own, mine, server.frontend_port).startswith("HTTP/1.1 502")
    own.wait_idle()
