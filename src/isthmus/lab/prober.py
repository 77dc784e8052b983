"""The runner's side of a probe: starts it in a namespace, sends requests, and awaits answers.

Plain blocking code, for any thread. probe.py is the other side.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from isthmus.lab.probe_messages import (
    AttemptOutcome,
    Json,
    ProbeTlsFiles,
    TrafficCount,
    read_outcome,
    write_attempt,
    write_way,
)
from isthmus.lab.python import module
from isthmus.lab.topology import LabAttempt, LabFrontend, Traffic

#: The extra time for an answer, beyond the request's own time limit; on a busy machine this
#: includes the probe's start.
ANSWER_S = 15.0
_END_S = 2.0


class ProbeLostError(OSError):
    """The probe has ended, or does not answer."""


class Prober:
    """A probe that runs in a namespace, or in the present one if that is None."""

    def __init__(
        self, namespace: str | None, *, tls: ProbeTlsFiles, log: Path | None = None
    ) -> None:
        self._where = namespace or "here"
        self._tls = asdict(tls)
        self._lock = threading.Lock()  # guards the state; never held while blocking
        self._sending = threading.Lock()
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Json]] = {}
        self._gone = ""
        self._traffic_s: dict[str, float] = {}
        inside = ["ip", "netns", "exec", namespace] if namespace is not None else []
        self._process = _start([*inside, *module("isthmus.lab.probe")], log)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._reader = threading.Thread(target=self._read, name=f"probe:{self._where}", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<Prober {self._where}, process {self._process.pid}>"

    def attempt(self, attempt: LabAttempt, way: LabFrontend | None) -> AttemptOutcome:
        """Make an attempt, directly or by a frontend whose placeholders are filled in.

        Raises:
            ProbeLostError: there is no answer.
            ValueError: the probe rejected the attempt.
        """
        request = {"do": "attempt", "attempt": write_attempt(attempt), "way": write_way(way)}
        answer = self._ask(request, attempt.timeout_s + attempt.seconds)
        return read_outcome(answer["outcome"])

    def fetch(self, url: str, *, timeout_s: float) -> tuple[int, str]:
        """Get a page from the probe's host: its status and its text.

        Raises:
            OSError: the page is unreachable; ProbeLostError if the probe has ended.
        """
        try:
            answer = self._ask({"do": "fetch", "url": url, "timeout_s": timeout_s}, timeout_s)
        except ValueError as exc:
            raise OSError(errno.EPROTO, str(exc)) from exc
        return int(answer["status"]), str(answer["body"])

    def start_traffic(self, traffic: Traffic, ways: Mapping[str, LabFrontend]) -> None:
        """Start background attempts; ``ways`` are the frontends that ``through`` names.

        Raises:
            ProbeLostError: there is no answer.
            ValueError: traffic of this name is running, or the probe rejected it.
        """
        attempts = [
            {
                "attempt": write_attempt(one),
                "way": write_way(ways[one.through] if one.through else None),
            }
            for one in traffic.attempts
        ]
        request = {
            "do": "traffic-start",
            "name": traffic.name,
            "attempts": attempts,
            "clients": traffic.clients,
            "pause_s": traffic.pause_s,
        }
        self._ask(request, 0.0)
        self._traffic_s[traffic.name] = max(one.timeout_s + one.seconds for one in traffic.attempts)

    def end_traffic(self, name: str) -> TrafficCount:
        """End background traffic once attempts in progress are done, and count.

        Raises:
            ProbeLostError: there is no answer.
            ValueError: there is no such traffic.
        """
        lasting_s = self._traffic_s.pop(name, 0.0)
        answer = self._ask({"do": "traffic-end", "name": name}, lasting_s)
        return TrafficCount(**answer["count"])

    def close(self) -> None:
        """End the probe; pending requests fail."""
        process = self._process
        self._lose("it was closed")
        if self._sending.acquire(timeout=_END_S):
            assert process.stdin is not None
            process.stdin.close()
            self._sending.release()
        for end in (None, process.terminate, process.kill):
            if end is not None:
                end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
                break
        # A grandchild that inherited the pipe keeps the reader alive: it is a daemon thread.
        self._reader.join(_END_S)
        if not self._reader.is_alive():
            assert process.stdout is not None
            process.stdout.close()

    # Requests.

    def _ask(self, request: Json, lasting_s: float) -> Json:
        id_ = next(self._ids)
        line = json.dumps({"id": id_, **request, "tls": self._tls}).encode() + b"\n"
        answered: Future[Json] = Future()
        with self._lock:
            self._check()
            self._waiting[id_] = answered
        try:
            self._send(line)
            answer = answered.result(lasting_s + ANSWER_S)
        except TimeoutError:
            raise ProbeLostError(
                errno.EBUSY, f"the probe in {self._where} does not answer"
            ) from None
        finally:
            with self._lock:
                self._waiting.pop(id_, None)
        return _checked(answer)

    def _send(self, line: bytes) -> None:
        """Write a whole request, to a probe that reads."""
        give_up_at = time.monotonic() + ANSWER_S
        if not self._sending.acquire(timeout=ANSWER_S):
            raise TimeoutError
        try:
            assert self._process.stdin is not None
            stdin = self._process.stdin.fileno()
            room = select.poll()
            room.register(stdin, select.POLLOUT)
            while line:
                if not room.poll(max(0.0, give_up_at - time.monotonic()) * 1000):
                    self._lose("it does not read its input")  # and may have got half a line
                    raise TimeoutError
                with contextlib.suppress(BlockingIOError):
                    line = line[os.write(stdin, line) :]
        except (BrokenPipeError, ValueError):
            return  # the probe has ended, or was closed: the reader reports it
        finally:
            self._sending.release()

    def _check(self) -> None:
        if self._gone:
            raise ProbeLostError(errno.ESRCH, f"the probe in {self._where} is gone: {self._gone}")

    def _read(self) -> None:
        out = self._process.stdout
        assert out is not None
        for line in out:
            try:
                answer = json.loads(line)
                id_ = answer["id"]
            except (ValueError, TypeError, KeyError):
                continue
            with self._lock:  # as another thread may call _lose()
                waiting = self._waiting.get(id_)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._lose(f"it ended with exit code {self._process.returncode}")

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._gone:
                return
            self._gone = why
            error = f"the probe in {self._where} is gone: {why}"
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ProbeLostError(errno.ESRCH, error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start(argv: list[str], log: Path | None) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as files:
        errors: Any = subprocess.DEVNULL
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            errors = files.enter_context(log.open("ab"))
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            start_new_session=True,
        )


def _checked(answer: Json) -> Json:
    error = answer.get("error")
    if error is None:
        return answer
    if "errno" in answer:
        raise OSError(answer["errno"] or errno.EIO, error)
    raise ValueError(error)
