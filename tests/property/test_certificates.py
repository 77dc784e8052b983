"""Certificate files hold anything: the reader answers with a sentence or with dates."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.net.certificates import Lifetime, TlsFiles, check_files
from isthmus.tools.pki import making as pki


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"))


def check(path: Path, made: pki.PkiFiles) -> dict[str, Lifetime]:
    return dict(check_files(TlsFiles(str(path), str(made.server_key), ""), purpose="server"))


def pem(der: bytes) -> bytes:
    body = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"


def test_what_was_made_is_read(made: pki.PkiFiles) -> None:
    assert list(check(made.server_cert, made)) == [str(made.server_cert)]


@given(data=st.data())
def test_a_damaged_certificate_is_a_sentence(made: pki.PkiFiles, data: st.DataObject) -> None:
    text = made.server_cert.read_bytes()
    der = bytearray(base64.b64decode(b"".join(text.splitlines()[1:-1])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(der) - 1))
        der[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(der)))
    damaged = made.directory / "damaged.crt"
    damaged.write_bytes(pem(bytes(der[:cut]) if data.draw(st.booleans()) else bytes(der)))
    try:
        check(damaged, made)
    except ConfigError as error:
        assert str(damaged) in str(error)
        assert "\n" not in str(error)


@given(garbage=st.binary(max_size=300), armoured=st.booleans())
def test_garbage_is_a_sentence(made: pki.PkiFiles, garbage: bytes, armoured: bool) -> None:
    path = made.directory / "garbage.crt"
    path.write_bytes(pem(garbage) if armoured else garbage)
    with pytest.raises(ConfigError, match=r"garbage\.crt"):
        check(path, made)
