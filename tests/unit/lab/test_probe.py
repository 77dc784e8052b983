"""A real probe process and its prober: requests of all kinds, nonsense, and a death."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from isthmus.lab import prober as prober_module
from isthmus.lab.probe_messages import Json, ProbeTlsFiles
from isthmus.lab.prober import ProbeLostError, Prober
from isthmus.lab.topology import (
    AttemptFailure,
    FrontendProtocol,
    LabAttempt,
    LabFrontend,
    Traffic,
    Verb,
)

NO_TLS = ProbeTlsFiles(ca_cert="/none", client_cert="/none", client_key="/none")


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    with Prober(None, tls=NO_TLS) as made:
        yield made


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"hello\n" if self.path != "/large" else b"x" * 5_000_000
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def get(target: str, **more: float) -> LabAttempt:
    return LabAttempt(source="", verb=Verb.GET, target=target, **more)  # type: ignore[arg-type]


def test_attempts(prober: Prober, web: str, silent: str) -> None:
    outcome = prober.attempt(get(web), None)
    assert outcome.worked and outcome.said == "hello"
    assert prober.attempt(get(f"http://{web}/missing"), None).failing is AttemptFailure.OTHER
    assert prober.attempt(get(silent, timeout_s=0.1), None).failing is AttemptFailure.TIMEOUT


def test_ways_that_lead_nowhere(prober: Prober, web: str) -> None:
    for protocol in FrontendProtocol:
        by_uds = LabFrontend(name="w", protocol=protocol, uds="/no/such/socket")
        outcome = prober.attempt(get(web), by_uds)
        assert outcome.failing is AttemptFailure.UNREACHABLE
        assert "connectivity server /no/such/socket cannot be reached" in outcome.said
        by_tcp = LabFrontend(name="w", protocol=protocol, tcp=web)
        outcome = prober.attempt(get(web), by_tcp)
        assert outcome.failing is AttemptFailure.OTHER and "No such file" in outcome.said
        with pytest.raises(ValueError, match="port"):
            prober.attempt(get(web), LabFrontend(name="w", protocol=protocol, tcp="no port"))


def test_pages(prober: Prober, web: str, silent: str) -> None:
    assert prober.fetch(f"http://{web}/", timeout_s=10.0) == (200, "hello\n")
    assert prober.fetch(f"http://{web}/missing", timeout_s=10.0) == (404, "hello\n")
    with pytest.raises(TimeoutError):
        prober.fetch(f"http://{silent}/", timeout_s=0.1)
    with pytest.raises(OSError, match="larger than"):
        prober.fetch(f"http://{web}/large", timeout_s=10.0)
    with pytest.raises(OSError, match="not an http or https URL"):
        prober.fetch("ftp://x/", timeout_s=10.0)
    with pytest.raises(FileNotFoundError):
        prober.fetch(f"https://{web}/", timeout_s=10.0)
    for path in ("a b", "\x01", "\N{LATIN SMALL LETTER U WITH DIAERESIS}", "\x7f"):
        with pytest.raises(OSError, match="a URL cannot contain"):
            prober.fetch(f"http://{web}/{path}", timeout_s=10.0)


def test_nobody_listens(prober: Prober) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        free = sock.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        prober.fetch(f"http://127.0.0.1:{free}/", timeout_s=10.0)


def test_slow_answers_do_not_hold_up_others(prober: Prober, web: str, silent: str) -> None:
    slow: list[object] = []
    thread = threading.Thread(
        target=lambda: slow.append(prober.attempt(get(silent, timeout_s=1.0), None))
    )
    thread.start()
    assert prober.attempt(get(web), None).worked
    assert not slow
    thread.join()
    assert len(slow) == 1


def test_traffic(prober: Prober, web: str) -> None:
    traffic = Traffic(name="t", attempts=(get(web),), pause_s=0.0)
    prober.start_traffic(traffic, {})
    with pytest.raises(ValueError, match="already running"):
        prober.start_traffic(traffic, {})
    for _ in range(5):  # it goes on meanwhile
        assert prober.attempt(get(web), None).worked
    count = prober.end_traffic("t")
    assert count.worked > 0 and not count.failures
    with pytest.raises(ValueError, match="'t'"):
        prober.end_traffic("t")
    prober.start_traffic(traffic, {})
    prober.end_traffic("t")


def test_a_probe_that_dies_is_missed_at_once(silent: str, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "probe"
    with Prober(None, tls=NO_TLS, log=log) as prober:
        seen: list[BaseException] = []

        def wait() -> None:
            try:
                prober.attempt(get(silent, timeout_s=60.0), None)
            except OSError as exc:
                seen.append(exc)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(prober._waiting) < 3:
            time.sleep(0.001)
        os.kill(prober._process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(20)
        assert [type(exc) for exc in seen] == [ProbeLostError] * 3
        assert "exit code -9" in str(seen[0])
        with pytest.raises(ProbeLostError, match="gone"):
            prober.fetch("http://127.0.0.1:1/", timeout_s=60.0)
    assert log.exists()


def test_who_waits_is_told_by_one_thread_at_a_time(
    web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    class Watched(Future[Json]):
        def set_result(self, result: Json) -> None:
            told.append(prober._lock.locked())
            super().set_result(result)

        def set_exception(self, exception: BaseException | None) -> None:
            told.append(prober._lock.locked())
            super().set_exception(exception)

    monkeypatch.setattr(prober_module, "Future", Watched)
    with Prober(None, tls=NO_TLS) as prober:
        assert prober.attempt(get(web), None).worked
        waiting = prober._waiting[0] = Watched()
    assert isinstance(waiting.exception(0), ProbeLostError)
    assert told == [True, True]


def test_closing_ends_the_process_and_who_waits(silent: str) -> None:
    prober = Prober(None, tls=NO_TLS)
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            prober.attempt(get(silent, timeout_s=60.0), None)
        except OSError as exc:
            seen.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    while not prober._waiting:
        time.sleep(0.001)
    prober.close()
    thread.join(20)
    assert [type(exc) for exc in seen] == [ProbeLostError]
    assert prober._process.returncode == 0
    prober.close()
    with pytest.raises(ProbeLostError, match="closed"):
        prober.attempt(get(silent), None)


def test_a_frozen_probe_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.lab.prober._END_S", 0.1)
    prober = Prober(None, tls=NO_TLS)
    os.kill(prober._process.pid, signal.SIGSTOP)
    prober.close()
    assert prober._process.returncode == -signal.SIGKILL


def test_no_namespace_of_that_name(tmp_path: Path) -> None:
    with (
        Prober("isthmus-no-such-namespace", tls=NO_TLS, log=tmp_path / "log") as prober,
        pytest.raises(ProbeLostError),
    ):
        prober.fetch("http://127.0.0.1:1/", timeout_s=1.0)


def probe_says(*lines: bytes) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "isthmus.lab.probe"],
        input=b"\n".join(lines),
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nonsense_is_answered() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "isthmus.lab.probe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        requests = [
            b"garbage",
            b"[1]",
            b'{"id": 1}',
            b'{"id": 2, "do": "fly"}',
            b'{"id": 3, "do": "attempt"}',
            b'{"id": 4, "do": "attempt", "tls": {}, "attempt": {}}',
            b'{"id": 5, "do": "attempt", "tls": {"ca_cert": "", "client_cert": "", '
            b'"client_key": ""}, "attempt": {"verb": "connect", "target": "x:1", "source": "", '
            b'"timeout_s": "soon"}}',
            b'{"id": 6, "do": "traffic-end", "name": "none"}',
            b'{"id": 7, "do": "traffic-start", "name": "x", "attempts": [], "clients": Infinity, '
            b'"pause_s": 0, "tls": {"ca_cert": "", "client_cert": "", "client_key": ""}}',
            b"[" * 100_000,
        ]
        answers = []
        for request in requests:
            process.stdin.write(request + b"\n\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert [answer["id"] for answer in answers] == [None, None, 1, 2, 3, 4, 5, 6, 7, None]
    assert all(answer["error"] for answer in answers)


def test_it_ends_with_its_input() -> None:
    assert probe_says() == []


def test_a_lean_start() -> None:
    code = "import sys, isthmus.lab.probe; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30)
    loaded = set(done.stdout.decode().split())
    heavy = {"google.protobuf", "cryptography", "aiohttp", "pyroute2", "hpack", "yaml", "rich"}
    assert not loaded & heavy
