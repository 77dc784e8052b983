"""Checks of certificates: key, chain, names, usage and dates; and of the clock.

OpenSSL verifies them, in a handshake in memory between the same contexts that the programs use.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.frame.finding import Asked, CheckId, Finding
from isthmus.frame.layout import TlsUse
from isthmus.frame.patient import Patient
from isthmus.net.certificates import Purpose, TlsFiles, authorities
from isthmus.net.contexts import client_context, server_context
from isthmus.net.rules_expiry import Standing, standing
from isthmus.programs.server.rules_role_warnings import TODO, role_warnings
from isthmus.text.units import age
from isthmus.tools.doctor.files import placed
from isthmus.tools.doctor.layout import tls_uses
from isthmus.tools.pki.show import CertificateInfo, show

_USAGE_CODE = 26  # X509_V_ERR_INVALID_PURPOSE
_NAME_CODES = frozenset({62, 64})  # of a host name, of an address
#: Codes for a missing issuer: X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT and the like.
_FOREIGN_CODES = frozenset({18, 19, 20, 21})
#: Certificates of clients and those shown to clients: the other side has another authority.
_ACROSS = frozenset({"--server-cert", "--admin-cert", "--tls-cert-path", "--client-cert"})
_MOST_NAMES = 8


def see_certificates(patient: Patient) -> Iterator[Finding]:
    """Check every certificate that the settings name."""
    now = patient.now()
    dated: set[str] = set()
    for use in tls_uses(patient.settings):
        named, use = use.files, _placed(patient, use)
        if named.cert and named.key:
            yield from _see_pair(use, named)
        for flag, path, file, several in (
            (named.labels[0], named.cert, use.files.cert, False),
            (named.labels[2], named.ca, use.files.ca, True),
        ):
            if path and path not in dated:
                dated.add(path)
                yield _see_dates(f"{flag} {path}", file, now, several=several)


def _placed(patient: Patient, use: TlsUse) -> TlsUse:
    files = use.files
    paths = [
        str(placed(patient, path)) if path else "" for path in (files.cert, files.key, files.ca)
    ]
    return replace(use, files=replace(files, cert=paths[0], key=paths[1], ca=paths[2]))


def _see_pair(use: TlsUse, named: TlsFiles) -> Iterator[Finding]:
    """Check a certificate at its real path, and report it under the program's path."""
    cert, key, ca = named.labels
    about = f"{cert} {named.cert}"
    asked = Asked(CheckId.KEY_PAIR, f"{key} {named.key}", f"loaded it with {cert}")
    try:
        code, words = verdict(use.files, use.purpose)
    except ConfigError as error:
        yield asked.fail(
            str(error), f"give the key that {cert} was made with; see isthmus pki show"
        )
        return
    yield asked.ok("it matches the certificate")
    own = show([use.files.cert])[0]
    yield judge_usage(about, use.purpose, own.usages)
    if use.files.ca:
        yield judge_chain(about, ca, use, code, words)
    if use.purpose == "server":
        yield from _see_names(about, use, own)


def see_roles(patient: Patient) -> Iterator[Finding]:
    """Check whether an agent's certificate could pass for a client's, or vice versa."""
    asked = Asked(CheckId.ROLES, "certificates", "compared the authorities of the ports")
    found = role_warnings(patient.settings, lambda path: authorities(str(placed(patient, path))))
    for sentence in found:
        yield asked.warn(sentence.removesuffix(f"; {TODO}"), TODO)
    if not found:
        yield asked.ok("agents, clients and operators cannot use each other's certificates")


def judge_usage(about: str, purpose: Purpose, usages: tuple[str, ...]) -> Finding:
    """Is the certificate valid for this side of TLS? Without a usage it is valid for both."""
    asked = Asked(CheckId.USAGE, about, "read its extended key usage")
    if not usages or purpose in usages or "any" in usages:
        return asked.ok(f"it may be used as a TLS {purpose}")
    return asked.fail(
        f"it is for a TLS {' and '.join(usages)}, not for a {purpose}",
        f"create one for a {purpose}, as isthmus pki init does",
    )


def judge_chain(about: str, ca: str, use: TlsUse, code: int, words: str) -> Finding:
    """Did an authority of the same program sign it? Finally the other end decides."""
    asked = Asked(CheckId.CHAIN, about, f"verified it in memory with the authorities of {ca}")
    if code in (0, _USAGE_CODE):
        return asked.ok("signed by these authorities")
    if use.files.labels[0] in _ACROSS and code in _FOREIGN_CODES:
        these = "clients" if use.purpose == "server" else "servers"
        return asked.ok(f"signed by another authority, which is usual: these are for {these}")
    other = "agents" if use.purpose == "server" else "the server"
    return asked.warn(
        f"not signed by these authorities: {words}",
        f"if one authority signs both ends here, one of the two files is wrong; otherwise see that"
        f" {other} trust{'' if use.purpose == 'server' else 's'} the authority of this certificate"
        " (its intermediate certificates belong into the same file)",
    )


def _see_names(about: str, use: TlsUse, own: CertificateInfo) -> Iterator[Finding]:
    asked = Asked(CheckId.NAMES, about, "read its subject alternative names")
    if not own.names:
        yield asked.fail(
            "it has none, and clients ignore the common name",
            "reissue it with the names and addresses that peers dial",
        )
        return
    yield asked.ok(f"it is for {listed(own.names)}")
    for name in use.names:
        asked = Asked(CheckId.NAMES, about, f"verified it in memory for {name}")
        code, _ = verdict(replace(use.files, ca=use.files.cert), "server", name=name)
        if code in _NAME_CODES:
            yield asked.fail(
                f"it is for {listed(own.names)}, not for {name}, which agents dial",
                f"reissue it with {name} as well, or give agents --proxy-server-name",
            )
        else:
            yield asked.ok(f"it is for {name}, too")


def listed(names: tuple[str, ...]) -> str:
    """The names; of many, the first few."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _see_dates(about: str, path: str, now: datetime, *, several: bool) -> Finding:
    asked = Asked(CheckId.EXPIRY, about, "read its dates")
    try:
        infos = show([Path(path)], now=now)
    except ConfigError as error:
        return asked.skip(str(error))
    # A chain ends with its first expiry; of several authorities one valid one is enough.
    chosen = max(infos, key=_end) if several else min(infos, key=_end)
    return judge_expiry(asked, chosen.not_before, chosen.not_after, now)


def _end(info: CertificateInfo) -> datetime:
    return info.not_after


def _left(time: timedelta) -> str:
    hours = max(0, int(time.total_seconds() // 3600))
    amount, unit = (hours, "hour") if hours < 48 else (hours // 24, "day")
    return f"{amount} {unit}{'' if amount == 1 else 's'}"


def judge_expiry(asked: Asked, start: datetime, end: datetime, now: datetime) -> Finding:
    """Is the certificate valid, and for how long? net/rules_expiry.py decides what is too short."""
    day = end.date().isoformat()
    left = f"{_left(end - now)} left, until {day}"
    if now < start:
        return asked.fail(
            f"it is not valid before {start.isoformat()}, and now is {now.isoformat()}",
            "check the clock of this machine, and of the machine that signed it",
        )
    if now > end:
        return asked.fail(f"it expired on {day}", "renew it; a running program picks the file up")
    match standing(not_before=start, not_after=end, now=now):
        case Standing.BAD:
            return asked.fail(left, "renew it now; a running program picks the new file up")
        case Standing.WARN:
            return asked.warn(left, "renew it; a running program picks the new file up")
        case Standing.OK:
            return asked.ok(left)


_TURNS = 10
# openssl/x509_vfy.h; Python has no name for it.
_NO_CHECK_TIME = 0x200000


def verdict(
    files: TlsFiles, purpose: Purpose, *, name: str = "", dates: bool = False
) -> tuple[int, str]:
    """Show the certificate to a TLS peer that trusts the authorities of ``files``.

    Returns OpenSSL's code and message of an error, or (0, ""). Without a ``name`` or without
    ``dates``, these are not checked.

    Raises:
        ConfigError: a file cannot be used.
    """
    pair = TlsFiles(files.cert, files.key, "", labels=files.labels)
    trust = TlsFiles("", "", files.ca, labels=files.labels)
    if purpose == "server":
        client, server = client_context(trust), server_context(pair)
        client.check_hostname = bool(name)
        judge = client
    else:
        client = client_context(pair)
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        # The server's own certificate does not matter here: the client does not check it.
        server = server_context(files)
        judge = server
    if not dates:
        judge.verify_flags |= _NO_CHECK_TIME
    try:
        _shake_hands(client, server, name or "localhost")
    except ssl.SSLCertVerificationError as error:
        return error.verify_code, error.verify_message
    except ssl.SSLError as error:
        return -1, error.reason or str(error)
    return 0, ""


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_TURNS):
        waiting = []
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting.append(end)
        ends = waiting
        if not ends:
            return


_WARN, _FAIL = timedelta(seconds=5), timedelta(minutes=1)


def judge_skew(about: str, theirs: datetime, ours: datetime) -> Finding:
    """Compare a peer's time with this machine's; a Date has whole seconds."""
    asked = Asked(CheckId.CLOCK, about, "compared its time with this machine's")
    skew = ours - theirs
    far = abs(skew)
    side = "ahead" if skew > timedelta(0) else "behind"
    seen = f"this clock is {age(far.total_seconds())} {side}"
    todo = "check that NTP runs on both machines (timedatectl, chronyc tracking)"
    if far > _FAIL:
        return asked.fail(f"{seen}: tokens, Leases and new certificates are judged wrongly", todo)
    if far > _WARN:
        return asked.warn(seen, todo)
    return asked.ok("the same, but for a few seconds")
