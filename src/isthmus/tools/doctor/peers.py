"""Checks of a program's peers: names, routes, connections, TLS, certificates, protocols.

The doctor connects to a peer as the program does, step by step, and notes how far that got: plain
asyncio with a deadline for each wait. It never makes a link: after the handshake it sends a ping,
which every peer answers before identification, and a goodbye if the protocol has one, so that an
Isthmus server counts no failed link. The Kubernetes API is a peer, too: whether it answers, its
time, and what it permits the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime

from isthmus.errors import ConfigError, DialFailure, KubeError, LinkError
from isthmus.frame.finding import DIAL_ADVICE, Asked, CheckId, Finding
from isthmus.frame.layout import KubeNeed, Peer
from isthmus.frame.patient import Patient
from isthmus.kube.permissions import look_at_api, may
from isthmus.net.certificates import TlsFiles
from isthmus.net.connect import FAILURE_OF_ERRNO
from isthmus.net.contexts import client_context
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver, srv_targets
from isthmus.net.rules_proxies import ProxyAddress, ProxyRules
from isthmus.net.through_proxy import connect_through
from isthmus.text.units import took
from isthmus.tools.doctor.certificates import judge_expiry, judge_skew, listed
from isthmus.tools.doctor.configuration import environ_of
from isthmus.tools.doctor.layout import layout_of
from isthmus.values import HostPort, is_address
from isthmus.wire.alpn import RELAY_ALPN, is_ours
from isthmus.wire.http2 import PREFACE
from isthmus.wire.yamux import Flags, FrameType, GoAwayCode, Header

# In one write: a peer that answers the ping has read the goodbye as well.
_PING_AND_LEAVE = (
    Header(FrameType.PING, Flags.SYN, 0, 1).to_bytes()
    + Header(FrameType.GO_AWAY, Flags.NONE, 0, GoAwayCode.NORMAL).to_bytes()
)
_EMPTY_SETTINGS = bytes.fromhex("000000040000000000")  # RFC 9113 §6.5
_MOST_BYTES = 64 * 1024
#: In TLS 1.3 a client receives the refusal of its certificate only after its handshake.
_REFUSAL_S = 0.25


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at one address; fields of steps that were not reached stay empty."""

    peer: Peer
    host: str
    at: HostPort
    proxy: ProxyAddress | None = None
    connect_s: float | None = None
    failure: DialFailure | None = None
    trouble: str = ""
    tls_version: str = ""
    alpn: str | None = None
    verify_code: int = 0
    verify_words: str = ""
    certificate: bytes = field(default=b"", repr=False)
    answered: bool | None = None
    answer_trouble: str = ""
    date: datetime | None = None

    @property
    def name(self) -> str:
        """The name that the certificate has to match."""
        return self.peer.name or self.host


async def attempt(note: Attempt, timeout_s: float) -> Attempt:
    """Take all steps as far as possible; failures are noted, only ConfigError is raised.

    Raises:
        ConfigError: the program's certificate files cannot be used.
    """
    peer = note.peer
    context = client_context(peer.files, alpn=peer.alpn) if peer.files is not None else None
    sock = await _connect(note, timeout_s)
    if sock is None:
        return note
    if context is None:
        sock.close()
        return note
    streams = await _handshake(note, sock, context, timeout_s)
    if streams is None:
        if note.verify_code:
            await _look_at_certificate(note, timeout_s)
        return note
    try:
        await _ask(note, *streams, timeout_s)
    finally:
        streams[1].transport.abort()
    return note


async def _connect(note: Attempt, timeout_s: float) -> socket.socket | None:
    """Connect, through the proxy if there is one."""
    loop = asyncio.get_running_loop()
    started = time.monotonic()
    try:
        if note.proxy is not None:
            sock = await _by_proxy(loop, note, timeout_s)
        else:
            sock = await _directly(loop, note.at, timeout_s)
    except TimeoutError:
        note.failure, note.trouble = DialFailure.TIMED_OUT, f"no answer within {timeout_s:g} s"
    except LinkError as error:
        note.failure, note.trouble = DialFailure.UNREACHABLE, str(error)
    except OSError as error:
        note.failure = FAILURE_OF_ERRNO.get(error.errno or 0, DialFailure.INTERNAL)
        # asyncio's message contains the address, which the finding already has.
        note.trouble = (os.strerror(error.errno) if error.errno else str(error)).lower()
    else:
        note.connect_s = time.monotonic() - started
        return sock
    return None


async def _directly(
    loop: asyncio.AbstractEventLoop, at: HostPort, timeout_s: float
) -> socket.socket:
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.sock_connect(sock, (at.host, at.port))
    except BaseException:
        sock.close()
        raise
    return sock


async def _by_proxy(
    loop: asyncio.AbstractEventLoop, note: Attempt, timeout_s: float
) -> socket.socket:
    assert note.proxy is not None
    poller = Poller(loop)
    sock = await connect_through(poller, Resolver(loop), note.proxy, note.at, timeout_s=timeout_s)
    if sock.family == socket.AF_UNIX:
        return sock  # the poller connects it to an https proxy
    copy = socket.socket(fileno=socket.dup(sock.fileno()))
    copy.setblocking(False)
    poller.close(sock)
    poller.shut_down()
    return copy


async def _handshake(
    note: Attempt, sock: socket.socket, context: ssl.SSLContext, timeout_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                sock=sock, ssl=context, server_hostname=note.name
            )
    except ssl.SSLCertVerificationError as error:
        note.verify_code, note.verify_words = error.verify_code, error.verify_message
        note.trouble = note.verify_words
    except ssl.SSLError as error:
        note.trouble = (error.reason or str(error)).lower().replace("_", " ")
    except TimeoutError:
        note.trouble = f"no answer within {timeout_s:g} s"
    except OSError as error:
        cut = isinstance(error, ConnectionError) or error.errno == errno.EPIPE
        note.trouble = "the connection was cut" if cut else (error.strerror or str(error)).lower()
    else:
        secure: ssl.SSLObject = writer.get_extra_info("ssl_object")
        note.tls_version = secure.version() or ""
        note.alpn = secure.selected_alpn_protocol()
        note.certificate = secure.getpeercert(True) or b""
        return reader, writer
    return None


async def _look_at_certificate(note: Attempt, timeout_s: float) -> None:
    """Do the handshake again without verification, to read the certificate."""
    context = client_context(TlsFiles("", "", ""), alpn=note.peer.alpn)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    again = Attempt(peer=note.peer, host=note.host, at=note.at, proxy=note.proxy)
    sock = await _connect(again, timeout_s)
    if sock is None:
        return
    streams = await _handshake(again, sock, context, timeout_s)
    if streams is not None:
        note.tls_version, note.alpn = again.tls_version, again.alpn
        note.certificate = again.certificate
        streams[1].transport.abort()


async def _ask(
    note: Attempt, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float
) -> None:
    """Send a message that every peer of the protocol answers; shows a refused certificate."""
    question = _question(note)
    if not question:
        return
    note.answered = False
    try:
        async with asyncio.timeout(timeout_s):
            said = await _early(reader)
            if not said and not reader.at_eof():
                writer.write(question)
                await writer.drain()
                said = await reader.read(_MOST_BYTES)
    except TimeoutError:
        note.answer_trouble = f"no answer within {timeout_s:g} s"
    except ssl.SSLError as error:
        note.answer_trouble = (error.reason or str(error)).lower().replace("_", " ")
    except OSError as error:
        note.answer_trouble = (error.strerror or "the connection was cut").lower()
    else:
        note.answered = bool(said)
        note.answer_trouble = "" if said else "the connection was ended"
        if note.peer.http:
            note.date = date_of(said)


async def _early(reader: asyncio.StreamReader) -> bytes:
    """Bytes that come unrequested: a refusal, which a write to a closed socket would lose."""
    try:
        return await asyncio.wait_for(reader.read(_MOST_BYTES), _REFUSAL_S)
    except TimeoutError:
        return b""


def _question(note: Attempt) -> bytes:
    if is_ours(note.alpn) or note.alpn == RELAY_ALPN:
        return _PING_AND_LEAVE
    if note.alpn == "h2":
        return PREFACE + _EMPTY_SETTINGS
    if note.peer.http:
        return f"GET /version HTTP/1.1\r\nHost: {note.name}\r\nConnection: close\r\n\r\n".encode()
    return b""


def date_of(head: bytes) -> datetime | None:
    """The Date of an answer (RFC 9110 §6.6.1); None without one."""
    for line in head.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"date":
            with contextlib.suppress(ValueError):
                return parsedate_to_datetime(value.decode("ascii", "replace").strip())
    return None


_SLOW_S = 1.0
_MOST_ADDRESSES = 16
_NAME_CODES = frozenset({62, 64})
_TIME_CODES = frozenset({9, 10})

_CONNECT_ADVICE = {
    **DIAL_ADVICE,
    DialFailure.REFUSED: "check that the peer runs and listens on that port, and that the port is"
    " right",
    DialFailure.TIMED_OUT: "check whether a firewall or security group drops packets on the way",
    DialFailure.UNREACHABLE: "check the routes of this host, and the proxy if there is one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The result of resolving a host: the names and ports to connect to, and their addresses."""

    peer: Peer
    places: tuple[tuple[HostPort, str], ...] = ()
    took_s: float = 0.0
    error: str = ""


def see_names(patient: Patient) -> Iterator[Finding]:
    """Resolve the names of peers."""
    for resolved in resolved_peers(patient):
        peer = resolved.peer
        if is_address(peer.at.host):
            continue
        kind = "SRV, A and AAAA" if peer.srv else "A and AAAA"
        done = f"asked the system's resolver ({kind})"
        asked = Asked(CheckId.DNS, f"{peer.flag} {peer.at.host}", done)
        yield judge_name(asked, resolved, _proxy_for(patient, peer))


def judge_name(asked: Asked, resolved: Resolved, proxy: ProxyAddress | None) -> Finding:
    """Does the name resolve, and quickly?"""
    if not resolved.places:
        if proxy is not None:
            return asked.ok(f"it does not resolve here; {proxy} looks it up")
        return asked.fail(
            f"no address: {resolved.error}",
            "check the name's spelling, /etc/resolv.conf, and the DNS policy of a pod",
        )
    seen = ", ".join(address for _, address in resolved.places)
    needed = took(resolved.took_s)
    if resolved.took_s > _SLOW_S:
        return asked.warn(
            f"{seen}, after {needed}", "find out which server of /etc/resolv.conf does not answer"
        )
    return asked.ok(f"{seen}, in {needed}")


def resolved_peers(patient: Patient) -> Sequence[Resolved]:
    """Every peer with its addresses, resolved once."""
    return patient.shared.get(
        "resolved",
        lambda: [_resolve(patient, peer) for peer in layout_of(patient.settings).peers()],
    )


def _resolve(patient: Patient, peer: Peer) -> Resolved:
    started = time.monotonic()
    try:
        asked = [peer.at]
        if peer.srv:
            asked = asyncio.run(asyncio.wait_for(srv_targets(peer.at.host), patient.timeout_s))
        found = [(at, address) for at in asked for address in _addresses(at)]
    except TimeoutError:
        return Resolved(peer=peer, error=f"no answer within {patient.timeout_s:g} s")
    except OSError as error:
        return Resolved(peer=peer, error=error.strerror or str(error))
    unique = tuple(dict.fromkeys(found))[:_MOST_ADDRESSES]
    return Resolved(peer=peer, places=unique, took_s=time.monotonic() - started)


def _addresses(at: HostPort) -> list[str]:
    infos = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


def _proxy_for(patient: Patient, peer: Peer) -> ProxyAddress | None:
    if peer.proxy is not None or not peer.by_environment:
        return peer.proxy
    try:
        rules = ProxyRules.from_environment(environ_of(patient))
    except ConfigError:
        return None  # the check of the variables reports it
    return rules.proxy_for(peer.at.host, peer.at.port)


def see_peers(patient: Patient) -> Iterator[Finding]:
    """Connect to every address of every peer, as the program would."""
    notes = list(_attempts(patient))
    if notes:
        asyncio.run(_all(notes, patient.timeout_s))
    for note in notes:
        yield from judge_attempt(note, patient)


def _attempts(patient: Patient) -> Iterator[Attempt]:
    for resolved in resolved_peers(patient):
        proxy = _proxy_for(patient, resolved.peer)
        if proxy is not None:  # the proxy resolves names itself
            for at in dict.fromkeys(at for at, _ in resolved.places) or (resolved.peer.at,):
                yield Attempt(peer=resolved.peer, host=at.host, at=at, proxy=proxy)
            continue
        for at, address in resolved.places:
            there = HostPort(address, at.port)
            yield Attempt(peer=resolved.peer, host=at.host, at=there)


async def _all(notes: Sequence[Attempt], timeout_s: float) -> None:
    await asyncio.gather(*(attempt(note, timeout_s) for note in notes))


def judge_attempt(note: Attempt, patient: Patient) -> Iterator[Finding]:
    """Report how far it got, step by step."""
    where = f"{note.host} at {note.at}" if note.host != note.at.host else str(note.at)
    by = f" by {note.proxy}" if note.proxy is not None else ""
    asked = Asked(CheckId.CONNECT, where, f"opened a TCP connection{by}")
    if note.connect_s is None:
        failure = note.failure or DialFailure.INTERNAL
        yield asked.fail(note.trouble, _CONNECT_ADVICE[failure])
        return
    yield asked.ok(f"connected in {took(note.connect_s)}")
    if note.peer.files is None:
        return
    asked = Asked(CheckId.TLS, where, "began TLS as the program does")
    if not note.tls_version:
        yield asked.fail(
            f"no handshake: {note.trouble}",
            "check what listens there: TLS 1.2 or later is required, and no middle box may end it",
        )
        return
    yield asked.ok(note.tls_version)
    yield from _judge_certificate(note, where, patient)
    if note.verify_code:
        return
    yield _judge_alpn(note, where)
    if note.answered is not None:
        yield _judge_answer(note, where)
    if note.date is not None:
        yield judge_skew(f"{where}, its Date", note.date, patient.now())


def _judge_certificate(note: Attempt, where: str, patient: Patient) -> Iterator[Finding]:
    from cryptography import x509

    from isthmus.tools.pki.show import names_of

    done = f"verified its certificate for {note.name}"
    asked = Asked(CheckId.PEER_CERTIFICATE, where, done)
    found = x509.load_der_x509_certificate(note.certificate)
    if note.verify_code in _NAME_CODES:
        flag = note.peer.name_flag
        yield asked.fail(
            f"it is for {listed(names_of(found)) or 'no name at all'}, not for {note.name}",
            f"have the certificate made with that name{f', or give {flag}' if flag else ''}",
        )
    elif note.verify_code in _TIME_CODES:
        start, end = found.not_valid_before_utc, found.not_valid_after_utc
        yield judge_expiry(asked, start, end, patient.now())
    elif note.verify_code:
        assert note.peer.files is not None
        trusted = note.peer.files.ca or "the system's authorities"
        yield asked.fail(
            f"it is not trusted: {note.verify_words}; it was signed by"
            f" {found.issuer.rfc4514_string()}",
            f"add the authority that signed it to {trusted}, or check what answers there",
        )
    else:
        end = found.not_valid_after_utc
        yield judge_expiry(asked, found.not_valid_before_utc, end, patient.now())


def _judge_alpn(note: Attempt, where: str) -> Finding:
    offered = ", ".join(note.peer.alpn) or "nothing"
    asked = Asked(CheckId.ALPN, where, f"offered {offered} by ALPN")
    if is_ours(note.alpn) or note.alpn == RELAY_ALPN:
        return asked.ok(f"{note.alpn}: a server of isthmus")
    if note.alpn == "h2" and any(map(is_ours, note.peer.alpn)):
        return asked.ok("h2: a server of konnectivity, or one with --link=grpc")
    if note.alpn is not None or not note.peer.alpn or note.peer.http:
        return asked.ok(f"{note.alpn or 'none'} was chosen")
    if RELAY_ALPN in note.peer.alpn:
        return asked.fail(
            "none was chosen: the server there does not relay, or a middle box ends TLS",
            "give that server --peer-relay-name, and check that the port is its agent port",
        )
    return asked.fail(
        "none was chosen: there is no connectivity server there, or a middle box ends TLS",
        "make load balancers pass TLS through unchanged, and check that the port is the agent port",
    )


def _judge_answer(note: Attempt, where: str) -> Finding:
    asked = Asked(CheckId.ANSWER, where, "sent a ping, and waited for its answer")
    if note.answered:
        return asked.ok("it answers, and accepted the certificate")
    files = note.peer.files
    shown = (
        f"the certificate {files.cert}" if files is not None and files.cert else "no certificate"
    )
    return asked.fail(
        f"{note.answer_trouble}, after it was shown {shown}",
        "check that the peer trusts the CA of this certificate (--cluster-ca-cert), and its log",
    )


def see_api(patient: Patient) -> Iterator[Finding]:
    """Ask the API for its version, compare its time, and check the program's permissions."""
    need = layout_of(patient.settings).kube()
    if need is None:
        return
    asked = Asked(CheckId.KUBE_API, need.about, "asked the API for its version")
    limit = patient.timeout_s
    try:
        seen = asyncio.run(look_at_api(need.kubeconfig, server=need.server, timeout_s=limit))
    except ConfigError as error:
        yield asked.fail(str(error), "give a kubeconfig that works: kubectl --kubeconfig=… version")
        return
    except KubeError as error:
        yield asked.fail(
            str(error), "check its address, the routes and firewalls to it, and its CA"
        )
        return
    if seen.status >= 500:
        yield asked.fail(
            f"{seen.server} answers {seen.status}", "check the health of kube-apiserver"
        )
    else:
        yield asked.ok(f"{seen.server} answers")
    if seen.date is not None:
        yield judge_skew(f"{seen.server}, its Date", seen.date, patient.now())
    yield from _see_permissions(need, limit)


def _see_permissions(need: KubeNeed, limit_s: float) -> Iterator[Finding]:
    done = "asked by SelfSubjectAccessReview"
    try:
        found = asyncio.run(
            may(need.kubeconfig, need.permissions, server=need.server, timeout_s=limit_s)
        )
    except (ConfigError, KubeError) as error:
        unknown = isinstance(error, KubeError) and error.status == 401
        todo = "give credentials that the API knows" if unknown else "check the health of the API"
        yield Asked(CheckId.PERMISSIONS, need.about, done).fail(str(error), todo)
        return
    for permission, allowed in zip(need.permissions, found, strict=True):
        asked = Asked(CheckId.PERMISSIONS, f"{need.about}: {permission}", done)
        if allowed:
            yield asked.ok("allowed")
        else:
            yield asked.fail(
                "not allowed",
                f"allow it by a Role or ClusterRole: kubectl auth can-i {permission.verb}"
                f" {permission.resource}",
            )
