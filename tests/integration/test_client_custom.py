"""The custom dialer of examples/, installed beside Isthmus and used by ``isthmus dial``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import isthmus

SOURCE = Path(isthmus.__file__).parent.parent
EXAMPLE = Path(__file__).parents[2] / "examples" / "jump-dialer"
LIMIT_S = 60.0


def install(into: Path) -> None:
    """Install it as a user would, but for the index: all it takes is here."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-index", "--no-deps", "--no-build-isolation", "--target", str(into)),
            str(EXAMPLE),
        ],
        check=True,
        timeout=LIMIT_S,
    )


def serve_jump(listener: socket.socket, asked: list[bytes]) -> None:
    conn, _ = listener.accept()
    with conn:
        conn.settimeout(LIMIT_S)
        assert conn.recv(3) == b"\x05\x01\x00"
        conn.sendall(b"\x05\x00")
        asked.append(conn.recv(300))
        conn.sendall(b"\x05\x00\x00\x01" + bytes(6))
        words = b""
        while data := conn.recv(65536):
            words += data
        conn.sendall(words.upper())


def dial(path: Path, config: Path, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "isthmus.cli.main", "dial", "10.0.0.5:22", "--config", config, "-v"],
        input=stdin,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{path}"},
        timeout=LIMIT_S,
    )


def test_installed_from_the_example(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    config = tmp_path / "connectivity.yaml"
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        text = (EXAMPLE / "connectivity.yaml").read_text()
        assert "192.0.2.20" in text and '"1080"' in text
        text = text.replace("192.0.2.20", "127.0.0.1")
        config.write_text(text.replace('"1080"', f'"{listener.getsockname()[1]}"'))

        done = dial(site, config, b"")
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(b"isthmus: unknown dialer 'jump'")

        install(site)
        thread = threading.Thread(target=serve_jump, args=(listener, asked))
        thread.start()
        done = dial(site, config, b"through the jump host")
        thread.join(LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"THROUGH THE JUMP HOST"
    assert b"by the custom dialer 'jump'" in done.stderr
    assert asked == [b"\x05\x01\x00\x01\x0a\x00\x00\x05\x00\x16"]


def test_the_tests_of_the_example_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=EXAMPLE,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{EXAMPLE}", "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    assert b"2 passed" in done.stdout
