"""The file of a password: what is in it, and what becomes of changes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.sidecar.password import PasswordFile, read_password


@pytest.mark.parametrize(
    ("raw", "password"),
    [(b"secret", b"secret"), (b"secret\n", b"secret"), (b"a b\r\n", b"a b"), (b"\n\n", b"\n")],
)
def test_a_line_end_is_no_part_of_it(tmp_path: Path, raw: bytes, password: bytes) -> None:
    (tmp_path / "p").write_bytes(raw)
    assert read_password(str(tmp_path / "p")) == password


@pytest.mark.parametrize(
    ("raw", "said"), [(b"", "is empty"), (b"\n", "is empty"), (b"x" * 256, "at most 255 bytes")]
)
def test_of_no_use(tmp_path: Path, raw: bytes, said: str) -> None:
    (tmp_path / "p").write_bytes(raw)
    with pytest.raises(ConfigError, match=said):
        read_password(str(tmp_path / "p"))


def test_no_file(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "none"), "a\0b"):
        with pytest.raises(ConfigError, match="--password-file"):
            read_password(path)


def test_changes(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("first")
    file = PasswordFile("me", str(path))
    asyncio.run(file.prepare())
    assert file.current is not None
    assert file.current.match(b"me", b"first")
    before = file.current
    file.look()
    assert file.current is before
    path.write_text("")
    file.look()
    file.look()
    assert file.current is before
    (tmp_path / "new").write_text("second\n")
    os.replace(tmp_path / "new", path)
    file.look()
    assert file.current.match(b"me", b"second")
    path.unlink()
    file.look()
    assert file.current.match(b"me", b"second")
