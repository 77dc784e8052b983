"""A door in front of an API server, in plain HTTP: it can be shut, and ends streams politely.

A watch that breaks is simply listed again. One that ends as the API ends it is asked for from where
it was, which is how a version comes to be too old (410).
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kube.api import Api
from kube.node_proxy_ground import Node
from kube.programs import LIMIT_S, free_port, inside

_CHUNK = 65536


class Door:
    """Requests wait while it is shut. ``gone`` counts the answers that were 410."""

    def __init__(self, api: Api, port: int) -> None:
        self.api = api
        self.url = f"http://127.0.0.1:{port}"
        self.open = threading.Event()
        self.open.set()
        self.gone = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, door: Door, *args: object) -> None:
        self._door = door
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Pass a request on, and what comes back as it comes."""
        self._door.open.wait(LIMIT_S)
        with contextlib.suppress(OSError), self._door.api.connection() as over:
            headers = {
                "Authorization": f"Bearer {self._door.api.token}",
                "Accept": "application/json",
            }
            over.request("GET", self.path, headers=headers)
            if over.sock is not None:
                over.sock.settimeout(None)  # a watch is quiet
            answer = over.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with contextlib.suppress(http.client.HTTPException, ConnectionError):
                while data := answer.read1(_CHUNK):
                    self._door.gone += answer.status == 410 or b'"code":410' in data
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def door(api: Api, node: Node) -> Iterator[Door]:
    """Have one on a node, for the time of the block."""
    port = free_port(node.namespace)
    made = Door(api, port)
    serve = partial(ThreadingHTTPServer, ("127.0.0.1", port), partial(_Handler, made))
    server: ThreadingHTTPServer = inside(node.namespace, serve)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="door")
    thread.start()
    try:
        yield made
    finally:
        made.open.set()
        server.shutdown()
        thread.join(LIMIT_S)
        server.server_close()
