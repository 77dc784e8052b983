import ssl

import pytest

from isthmus.errors import ConfigError
from isthmus.net.settings_ciphers import OPENSSL_NAMES, TLS13_SUITES, check_tls, openssl_ciphers


@pytest.mark.parametrize("suite", OPENSSL_NAMES)
def test_openssl_knows_every_name(suite: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(openssl_ciphers([suite]) + ":@SECLEVEL=0")
    names = {cipher["name"] for cipher in context.get_ciphers()}
    assert names - set(TLS13_SUITES) == {OPENSSL_NAMES[suite]}


def test_a_suite_with_two_names_is_one() -> None:
    both = [name for name in OPENSSL_NAMES if "RSA_WITH_CHACHA20" in name]
    assert len(both) == 2
    assert openssl_ciphers(both) == "ECDHE-RSA-CHACHA20-POLY1305"


@pytest.mark.parametrize(
    ("version", "suites", "sentence"),
    [
        (
            "",
            ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA265",),
            "--cipher-suites: 'TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA265' is not a secure cipher"
            " suite, did you mean TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256?",
        ),
        (
            "VersionTLS12",
            ("TLS_AES_256_GCM_SHA384",),
            "--cipher-suites names only TLS 1.3 suites, which are always on,"
            " add one of TLS 1.2 or set --tls-min-version=VersionTLS13",
        ),
        (
            "VersionTLS10",
            (),
            "--tls-min-version VersionTLS10 is not safe, use VersionTLS12 or VersionTLS13",
        ),
    ],
)
def test_unsafe_or_unknown_is_one_sentence(
    version: str, suites: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_tls(version, suites)
    assert str(caught.value) == sentence
