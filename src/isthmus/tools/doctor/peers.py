"""Reaching whom a program connects to: names, routes, connections, TLS, certificates, protocols."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isthmus.errors import ConfigError, DialFailure
from isthmus.frame.finding import DIAL_ADVICE, Asked, CheckId, Finding
from isthmus.frame.layout import Peer
from isthmus.frame.patient import Patient
from isthmus.net.resolver import srv_targets
from isthmus.net.rules_proxies import ProxyAddress, ProxyRules
from isthmus.text.units import took
from isthmus.tools.doctor.certificates import judge_expiry, judge_skew, listed
from isthmus.tools.doctor.configuration import environ_of
from isthmus.tools.doctor.layout import layout_of
from isthmus.tools.doctor.probing import Attempt, attempt
from isthmus.values import HostPort, is_address
from isthmus.wire.link import RELAY_ALPN, is_ours

_SLOW_S = 1.0
_MOST_ADDRESSES = 16
_NAME_CODES = frozenset({62, 64})
_TIME_CODES = frozenset({9, 10})

_CONNECT_ADVICE = {
    **DIAL_ADVICE,
    DialFailure.REFUSED: "see that the peer runs and listens on that port, and that the port is"
    " the right one",
    DialFailure.TIMED_OUT: "see whether a firewall or security group drops packets on the way",
    DialFailure.UNREACHABLE: "see the routes of this host, and the proxy if there is one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a host came to: the names and ports to ask for, and their addresses."""

    peer: Peer
    places: tuple[tuple[HostPort, str], ...] = ()
    took_s: float = 0.0
    error: str = ""


def see_names(patient: Patient) -> Iterator[Finding]:
    """Look the names of peers up."""
    for resolved in resolved_peers(patient):
        peer = resolved.peer
        if is_address(peer.at.host):
            continue
        kind = "SRV, A and AAAA" if peer.srv else "A and AAAA"
        done = f"asked the system's resolver ({kind})"
        asked = Asked(CheckId.DNS, f"{peer.flag} {peer.at.host}", done)
        yield judge_name(asked, resolved, _proxy_for(patient, peer))


def judge_name(asked: Asked, resolved: Resolved, proxy: ProxyAddress | None) -> Finding:
    """Does it resolve, and soon?"""
    if not resolved.places:
        if proxy is not None:
            return asked.ok(f"it does not resolve here; {proxy} looks it up")
        return asked.fail(
            f"no address: {resolved.error}",
            "see the name's spelling, /etc/resolv.conf, and the DNS policy of a pod",
        )
    seen = ", ".join(address for _, address in resolved.places)
    needed = took(resolved.took_s)
    if resolved.took_s > _SLOW_S:
        return asked.warn(
            f"{seen}, after {needed}", "see which server of /etc/resolv.conf does not answer"
        )
    return asked.ok(f"{seen}, in {needed}")


def resolved_peers(patient: Patient) -> Sequence[Resolved]:
    """Every peer with its addresses, looked up once."""
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
        return None  # said by the check of the variables
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
        if proxy is not None:  # which looks names up itself
            for at in dict.fromkeys(at for at, _ in resolved.places) or (resolved.peer.at,):
                yield Attempt(peer=resolved.peer, host=at.host, at=at, proxy=proxy)
            continue
        for at, address in resolved.places:
            there = HostPort(address, at.port)
            yield Attempt(peer=resolved.peer, host=at.host, at=there)


async def _all(notes: Sequence[Attempt], timeout_s: float) -> None:
    await asyncio.gather(*(attempt(note, timeout_s) for note in notes))


def judge_attempt(note: Attempt, patient: Patient) -> Iterator[Finding]:
    """Say how far it came, step by step."""
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
            "see what listens there: TLS 1.2 or later is needed, and no middle box may end it",
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
            f"put the authority that signed it into {trusted}, or see who answers there",
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
            "none was chosen: what answers there relays for nobody, or a middle box ends TLS",
            "give that server --peer-relay-name, and see that the port is its agent port",
        )
    return asked.fail(
        "none was chosen: what answers there is no connectivity server, or a middle box ends TLS",
        "let load balancers pass TLS through as it is, and see that the port is the agent port",
    )


def _judge_answer(note: Attempt, where: str) -> Finding:
    asked = Asked(CheckId.ANSWER, where, "sent a ping, and waited for its answer")
    if note.answered:
        return asked.ok("it answers, and has accepted our certificate")
    files = note.peer.files
    shown = (
        f"our certificate {files.cert}" if files is not None and files.cert else "no certificate"
    )
    return asked.fail(
        f"{note.answer_trouble}, after we showed {shown}",
        "see that the peer trusts our certificate's authority (--cluster-ca-cert), and its log",
    )
