"""Reads the certificate files of an endpoint and checks whether they can be used.

``check_files`` turns every problem into a one-line error that names the file. It reads dates and
usages with a few lines of DER below: ``cryptography`` would cost each server and agent 11 MB for
two timestamps. contexts.py builds and reloads contexts, tools/pki/making.py creates certificates.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from isthmus.errors import ConfigError, unreadable
from isthmus.net.files import TooLargeError, as_file, read_bytes

Purpose = Literal["server", "client"]

# A bundle of every public CA is 0.25 MB; more than this is not a certificate file.
_MAX_FILE_BYTES = 8 * 1024 * 1024
_BEGIN = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----")
_END = re.compile(rb"-----END (?:X509 |TRUSTED )?CERTIFICATE-----")


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of one TLS endpoint; an empty string means not given.

    ``labels`` are the names of the three files in errors, usually their flags. ``besides`` are
    files with authorities that a dialer trusts in addition to the system's, if there is no ``ca``.
    """

    cert: str
    key: str
    ca: str
    labels: tuple[str, str, str] = field(
        default=("certificate file", "key file", "CA file"), compare=False
    )
    besides: tuple[str, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """The paths that were given."""
        return tuple(path for path in (self.cert, self.key, self.ca, *self.besides) if path)


class Lifetime(NamedTuple):
    """The validity of a file's certificates, as POSIX timestamps."""

    not_before: float
    not_after: float


class _Facts(NamedTuple):
    """The fields read from one certificate; ``usages`` are DER object identifiers."""

    not_before: float
    not_after: float
    usages: frozenset[bytes]


def check_files(
    files: TlsFiles, *, purpose: Purpose, now: float | None = None
) -> dict[str, Lifetime]:
    """Check that the files exist, belong together and are valid now (a POSIX timestamp).

    Returns the validity of each file by path: that of the certificate that limits it, the first
    of a chain to expire, or the last of a CA file.

    Raises:
        ConfigError: one line that names the file and the problem.
    """
    now = time.time() if now is None else now
    found = {}
    if _pair_given(files, purpose):
        found[files.cert] = _check_pair(files, purpose, now)
    for path in filter(None, (files.ca, *files.besides)):
        found[path] = _check_ca(f"{files.labels[2]} {path}", path, now)
    return found


def _pair_given(files: TlsFiles, purpose: Purpose) -> bool:
    cert_label, key_label, _ = files.labels
    if files.cert and not files.key:
        raise ConfigError(f"{cert_label} {files.cert}: given without a {_bare(key_label)}")
    if files.key and not files.cert:
        raise ConfigError(f"{key_label} {files.key}: given without a {_bare(cert_label)}")
    if purpose == "server" and not files.cert:
        raise ConfigError(f"{cert_label}: required: a TLS server needs a certificate")
    return bool(files.cert)


def _bare(label: str) -> str:
    return label if label.startswith("-") else label.removesuffix(" file")


def _check_pair(files: TlsFiles, purpose: Purpose, now: float) -> Lifetime:
    cert = f"{files.labels[0]} {files.cert}"
    chain = _certificates(cert, files.cert)
    _read(f"{files.labels[1]} {files.key}", files.key)
    load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)
    leaf = chain[0]
    if now > leaf.not_after:
        raise ConfigError(f"{cert}: certificate expired on {_day(leaf.not_after)}")
    if now < leaf.not_before:
        raise ConfigError(f"{cert}: certificate is not valid before {_day(leaf.not_before)}")
    if leaf.usages and not leaf.usages & _ACCEPTED_USAGES[purpose]:
        raise ConfigError(f"{cert}: certificate cannot be used for a TLS {purpose}")
    return _lifetime(min(chain, key=_end))


def _check_ca(name: str, path: str, now: float) -> Lifetime:
    # During rotation an expired CA is next to a valid one; only if all are expired is it an error.
    authorities = _certificates(name, path)
    last = max(authorities, key=_end)
    if now > last.not_after:
        raise ConfigError(f"{name}: certificate expired on {_day(last.not_after)}")
    if all(now < facts.not_before for facts in authorities):
        first = min(facts.not_before for facts in authorities)
        raise ConfigError(f"{name}: certificate is not valid before {_day(first)}")
    return _lifetime(last)


def _end(facts: _Facts) -> float:
    return facts.not_after


def _lifetime(facts: _Facts) -> Lifetime:
    return Lifetime(facts.not_before, facts.not_after)


def authorities(path: str) -> frozenset[bytes]:
    """The certificates of a CA file as DER, to find certificates shared by two files.

    Raises:
        ConfigError: the file cannot be read, or is not PEM.
    """
    name = f"CA file {path}"
    try:
        return frozenset(map(_decode, pem_blocks(_read(name, path))))
    except ValueError as exc:
        raise ConfigError(f"{name}: contains a damaged certificate") from exc


def _openssl_reads(content: bytes) -> bool:
    """Whether the certificate is readable: OpenSSL's error does not tell it from the key."""
    try:
        with as_file(content) as path:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        return False
    return True


def load_pair(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Load certificate and key into a context.

    Raises:
        ConfigError: unreadable, or the key does not match.
    """
    cert, key = f"{files.labels[0]} {files.cert}", f"{files.labels[1]} {files.key}"

    def refuse_password() -> str:
        # Without this callback OpenSSL prompts on the terminal and waits.
        raise ConfigError(f"{key}: key is encrypted; use a key without a passphrase")

    chain, secret = _read(cert, files.cert), _read(key, files.key)
    try:
        with as_file(chain) as cert_path, as_file(secret) as key_path:
            context.load_cert_chain(cert_path, key_path, password=refuse_password)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            text = f"{key}: key does not match the certificate in {files.cert}"
        elif exc.reason in _CERT_REASONS:
            text = f"{cert}: {_CERT_REASONS[exc.reason]}"
        elif (exc.library or "").startswith("X509") or not _openssl_reads(chain):
            text = f"{cert}: not a certificate that OpenSSL can read"
        else:
            text = f"{key}: not a PEM private key"
        raise ConfigError(text) from exc
    except OSError as exc:
        raise ConfigError(f"{cert}: {exc.strerror or exc}") from exc


def load_authorities(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Load the files with authorities into a context.

    Raises:
        ConfigError: a file cannot be read.
    """
    for ca in filter(None, (files.ca, *files.besides)):
        name = f"{files.labels[2]} {ca}"
        try:
            with as_file(_read(name, ca)) as path:
                context.load_verify_locations(cafile=path)
        except OSError as exc:
            raise ConfigError(f"{name}: contains no readable certificates") from exc


_CERT_REASONS = {
    "EE_KEY_TOO_SMALL": "certificate key is too small",
    "CA_MD_TOO_WEAK": "certificate is signed with a weak digest",
    "CA_KEY_TOO_SMALL": "a certificate in the chain has a key that is too small",
}


def _read(name: str, path: str) -> bytes:
    try:
        return read_bytes(path, most_bytes=_MAX_FILE_BYTES)
    except TooLargeError as exc:
        raise ConfigError(f"{name}: is too large for a PEM file") from exc
    except FileNotFoundError as exc:
        raise ConfigError(f'{unreadable(name, exc)}; create one with "isthmus pki init"') from exc
    except (OSError, ValueError) as exc:
        raise unreadable(name, exc) from exc


def _certificates(name: str, path: str) -> list[_Facts]:
    blocks = pem_blocks(_read(name, path))
    if not blocks:
        raise ConfigError(f"{name}: contains no PEM certificate")
    try:
        return [_facts(_decode(block)) for block in blocks]
    except (ValueError, IndexError) as exc:
        raise ConfigError(f"{name}: contains a damaged certificate") from exc


def pem_blocks(content: bytes) -> list[bytes]:
    """The contents between each begin line and the next end line, in one pass."""
    return [content[begin:end] for (_, begin), (end, _) in pem_places(content, _BEGIN, _END)]


def pem_places(
    content: bytes, begin: re.Pattern[bytes], end: re.Pattern[bytes]
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The spans of the begin and end lines of each block."""
    at = 0
    while (first := begin.search(content, at)) is not None:
        last = end.search(content, first.end())
        if last is None:
            return
        yield first.span(), last.span()
        at = last.end()


def _decode(block: bytes) -> bytes:
    text = block.decode("ascii")
    return ssl.PEM_cert_to_DER_cert(f"{ssl.PEM_HEADER}\n{text.strip()}\n{ssl.PEM_FOOTER}")


def _day(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).date().isoformat()


# DER (X.690), as far as RFC 5280 §4.1 needs it.

_UTC_TIME, _EXTENSIONS, _VERSION = 0x17, 0xA3, 0xA0
_EXT_KEY_USAGE = bytes.fromhex("551d25")  # 2.5.29.37
_ANY_USAGE = bytes.fromhex("551d2500")
_ACCEPTED_USAGES: dict[Purpose, frozenset[bytes]] = {
    "server": frozenset({bytes.fromhex("2b06010505070301"), _ANY_USAGE}),
    "client": frozenset({bytes.fromhex("2b06010505070302"), _ANY_USAGE}),
}


def _facts(der: bytes) -> _Facts:
    tbs = _children(_children(_children(der)[0][1])[0][1])
    if tbs[0][0] == _VERSION:
        del tbs[0]
    not_before, not_after = (_time(*item) for item in _children(tbs[3][1]))
    usages: frozenset[bytes] = frozenset()
    for tag, content in tbs[6:]:
        if tag == _EXTENSIONS:
            usages = _usages(_children(_children(content)[0][1]))
    return _Facts(not_before, not_after, usages)


def _usages(extensions: Sequence[tuple[int, bytes]]) -> frozenset[bytes]:
    for _, extension in extensions:
        parts = _children(extension)
        if parts[0][1] == _EXT_KEY_USAGE:
            return frozenset(oid for _, oid in _children(_children(parts[-1][1])[0][1]))
    return frozenset()


def _time(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # RFC 5280 §4.1.2.5.1: 50 and later is 19YY
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _children(content: bytes) -> list[tuple[int, bytes]]:
    """Split the content of a constructed value into the tag and content of each part."""
    parts, pos = [], 0
    while pos < len(content):
        tag, size, pos = content[pos], content[pos + 1], pos + 2
        if size & 0x80:
            octets = size & 0x7F
            size, pos = int.from_bytes(content[pos : pos + octets], "big"), pos + octets
        if pos + size > len(content):
            raise ValueError("a length exceeds the data")
        parts.append((tag, content[pos : pos + size]))
        pos += size
    return parts
