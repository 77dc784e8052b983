"""Peers that cannot be found, reached, trusted or understood: the step that fails is named."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from doctor_bed import agent, by_check, only, patient, server
from peers_bed import LIMIT_S, answering, closing, saying, serving, silent, tls_context

from isthmus.frame.finding import Asked, CheckId, CheckState, Finding
from isthmus.frame.layout import Peer
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.tools.doctor.certificates import judge_skew
from isthmus.tools.doctor.configuration import see_proxy
from isthmus.tools.doctor.peers import Resolved, judge_name, see_names, see_peers
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles
from isthmus.values import HostPort
from isthmus.wire.alpn import RELAY_ALPN

STEPS = (
    CheckId.CONNECT,
    CheckId.TLS,
    CheckId.PEER_CERTIFICATE,
    CheckId.ALPN,
    CheckId.ANSWER,
)


def examined(
    files: PkiFiles, port: int, *, environ: Mapping[str, str] | None = None, **more: object
) -> dict[CheckId, Finding]:
    settings = agent(files, proxy_server_host=("127.0.0.1",), proxy_server_port=port, **more)
    who = patient("agent", settings, environ=environ or {})
    return {check: found for check, (found,) in by_check(see_peers(who)).items()}


def came_to(found: Mapping[CheckId, Finding]) -> tuple[CheckId, str]:
    """The step that failed, which has to be the last, and what was seen."""
    *before, last = (found[check] for check in STEPS if check in found)
    assert {one.state for one in before} <= {CheckState.OK}, before
    assert last.state is CheckState.FAILED, last
    assert last.todo
    return last.check, last.seen


def test_a_good_peer_is_well(certificates: PkiFiles) -> None:
    context = tls_context(certificates, clients=certificates)
    with serving(answering(context)) as port:
        found = examined(certificates, port)
    assert {found[check].state for check in STEPS} == {CheckState.OK}
    assert "isthmus/1" in found[CheckId.ALPN].seen
    assert found[CheckId.TLS].seen == "TLSv1.3"


def test_nobody_listens(certificates: PkiFiles) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    check, seen = came_to(examined(certificates, port))
    assert check is CheckId.CONNECT
    assert seen == "connection refused"


def test_no_tls_is_spoken(certificates: PkiFiles) -> None:
    with serving(closing) as port:
        check, _ = came_to(examined(certificates, port))
    assert check is CheckId.TLS


def test_a_peer_that_says_nothing(certificates: PkiFiles) -> None:
    settings = agent(certificates, proxy_server_host=("127.0.0.1",))
    with serving(silent) as port:
        settings = agent(certificates, proxy_server_host=("127.0.0.1",), proxy_server_port=port)
        findings = list(see_peers(patient("agent", settings, timeout_s=0.3)))
    finding = only(findings, CheckId.TLS)
    assert finding.state is CheckState.FAILED
    assert "no answer within 0.3 s" in finding.seen


def test_a_certificate_of_another_authority(certificates: PkiFiles, others: PkiFiles) -> None:
    with serving(answering(tls_context(others))) as port:
        check, seen = came_to(examined(certificates, port))
    assert check is CheckId.PEER_CERTIFICATE
    assert "not trusted" in seen
    assert "CN=" in seen  # who signed it


def test_a_certificate_of_another_name(certificates: PkiFiles) -> None:
    with serving(answering(tls_context(certificates))) as port:
        check, seen = came_to(examined(certificates, port, proxy_server_name="proxy.example.com"))
    assert check is CheckId.PEER_CERTIFICATE
    assert seen == "it is for localhost, 127.0.0.1, not for proxy.example.com"


@pytest.mark.parametrize(("born_days", "words"), [(-400, "expired on"), (10, "not valid before")])
def test_a_certificate_that_is_not_valid_now(tmp_path: Path, born_days: int, words: str) -> None:
    """The authority is valid for longer, as it was made with the same program long before."""
    born = datetime.now(UTC) + timedelta(days=min(born_days, -400))
    files = pki.init(tmp_path, server_names=("127.0.0.1",), now=born)
    if born_days > 0:
        later = datetime.now(UTC) + timedelta(days=born_days)
        pki.renew(tmp_path, server_names=("127.0.0.1",), now=later, force=True)
    good = pki.init(tmp_path / "good", server_names=("127.0.0.1",))
    settings = agent(good, ca_cert=str(files.ca_cert), proxy_server_host=("127.0.0.1",))
    with serving(answering(tls_context(files))) as port:
        settings = agent(
            good,
            ca_cert=str(files.ca_cert),
            proxy_server_host=("127.0.0.1",),
            proxy_server_port=port,
        )
        finding = only(see_peers(patient("agent", settings)), CheckId.PEER_CERTIFICATE)
    assert finding.state is CheckState.FAILED
    assert words in finding.seen


def test_a_middle_box_that_ends_tls(certificates: PkiFiles) -> None:
    with serving(
        saying(tls_context(certificates, alpn=()), b"HTTP/1.1 400 Bad Request\r\n\r\n")
    ) as port:
        check, seen = came_to(examined(certificates, port))
    assert check is CheckId.ALPN
    assert "none was chosen" in seen


def test_our_certificate_is_refused(certificates: PkiFiles, others: PkiFiles) -> None:
    """In TLS 1.3 the client hears of it only when it reads."""
    context = tls_context(certificates, clients=others)
    with serving(answering(context)) as port:
        check, seen = came_to(examined(certificates, port))
    assert check is CheckId.ANSWER
    assert "unknown ca" in seen or "reset" in seen
    assert str(certificates.agent_cert) in seen


def test_we_have_no_certificate_and_one_is_wanted(certificates: PkiFiles) -> None:
    context = tls_context(certificates, clients=certificates)
    with serving(answering(context)) as port:
        check, seen = came_to(examined(certificates, port, agent_cert="", agent_key=""))
    assert check is CheckId.ANSWER
    assert "after it was shown no certificate" in seen


# Names.


def test_a_name_that_does_not_exist(certificates: PkiFiles) -> None:
    settings = agent(certificates, proxy_server_host=("server.invalid",))
    finding = only(see_names(patient("agent", settings)), CheckId.DNS)
    assert finding.state is CheckState.FAILED
    assert "server.invalid" in finding.about
    assert list(see_peers(patient("agent", settings))) == []


def test_a_name_that_exists_and_one_that_is_slow(certificates: PkiFiles) -> None:
    settings = agent(certificates, proxy_server_host=("localhost",))
    assert only(see_names(patient("agent", settings)), CheckId.DNS).state is CheckState.OK
    peer = Peer(flag="--proxy-server-host", at=HostPort("name", 1))
    slow = Resolved(peer=peer, places=((peer.at, "192.0.2.1"),), took_s=4.0)
    assert judge_name(Asked(CheckId.DNS, "name", "asked"), slow, None).state is CheckState.WARNING


def test_an_srv_name_that_does_not_exist(certificates: PkiFiles) -> None:
    settings = agent(certificates, proxy_server_host=("_agents._tcp.server.invalid",))
    finding = only(see_names(patient("agent", settings, timeout_s=1.0)), CheckId.DNS)
    assert finding.state is CheckState.FAILED
    assert "SRV" in finding.done


# Proxies.


@contextlib.contextmanager
def proxy(answer: bytes, to: int = 0) -> Iterator[int]:
    """An HTTP proxy with one answer; to a port of this machine if it is told one."""

    def handle(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer)
        if to:
            with socket.create_connection(("127.0.0.1", to), LIMIT_S) as far:
                _pump(connection, far)

    with serving(handle) as port:
        yield port


def _pump(a: socket.socket, b: socket.socket) -> None:
    import select

    while True:
        for ready in select.select([a, b], [], [], LIMIT_S)[0]:
            data = ready.recv(65536)
            if not data:
                return
            (b if ready is a else a).sendall(data)


def through(certificates: PkiFiles, port: int) -> list[Finding]:
    settings = agent(
        certificates, proxy_server_host=("server.invalid",), proxy_server_name="localhost"
    )
    environ = {"HTTPS_PROXY": f"http://u:secret@127.0.0.1:{port}"}
    who = patient("agent", settings, environ=environ)
    return [*see_names(who), *see_proxy(who), *see_peers(who)]


def test_a_peer_behind_a_proxy_is_reached(certificates: PkiFiles) -> None:
    context = tls_context(certificates, clients=certificates)
    with (
        serving(answering(context)) as target,
        proxy(b"HTTP/1.1 200 OK\r\n\r\n", to=target) as port,
    ):
        findings = through(certificates, port)
    assert {one.state for one in findings} == {CheckState.OK}, findings
    assert f"by http://127.0.0.1:{port}" in only(findings, CheckId.CONNECT).done
    assert "looks it up" in only(findings, CheckId.DNS).seen
    assert "secret" not in str(findings)


def test_a_proxy_that_refuses(certificates: PkiFiles) -> None:
    with proxy(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n") as port:
        finding = only(through(certificates, port), CheckId.CONNECT)
    assert finding.state is CheckState.FAILED
    assert "407" in finding.seen
    assert "secret" not in str(finding)


@pytest.mark.parametrize(
    ("environ", "state", "words"),
    [
        ({}, CheckState.OK, "no proxy"),
        ({"HTTPS_PROXY": "ftp://x"}, CheckState.FAILED, "HTTPS_PROXY"),
        ({"HTTPS_PROXY": "http://p:1"}, CheckState.WARNING, "private address"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, CheckState.OK, "directly"),
    ],
)
def test_proxy_variables(
    certificates: PkiFiles, environ: Mapping[str, str], state: CheckState, words: str
) -> None:
    settings = agent(certificates, proxy_server_host=("10.1.2.3",))
    finding = only(see_proxy(patient("agent", settings, environ=environ)), CheckId.PROXY)
    assert finding.state is state
    assert words in finding.seen


def test_two_proxies_are_found(certificates: PkiFiles) -> None:
    environ = {"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:1"}
    settings = agent(certificates, proxy_server_host=("server.invalid",))
    first, _ = see_proxy(patient("agent", settings, environ=environ))
    assert first.state is CheckState.WARNING


# The clock.


@pytest.mark.parametrize(
    ("ahead_s", "state"), [(0, CheckState.OK), (-20, CheckState.WARNING), (3600, CheckState.FAILED)]
)
def test_the_date_of_an_apiserver_is_compared(
    certificates: PkiFiles, ahead_s: int, state: CheckState
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead_s), usegmt=True)
    answer = f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode()
    with serving(saying(tls_context(certificates, alpn=("http/1.1",)), answer)) as port:
        settings = ApiserverProxySettings(
            upstream=(f"127.0.0.1:{port}",), ca_cert=str(certificates.ca_cert)
        )
        findings = list(see_peers(patient("apiserver-proxy", settings)))
    assert only(findings, CheckId.CLOCK).state is state
    assert only(findings, CheckId.ANSWER).state is CheckState.OK


def test_both_directions_of_skew_are_said() -> None:
    now = datetime(2026, 11, 16, tzinfo=UTC)
    assert "5m ahead" in judge_skew("it", now - timedelta(minutes=5), now).seen
    assert "5m behind" in judge_skew("it", now + timedelta(minutes=5), now).seen


def relaying(files: PkiFiles, port: int, **more: object) -> dict[CheckId, Finding]:
    """What is found of another server, by one that would ask it for its agents."""
    given = {
        "server_id": "cp-1",
        "peer_server": ("cp-1=127.0.0.1:1", f"cp-2=127.0.0.1:{port}"),
        "peer_cert": str(files.client_cert),
        "peer_key": str(files.client_key),
    }
    who = patient("server", server(files, **{**given, **more}))
    return {check: found for check, (found,) in by_check(see_peers(who)).items()}


def test_a_server_that_relays_is_examined_by_who_asks(certificates: PkiFiles) -> None:
    context = tls_context(certificates, alpn=(RELAY_ALPN,), clients=certificates)
    with serving(answering(context)) as port:
        found = relaying(certificates, port, peer_relay=True)
        assert {one.state for one in found.values()} == {CheckState.OK}
        assert set(STEPS) <= set(found)
        check, _ = came_to(relaying(certificates, port, peer_relay=True, peer_server_name="other"))
        assert check is CheckId.PEER_CERTIFICATE
        # Without relaying agents are handed on as they come, and no TLS is ours.
        assert set(relaying(certificates, port)) == {CheckId.CONNECT}
    with serving(saying(tls_context(certificates), b"")) as port:
        found = relaying(certificates, port, peer_relay=True)
    assert came_to(found)[0] is CheckId.ALPN
    assert "--peer-relay-name" in found[CheckId.ALPN].todo


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"proxy_server_name": "a"}, "--proxy-server-name"),
        ({"peer_relay": True, "peer_server_name": "a"}, "--peer-server-name"),
    ],
)
def test_the_advice_names_a_flag_that_the_program_has(
    certificates: PkiFiles, settings: dict[str, object], flag: str
) -> None:
    look = relaying if "peer_relay" in settings else examined
    with serving(answering(tls_context(certificates))) as port:
        found = look(certificates, port, **settings)
    assert found[CheckId.PEER_CERTIFICATE].todo.endswith(f"or give {flag}")
