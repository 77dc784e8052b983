"""Reading files that may have become something else: no read waits, each error names the kind."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.net.files import TooLargeError, as_file, read_bytes, read_part, read_text


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_bytes(path) == read_bytes(str(path), most_bytes=10) == b"0123456789"
    assert read_part(path, 4) == b"0123"
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_bytes(link) == b"0123456789"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 1 << 40)  # a hole, as a user can make without a terabyte
    with pytest.raises(TooLargeError, match="is larger than 1024 bytes"):
        read_bytes(path, most_bytes=1024)
    with pytest.raises(ConfigError, match="is larger than"):
        read_text(str(path))


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "directory"])
def test_what_is_no_file_is_said(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    with socket.socket(socket.AF_UNIX) as sock:
        match kind:
            case "pipe":
                os.mkfifo(path)
            case "socket":
                sock.bind(str(path))
            case "device":
                path.symlink_to("/dev/zero")
            case _:
                path.mkdir()
        for read in (read_bytes, lambda at: read_part(at, 1)):
            with pytest.raises(OSError, match=rf"(?i)is a {kind}"):
                read(path)
        with pytest.raises(ConfigError, match=rf"(?i)is a {kind}"):
            read_text(str(path))


def test_text_that_is_cut_within_a_character(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ä\r\n" * 10)
    assert read_text(str(path)) == "ä\n" * 10
    assert read_text(str(path), most_chars=3) == "ä\nä"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_text(str(path))


def test_a_path_for_what_was_read() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with as_file(b"content") as path:
        assert Path(path).read_bytes() == b"content"
    assert not Path(path).exists() or Path(path).read_bytes() != b"content"
    assert len(os.listdir("/proc/self/fd")) == before
