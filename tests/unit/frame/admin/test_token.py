"""The token's file: what is one, and who may read it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.frame.admin.guard import MAX_BYTES, OperatorToken, read_token


@pytest.mark.parametrize(
    ("content", "token"),
    [
        (b"0123456789abcdef", b"0123456789abcdef"),
        (b"  0123456789abcdef!\r\n\n", b"0123456789abcdef!"),
    ],
)
def test_a_token(tmp_path: Path, content: bytes, token: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    assert read_token(str(path)) == token


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the token must have at least 16 characters, not 0; create one with openssl rand"),
        (b"0123456789abcde\n", "the token must have at least 16 characters, not 15;"),
        (b"x" * (MAX_BYTES + 1), f"the token must have at most {MAX_BYTES} bytes"),
        (b"0123456789 abcdef", "the token must be one word of letters, digits and punctuation"),
        (b"0123456789\nabcdef0", "the token must be one word of letters, digits and punctuation"),
        (
            "0123456789abcdef\u00fc".encode(),
            "the token must be one word of letters, digits and punctuation",
        ),
        (b"0123456789abcdef\0", "the token must be one word of letters, digits and punctuation"),
    ],
)
def test_no_token(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        OperatorToken(str(path))
    said = str(caught.value).removeprefix(f"--admin-token-file {path}: ")
    assert said.startswith(sentence) and "56789abcde" not in said


@pytest.mark.parametrize("name", ["none", ".", "a\0b"])
def test_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read --admin-token-file "):
        OperatorToken(f"{tmp_path}/{name}")


@pytest.mark.parametrize(("mode", "said"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_token_that_everybody_can_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, said: bool
) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    path.chmod(mode)
    file = OperatorToken(str(path))
    assert ("every user of this machine can read the admin token" in caplog.text) is said
    assert "0123456789abcdef" not in repr(file) + caplog.text


def test_a_pipe_is_read_once_and_never_waited_for_again(tmp_path: Path) -> None:
    pipe = tmp_path / "token"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("0123456789abcdef\n",))
    writer.start()
    file = OperatorToken(str(pipe))
    writer.join()
    # Writing has changed its times since it was looked at; nobody will write again.
    assert file.matches("0123456789abcdef")


def test_a_pipe_in_place_of_the_file_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    file = OperatorToken(str(path))
    path.unlink()
    os.mkfifo(path)
    assert file.matches("0123456789abcdef")
    assert "admin token not reloaded" in caplog.text
    # Also with somebody at its other end, who has not written yet.
    end = os.open(path, os.O_RDWR)
    try:
        assert file.matches("0123456789abcdef")
    finally:
        os.close(end)
    path.unlink()
    path.write_text("fedcba9876543210")
    assert file.matches("fedcba9876543210")
