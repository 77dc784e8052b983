"""Port-forwards to pods: a few ``kubectl port-forward`` children, started when needed.

kubectl rather than our own client: it knows every kubeconfig, credential plugin and version of the
protocol, and exists, since this is its plugin. A child listens on loopback at a port that the
kernel chooses; the least recently used child is ended to make room for another.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from isthmus.tools.kubectl.rules_pods import PodPort

#: A child takes about 50 MB.
MOST_OPEN = 16
OPEN_S = 15.0
#: A child reports why it closed a connection a moment after it did.
_COMPLAINT_S = 1.0
_KEPT_FAILURE_S = 5.0
_END_S = 5.0
_MOST_CHARS = 300
_LISTENS = re.compile(r"Forwarding from 127\.0\.0\.1:([0-9]+) -> ")
_KLOG = re.compile(
    r'^[EWIF][0-9]{4} \S+ +[0-9]+ \S+\] (?:"Unhandled Error" (?:logger="\S*" )?err=)?'
)
_NO_COMPLAINT = ("Handling connection for ", "Forwarding from ")


@dataclass(slots=True, kw_only=True)
class _Child:
    """A kubectl for one port: where it listens, its error, and how many connections use it."""

    process: subprocess.Popen[str]
    of: int
    port: int = 0
    users: int = 0
    complaint: str = ""
    listens: threading.Event = field(default_factory=threading.Event)
    complained: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        """Read its output until it exits."""
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                found = _LISTENS.match(line)
                if found:
                    self.port = int(found[1])
                    self.listens.set()
                elif not line.startswith(_NO_COMPLAINT):
                    # Older versions go on after a failure; newer ones also report its consequences.
                    self.complaint = self.complaint or explained(line.strip(), self.of)
                    self.complained.set()
        self.listens.set()
        self.complained.set()

    def end(self) -> None:
        """End it and wait until it has exited."""
        self.process.terminate()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Forwards:
    """All port-forwards of a command; ``kubectl`` is the command with its global flags."""

    def __init__(
        self, kubectl: Sequence[str], *, most_open: int = MOST_OPEN, open_s: float = OPEN_S
    ) -> None:
        self._kubectl = kubectl
        self._most_open = most_open
        self._open_s = open_s
        self._changed = threading.Condition()
        #: The least recently used child is first.
        self._children: dict[PodPort, _Child] = {}
        self._failed: dict[PodPort, tuple[float, str]] = {}

    def reach(self, to: PodPort) -> PodReach:
        """The way to an admin port."""
        return PodReach(self, to)

    def close(self) -> None:
        """End every child."""
        with self._changed:
            children, self._children = list(self._children.values()), {}
        for child in children:
            child.end()

    def connect(self, to: PodPort) -> socket.socket:
        """Connect to a port in a pod; ``release`` follows.

        Raises:
            OSError: the port cannot be reached; the text is the reason.
        """
        if to.trouble:
            raise OSError(to.trouble)
        child = self._take(to)
        try:
            if not child.listens.wait(self._open_s):
                raise OSError(f"kubectl port-forward did not start within {self._open_s:g} s")
            if not child.port:
                raise OSError(child.complaint or "kubectl port-forward ended without a reason")
            return socket.create_connection(("127.0.0.1", child.port), self._open_s)
        except OSError as error:
            with self._changed:
                self._failed[to] = (time.monotonic(), error.strerror or str(error))
            self.release(to)
            self._drop(to)
            raise

    def release(self, to: PodPort) -> None:
        """Report that a connection is closed: its child may be ended to make room."""
        with self._changed:
            if to in self._children:
                self._children[to].users -= 1
            self._changed.notify_all()

    def complaint(self, to: PodPort) -> str:
        """kubectl's reason for a failed connection; empty if it gives none."""
        with self._changed:
            child = self._children.get(to)
        if child is None:
            return ""
        child.complained.wait(_COMPLAINT_S)
        return child.complaint

    def _take(self, to: PodPort) -> _Child:
        due = time.monotonic() + self._open_s
        with self._changed:
            at, why = self._failed.get(to, (0.0, ""))
            if why and time.monotonic() - at < _KEPT_FAILURE_S:
                raise OSError(why)
            child = self._children.pop(to, None)
            if child is not None and child.process.poll() is not None and not child.users:
                child = None  # it exits when the pod ends, or after a failed connection
            while child is None and len(self._children) >= self._most_open:
                if not self._evict() and not self._changed.wait(due - time.monotonic()):
                    raise OSError(f"no port-forward became free within {self._open_s:g} s")
                child = self._children.pop(to, None)
            child = child or self._start(to)
            if not child.users and child.port:
                child.complaint = ""
                child.complained.clear()
            child.users += 1
            self._children[to] = child
            return child

    def _evict(self) -> bool:
        for to, child in self._children.items():
            if not child.users:
                del self._children[to]
                child.end()
                return True
        return False

    def _drop(self, to: PodPort) -> None:
        with self._changed:
            child = self._children.get(to)
            if child is None or child.users:
                return
            del self._children[to]
        child.end()

    def _start(self, to: PodPort) -> _Child:
        argv = [
            *self._kubectl, "port-forward", f"--namespace={to.namespace}", "--address=127.0.0.1",
            f"pod/{to.pod}", f":{to.port}",
        ]  # fmt: skip
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        child = _Child(process=process, of=to.port)
        threading.Thread(target=child.read, name="port-forward", daemon=True).start()
        return child


@dataclass(frozen=True, slots=True)
class PodReach:
    """The way to one port of a pod; a ``Reach`` of the admin client."""

    forwards: Forwards
    to: PodPort

    @property
    def address(self) -> str:
        """POD.NAMESPACE:PORT."""
        return self.to.address

    def connect(self) -> socket.socket:
        """As in ``Forwards``."""
        return self.forwards.connect(self.to)

    def release(self) -> None:
        """As in ``Forwards``."""
        self.forwards.release(self.to)

    def complaint(self) -> str:
        """As in ``Forwards``."""
        return self.forwards.complaint(self.to)

    def at(self, port: int) -> PodReach:
        """The way to another port of this pod."""
        return PodReach(self.forwards, replace(self.to, port=port))


def explained(line: str, port: int) -> str:
    """kubectl's message, without the parts for its developers."""
    if "connection refused" in line:
        return f"nothing listens on port {port} in the pod (connection refused)"
    text = _KLOG.sub("", line).removeprefix("error: ")
    with contextlib.suppress(ValueError):
        text = str(json.loads(text))  # klog quotes as JSON does
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"
