"""``isthmus dial`` and ``isthmus curl`` as processes, by a network that is dialed directly."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import isthmus
from isthmus.tools.pki import making as pki

LIMIT_S = 30.0
COMMAND = [sys.executable, "-m", "isthmus.cli.main"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(isthmus.__file__).parent.parent)}
CONFIG = """
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: here
  connection:
    type: direct
  cidrs: [127.0.0.0/8]
---
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: cluster
  connection:
    type: http-connect
    url: unix:///nowhere/isthmus.sock
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "connectivity.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(LIMIT_S)
        yield sock


def address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def serve(listener: socket.socket, talk: Callable[[socket.socket], None]) -> threading.Thread:
    def once() -> None:
        conn, _ = listener.accept()
        with conn:
            conn.settimeout(LIMIT_S)
            talk(conn)

    thread = threading.Thread(target=once, daemon=True)
    thread.start()
    return thread


def isthmus_command(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *args], input=stdin, capture_output=True, env=ENVIRONMENT, timeout=LIMIT_S
    )


def read_to_end(conn: socket.socket) -> bytes:
    return b"".join(iter(lambda: conn.recv(65536), b""))


def reset(conn: socket.socket) -> None:
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    conn.close()


# dial.


def test_the_end_of_stdin_is_a_half_close(config: str, listener: socket.socket) -> None:
    def reply(conn: socket.socket) -> None:
        conn.sendall(read_to_end(conn).upper())

    thread = serve(listener, reply)
    words = b"question " * 100_000
    done = isthmus_command("dial", address(listener), "--config", config, "-v", stdin=words)
    thread.join(LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == words.upper()
    said = done.stderr.decode()
    assert f"network here: the configuration puts {address(listener)} there" in said
    assert f"{config}:" in said
    assert "reached directly" in said


def test_the_target_ends_while_stdin_is_open(config: str, listener: socket.socket) -> None:
    thread = serve(listener, lambda conn: conn.sendall(b"bye\n"))
    process = subprocess.Popen(
        [*COMMAND, "dial", address(listener), "--config", config],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None and process.stdin is not None
    with process:
        assert process.stdout.read() == b"bye\n"
        assert process.wait(LIMIT_S) == 0
    thread.join(LIMIT_S)


def test_a_reset_is_exit_code_1_and_a_sentence(config: str, listener: socket.socket) -> None:
    def half(conn: socket.socket) -> None:
        conn.sendall(b"half")
        conn.recv(1)
        reset(conn)

    thread = serve(listener, half)
    done = isthmus_command("dial", address(listener), "--config", config, stdin=b"xyz")
    thread.join(LIMIT_S)
    assert done.returncode == 1
    assert done.stdout in (b"half", b"")
    assert done.stderr == b"isthmus: the connection was reset: reset by peer\n"


def test_a_dial_that_fails(config: str, listener: socket.socket) -> None:
    name = address(listener)
    listener.close()
    done = isthmus_command("dial", name, "--config", config)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert said.startswith(f"isthmus: cannot dial {name}: connection refused")
    assert said.count("\n") == 1
    done = isthmus_command("dial", name, "--config", config, "--network", "CLUSTER", "-v")
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "connectivity server /nowhere/isthmus.sock" in said
    assert "network CLUSTER: as --network says" in said
    assert "by HTTPConnect at the UNIX socket /nowhere/isthmus.sock" in said


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["127.0.0.1", "--config", "{config}"], "ADDRESS '127.0.0.1': no port in '127.0.0.1'"),
        (["127.0.0.1:80", "--config", ""], "--config is empty"),
        (["127.0.0.1:80", "--config", "{config}", "--network", ""], "--network is empty"),
        (
            ["127.0.0.1:80", "--config", "{config}", "--timeout", "nan"],
            "--timeout: nan is not a number of seconds",
        ),
        (["127.0.0.1:80", "--config", "/nowhere.yaml"], "cannot read /nowhere.yaml: no such file"),
        (
            ["127.0.0.1:80", "--config", "{config}", "--network", "moon"],
            "Unknown network 'moon': the configuration has cluster, here",
        ),
        (
            ["192.0.2.1:80", "--config", "{config}"],
            "Unknown network of 192.0.2.1:80: no network of the configuration names it;"
            " name one with --network",
        ),
    ],
)
def test_a_wrong_word_is_one_sentence(config: str, args: list[str], sentence: str) -> None:
    done = isthmus_command("dial", *(arg.format(config=config) for arg in args))
    assert done.returncode == 2
    assert done.stderr.decode() == f"isthmus: {sentence}\n"


# curl.


def answer(conn: socket.socket, heads: list[bytes], reply: bytes) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += conn.recv(65536)
    size = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    while len(head.partition(b"\r\n\r\n")[2]) < size:
        head += conn.recv(65536)
    heads.append(head)
    conn.sendall(reply)


def test_curl(config: str, listener: socket.socket) -> None:
    heads: list[bytes] = []
    reply = b"HTTP/1.1 404 Not Found\r\nX-Here: yes\r\nContent-Length: 5\r\n\r\nsorry"
    url = f"http://{address(listener)}/x?y=z"
    thread = serve(listener, lambda conn: answer(conn, heads, reply))
    done = isthmus_command("curl", url, "--config", config, "-i", "-H", "X-Asked: now", "-v")
    thread.join(LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"HTTP/1.1 404 Not Found\r\nX-Here: yes\r\nContent-Length: 5\r\n\r\nsorry"
    assert heads[0].startswith(b"GET /x?y=z HTTP/1.1\r\n")
    assert b"X-Asked: now\r\n" in heads[0]
    assert b"* answered: HTTP/1.1 404 Not Found" in done.stderr
    thread = serve(listener, lambda conn: answer(conn, heads, reply))
    done = isthmus_command("curl", url, "--config", config, "-d", "@-", stdin=b"a=b")
    thread.join(LIMIT_S)
    assert done.stdout == b"sorry"
    assert heads[1].startswith(b"POST /x?y=z ") and heads[1].endswith(b"\r\n\r\na=b")


def test_curl_over_https(config: str, listener: socket.socket, tmp_path: Path) -> None:
    import ssl

    files = pki.init(tmp_path / "pki")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server_cert, files.server_key)
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    def talk(conn: socket.socket) -> None:
        try:
            with context.wrap_socket(conn, server_side=True) as secured:
                answer(secured, [], reply)
                secured.recv(1)
        except OSError:
            return

    url = f"https://{address(listener)}/"
    for args, code in ((["--cacert", str(files.ca_cert)], 0), (["-k"], 0), ([], 1)):
        thread = serve(listener, talk)
        done = isthmus_command("curl", url, "--config", config, *args)
        thread.join(LIMIT_S)
        assert done.returncode == code, done.stderr
        assert done.stdout == (b"ok" if code == 0 else b"")
        assert b"certificate" in done.stderr if code else not done.stderr


@pytest.mark.parametrize(
    "reply", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b""]
)
def test_curl_of_what_is_not_http(config: str, listener: socket.socket, reply: bytes) -> None:
    thread = serve(listener, lambda conn: answer(conn, [], reply))
    done = isthmus_command("curl", f"http://{address(listener)}/", "--config", config)
    thread.join(LIMIT_S)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1


def test_curl_has_a_deadline(config: str, listener: socket.socket) -> None:
    done = isthmus_command(
        "curl", f"http://{address(listener)}/", "--config", config, "--timeout", "0.2"
    )
    assert done.returncode == 1
    assert done.stderr == b"isthmus: timed out\n"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["ftp://x/"], "URL: not an http or https URL: 'ftp://x/'"),
        (["http://x y/"], "URL: "),
        (["http://x/ü"], "URL: "),
        (["http://127.0.0.1/", "-H", "nothing"], "-H 'nothing': not a header, which is NAME: V"),
        (["http://127.0.0.1/", "-H", "ü: a"], "-H 'ü: a': not a header, which is NAME: VALUE"),
        (["http://127.0.0.1/", "-H", "a: ü"], "-H 'a: ü': only printable ASCII"),
        (["http://127.0.0.1/", "-H", "a: b\r\nc: d"], r"-H 'a: b\r\nc: d': only printable"),
        (["http://127.0.0.1/", "-X", "GE T"], "-X 'GE T': not an HTTP method"),
        (["http://127.0.0.1/", "-X", ""], "--request is empty"),
        (["https://127.0.0.1/", "--cacert", ""], "--cacert is empty"),
    ],
)
def test_curl_of_wrong_words(config: str, args: list[str], sentence: str) -> None:
    done = isthmus_command("curl", *args, "--config", config)
    assert done.returncode == 2
    said = done.stderr.decode()
    assert said.startswith(f"isthmus: {sentence}") and said.count("\n") == 1
