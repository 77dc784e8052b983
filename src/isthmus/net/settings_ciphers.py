"""TLS versions and cipher suites by the names that Go and IANA give them.

OpenSSL has names of its own for the suites of TLS 1.2; the table here is the translation. Only
suites that Go counts as secure are taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.errors import ConfigError
from isthmus.text.suggestions import nearest

TLS12 = "VersionTLS12"
TLS13 = "VersionTLS13"
_OLD_VERSIONS = ("VersionTLS10", "VersionTLS11")

OPENSSL_NAMES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
# RFC 8446 §B.4. Always on: neither Go nor Python's ssl lets TLS 1.3 suites be chosen.
TLS13_SUITES = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)


def check_tls(min_version: str, suites: Iterable[str]) -> None:
    """Hold --tls-min-version and --cipher-suites against what can be done safely.

    Raises:
        ConfigError: an old version, an unknown suite, or suites that leave TLS 1.2 none.
    """
    if min_version in _OLD_VERSIONS:
        raise ConfigError(f"--tls-min-version {min_version} is not safe, use {TLS12} or {TLS13}")
    chosen = list(suites)
    known = [*OPENSSL_NAMES, *TLS13_SUITES]
    for suite in chosen:
        if suite not in known:
            raise ConfigError(
                f"--cipher-suites: {suite!r} is not a secure cipher suite{nearest(suite, known)}"
            )
    if chosen and min_version != TLS13 and not openssl_ciphers(chosen):
        raise ConfigError(
            "--cipher-suites names only TLS 1.3 suites, which are always on,"
            f" add one of TLS 1.2 or set --tls-min-version={TLS13}"
        )


def openssl_ciphers(suites: Iterable[str]) -> str:
    """The TLS 1.2 suites as OpenSSL's colon list; empty means its default list."""
    names = (OPENSSL_NAMES[suite] for suite in suites if suite in OPENSSL_NAMES)
    return ":".join(dict.fromkeys(names))
