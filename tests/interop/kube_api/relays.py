"""A TCP relay of a test's own: a load balancer, or a way to an API that can be cut and mended."""

from __future__ import annotations

import itertools
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Self

LIMIT_S = 20.0
HOST = "127.0.0.1"


class Relay:
    """Each new connection goes to the next of its ports, which may change; ``cut`` closes all."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._turns: Iterator[int] = itertools.cycle(ports)
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        self.port = 0
        self.mend()
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(LIMIT_S)
        self.cut()
        self._selector.close()

    def lead_to(self, *ports: int) -> None:
        """Lead new connections to these ports from now on."""
        with self._lock:
            self._turns = itertools.cycle(ports)

    def cut(self) -> None:
        """Refuse new connections and close the open ones."""
        with self._lock:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
            for sock in list(self._peers):
                self._drop(sock)

    def mend(self) -> None:
        """Take connections, at the same port as before."""
        with self._lock:
            self._listener = socket.create_server((HOST, self.port))
            self.port = int(self._listener.getsockname()[1])
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select(0.02):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                with self._lock:
                    if sock is self._listener:
                        self._accept(sock)
                    elif sock in self._peers:
                        self._pass_on(sock)

    def _accept(self, listener: socket.socket) -> None:
        near, _ = listener.accept()
        try:
            far = socket.create_connection((HOST, next(self._turns)), LIMIT_S)
        except OSError:
            near.close()
            return
        near.settimeout(LIMIT_S)
        for one, other in ((near, far), (far, near)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
            if data:
                self._peers[sock].sendall(data)
                return
        except OSError:
            pass
        self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        for gone in (sock, self._peers.get(sock)):
            if gone is not None and self._peers.pop(gone, None) is not None:
                self._selector.unregister(gone)
                gone.close()
