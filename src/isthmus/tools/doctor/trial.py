"""A handshake in memory, between contexts as our programs make them, to hear what a peer says.

OpenSSL itself judges chains, names, usages and dates; nothing of that is repeated here.
"""

from __future__ import annotations

import ssl

from isthmus.net.certificates import Purpose, TlsFiles
from isthmus.net.contexts import client_context, server_context

_TURNS = 10
# openssl/x509_vfy.h; Python has no name for it.
_NO_CHECK_TIME = 0x200000


def verdict(
    files: TlsFiles, purpose: Purpose, *, name: str = "", dates: bool = False
) -> tuple[int, str]:
    """Show the certificate to somebody who trusts the authorities of ``files``.

    OpenSSL's number and words for what is wrong with it; (0, "") if nothing is. Without a
    ``name``, and without ``dates``, these do not count.

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
        # Its own certificate is nobody's business here: the client does not look at it.
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
