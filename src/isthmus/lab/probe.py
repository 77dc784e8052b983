"""The probe of a host: a process that makes attempts there on request.

``python -m isthmus.lab.probe`` reads requests from stdin and writes answers to stdout, each one
line of JSON. Answers come in any order and have the request's ``id``. prober.py is the other side.

    {"id": 1, "do": "attempt", "attempt": {…}, "way": {…} | null, "tls": {…}}
        → {"id": 1, "outcome": {…}}
    {"id": 2, "do": "fetch", "url": "http://…", "timeout_s": 2.0, "tls": {…}}
        → {"id": 2, "status": 200, "body": "…"}
    {"id": 3, "do": "traffic-start", "name": "…", "clients": 2, "pause_s": 0.05, "tls": {…},
     "attempts": [{"attempt": {…}, "way": …}, …]}
        → {"id": 3}
    {"id": 4, "do": "traffic-end", "name": "…"}
        → {"id": 4, "count": {…}}

The answer to a failed request has ``error``, a message, and ``errno`` if there is one. The probe
ends when stdin does, or by SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.errors import DialError, IsthmusError
from isthmus.lab import attempts
from isthmus.lab.attempts import AttemptMeans, BackgroundTraffic
from isthmus.lab.pipes import Dialer
from isthmus.lab.probe_messages import (
    Json,
    ProbeTlsFiles,
    as_object,
    read_attempt,
    read_way,
    write_outcome,
)
from isthmus.lab.topology import FrontendProtocol, LabFrontend
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import NO_METADATA_BY_NAME
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.dial.dialers.http2_pool import PooledDialer
    from isthmus.dial.dialers.through_server import ServerPlace

MOST_LINE_BYTES = 4 * 1024 * 1024


class HostProbe:
    """Executes requests concurrently."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[Json], None]) -> None:
        self._loop = loop
        self._answer = answer
        self._poller = Poller(loop)
        self._resolver = Resolver(loop)
        self._direct = DirectDialer(
            loop, self._poller, self._resolver, metadata=NO_METADATA_BY_NAME
        )
        self._shared_dialers: dict[tuple[LabFrontend, ProbeTlsFiles], PooledDialer] = {}
        self._traffic: dict[str, BackgroundTraffic] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, line: bytes) -> None:
        request: Json = {}
        try:
            request = as_object(json.loads(line))
        except (ValueError, RecursionError) as exc:
            self._answer({"id": None, "error": f"invalid request: {exc}"})
            return
        task = self._loop.create_task(self._serve(request), name=f"request:{request.get('do')}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = [*self._tasks, *(task for one in self._traffic.values() for task in one.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for dialer in self._shared_dialers.values():
            dialer.close()
        self._resolver.close()
        self._poller.shut_down()

    async def _serve(self, request: Json) -> None:
        answer: Json
        try:
            answer = await self._do(request)
        except OSError as exc:
            answer = {"error": exc.strerror or str(exc) or type(exc).__name__, "errno": exc.errno}
            if isinstance(exc, TimeoutError):
                answer["errno"] = errno.ETIMEDOUT
        except KeyError as exc:
            answer = {"error": f"the request has no {exc}"}
        except (IsthmusError, attempts.WrongAnswerError, ValueError, TypeError) as exc:
            answer = {"error": str(exc) or type(exc).__name__}
        except Exception as exc:  # any error: the requester waits for an answer
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        self._answer({"id": request.get("id"), **answer})

    async def _do(self, request: Json) -> Json:
        match request.get("do"):
            case "attempt":
                means = self._means(request, request.get("way"))
                outcome = await attempts.make(read_attempt(request["attempt"]), means)
                return {"outcome": write_outcome(outcome)}
            case "fetch":
                return await self._fetch(request)
            case "traffic-start":
                return self._start_traffic(request)
            case "traffic-end":
                count = await self._traffic.pop(str(request["name"])).end()
                return {"count": asdict(count)}
            case other:
                raise ValueError(f"unknown request {other!r}")

    async def _fetch(self, request: Json) -> Json:
        page = attempts.PageUrl.parse(str(request["url"]))
        timeout_s = float(request["timeout_s"])
        try:
            async with asyncio.timeout(timeout_s):
                means = self._means(request, None)
                status, _, body = await attempts.get(page, means, timeout_s=timeout_s)
        except DialError as exc:
            raise OSError(attempts.ERRNO_OF_DIAL.get(exc.reason, errno.EIO), str(exc)) from exc
        return {"status": status, "body": body.decode("utf-8", "replace")}

    def _start_traffic(self, request: Json) -> Json:
        name = str(request["name"])
        if name in self._traffic:
            raise ValueError(f"traffic {name!r} is already running")
        asked = [
            (read_attempt(one["attempt"]), self._means(request, one.get("way")))
            for one in request["attempts"]
        ]
        self._traffic[name] = BackgroundTraffic(
            asked, clients=int(request["clients"]), pause_s=float(request["pause_s"])
        )
        return {}

    def _means(self, request: Json, way: Json | None) -> AttemptMeans:
        tls = ProbeTlsFiles(**as_object(request["tls"]))
        return AttemptMeans(
            dialer=self._direct if way is None else self._through(read_way(way), tls),
            poller=self._poller,
            trust=partial(context, tls),
        )

    def _through(self, way: LabFrontend, tls: ProbeTlsFiles) -> Dialer:
        # Imported on demand: most probes never speak gRPC.
        from isthmus.dial.dialers.through_server import ServerPlace

        alpn = "" if way.protocol is FrontendProtocol.HTTP_CONNECT else "h2"
        if way.uds:
            place = ServerPlace(uds=way.uds)
        else:
            place = ServerPlace(tcp=HostPort.parse(way.tcp), context=partial(context, tls, alpn))
        if way.protocol is not FrontendProtocol.HTTP_CONNECT:
            return self._shared_dialer(way, tls, place)
        from isthmus.dial.dialers.through_connect import ConnectDialer

        return ConnectDialer(self._loop, self._poller, self._resolver, place)

    def _shared_dialer(self, way: LabFrontend, tls: ProbeTlsFiles, place: ServerPlace) -> Dialer:
        """The dialer of this way, shared by attempts: it keeps its connection to the server."""
        from isthmus.dial.dialers.through_grpc import GrpcDialer, PayloadDialer

        found = self._shared_dialers.get((way, tls))
        if found is None:
            kind = GrpcDialer if way.protocol is FrontendProtocol.GRPC else PayloadDialer
            found = kind(self._loop, self._poller, self._resolver, place)
            self._shared_dialers[way, tls] = found
        return found


# TLS.


def context(tls: ProbeTlsFiles, alpn: str = "") -> ssl.SSLContext:
    stamp = tuple(
        os.stat(path).st_mtime_ns for path in (tls.ca_cert, tls.client_cert, tls.client_key)
    )
    return _context(tls, alpn, stamp)


@lru_cache(maxsize=8)
def _context(tls: ProbeTlsFiles, alpn: str, stamp: tuple[int, ...]) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=tls.ca_cert)
    made.load_cert_chain(tls.client_cert, tls.client_key)
    if alpn:
        made.set_alpn_protocols([alpn])
    return made


# The process.


async def serve(stdin: int, stdout: int) -> None:
    """Serve requests until stdin ends, or SIGTERM arrives."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    probe = HostProbe(loop, partial(_write, stdout))
    loop.add_signal_handler(signal.SIGTERM, over.set)
    # A thread, because stdin may be a file; asyncio reads only pipes.
    reading = threading.Thread(
        target=_read, args=(stdin, loop, probe, over), name="requests", daemon=True
    )
    reading.start()
    try:
        await over.wait()
    finally:
        await probe.close()


def _read(
    stdin: int, loop: asyncio.AbstractEventLoop, probe: HostProbe, over: asyncio.Event
) -> None:
    kept = b""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the loop has already ended
        while data := os.read(stdin, 64 * 1024):
            *lines, kept = (kept + data).split(b"\n")
            for line in lines:
                if line.strip():
                    loop.call_soon_threadsafe(probe.take, line)
            if len(kept) > MOST_LINE_BYTES:
                break  # a request is too long, and its rest cannot be parsed
        loop.call_soon_threadsafe(over.set)


def _write(stdout: int, answer: Json) -> None:
    left = json.dumps(answer).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):  # the requester is gone: stdin ends next
        while left:
            left = left[os.write(stdout, left) :]


def main() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.stdin.fileno(), sys.stdout.fileno()))


if __name__ == "__main__":
    main()
