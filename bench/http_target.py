"""The target of the measurements with curl: a small answer, and a large one by sendfile.

usage: http_target.py PORT; prints its address as a JSON line on stdout. Every answer closes its
connection, so that each fetch is a new one from end to end.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import tempfile

#: Paths, and the sizes of their answers in bytes.
SMALL, LARGE = "/small", "/large"
SIZES = {SMALL: 64, LARGE: 256 << 20}
_PIECE_BYTES = 4 << 20
_MOST_HEAD_BYTES = 64 * 1024


class _Answer(socketserver.StreamRequestHandler):
    """One request and its answer."""

    def handle(self) -> None:
        """Read a head, answer, close."""
        line = self.rfile.readline(_MOST_HEAD_BYTES)
        while self.rfile.readline(_MOST_HEAD_BYTES) not in (b"\r\n", b"\n", b""):
            pass
        path = line.decode("latin-1").split()[1] if line.count(b" ") > 1 else ""
        left = SIZES.get(path, 0)
        status = "200 OK" if path in SIZES else "404 Not Found"
        head = f"HTTP/1.1 {status}\r\nContent-Length: {left}\r\nConnection: close\r\n\r\n"
        self.request.sendall(head.encode())
        assert isinstance(self.server, _Target)
        while left:
            # The same piece repeatedly: disks are not measured.
            left -= os.sendfile(
                self.request.fileno(), self.server.piece, 0, min(left, _PIECE_BYTES)
            )


class _Target(socketserver.ThreadingTCPServer):
    """A thread per connection: there are few at a time."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, piece: int) -> None:
        self.piece = piece
        super().__init__(("127.0.0.1", port), _Answer)


def main() -> None:
    """Serve until the process is ended."""
    with tempfile.TemporaryFile() as piece:
        piece.write(bytes(_PIECE_BYTES))
        piece.flush()
        with _Target(int(sys.argv[1]), piece.fileno()) as target:
            host, port = target.server_address[:2]
            print(json.dumps({"address": f"{host!s}:{port}"}), flush=True)
            target.serve_forever()


if __name__ == "__main__":
    main()
