"""What a kubelet would run of a manifest: its containers in turn, as the user they say, confined.

No images and no runtime: the command lines with this Python, without any capability but those that
are listed, and with a root that cannot be written to, in a mount namespace of each process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from clients import LIMIT_S
from programs import COMMAND, ENVIRONMENT
from stack import wait_until

USER = 65532
_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


def confined(writable: list[Path]) -> Callable[[], None]:
    """What a child does first: from then on nothing but these directories can be written to."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def mount(source: str, at: str, flags: int) -> None:
        check(libc.mount(source.encode(), at.encode(), None, flags, None))

    def enter() -> None:
        check(libc.unshare(_CLONE_NEWNS))
        mount("none", "/", _MS_REC | _MS_PRIVATE)
        for path in map(str, writable):
            mount(path, path, _MS_BIND)
        mount("none", "/", _MS_REMOUNT | _MS_BIND | _MS_RDONLY)

    return enter


def as_said(context: Mapping[str, Any]) -> list[str]:
    """The command that becomes who a security context says."""
    capabilities = [f"+{each.lower()}" for each in context["capabilities"].get("add", ())]
    user = context["runAsUser"]
    return [
        "setpriv", f"--reuid={user}", f"--regid={context.get('runAsGroup', user)}",
        "--clear-groups", f"--bounding-set={','.join(['-all', *capabilities])}", "--inh-caps=-all",
        "--no-new-privs",
    ]  # fmt: skip


def can_run() -> bool:
    """Whether another user can run this Python."""
    argv = [*as_said({"capabilities": {}, "runAsUser": USER}), *COMMAND, "--version"]
    done = subprocess.run(argv, capture_output=True, env=ENVIRONMENT, timeout=LIMIT_S)
    return done.returncode == 0


class Node:
    """Directories of a node in place of those that manifests name, and what runs there."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="isthmus-node-"))
        self.root.chmod(0o755)
        self.moved: dict[str, str] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT_S)
        shutil.rmtree(self.root)

    def directory(self, at: str) -> Path:
        """Make a directory that manifests call so, as the kubelet does: root's."""
        path = self.root / at.strip("/").replace("/", "-")
        path.mkdir(mode=0o755)
        self.moved[at] = str(path)
        return path

    def put(self, at: str, source: Path) -> None:
        """Put a file there that only the programs' user reads."""
        path = Path(self.moved[os.path.dirname(at)]) / os.path.basename(at)
        shutil.copyfile(source, path)
        os.chown(path, USER, USER)
        path.chmod(0o400)

    def here(self, text: str) -> str:
        """A text with our own directories in it."""
        for at, path in sorted(self.moved.items(), key=lambda each: -len(each[0])):
            text = text.replace(at + "/", path + "/")
        return text

    def _argv(self, container: Mapping[str, Any]) -> list[str]:
        assert container["command"] == ["isthmus"]
        args = [self.here(arg) for arg in container["args"]]
        return [*as_said(container["securityContext"]), *COMMAND, *args]

    def _writable(self, container: Mapping[str, Any]) -> list[Path]:
        return [
            Path(self.moved[each["mountPath"]])
            for each in container.get("volumeMounts", ())
            if not each.get("readOnly")
        ]

    def run(self, container: Mapping[str, Any]) -> None:
        """Run a container to its end."""
        done = subprocess.run(
            self._argv(container), capture_output=True, text=True, env=ENVIRONMENT,
            timeout=LIMIT_S, preexec_fn=confined(self._writable(container)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def start(self, container: Mapping[str, Any], name: str) -> Running:
        """Start a container that stays."""
        log = self.root / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self._argv(container), stderr=file, env={**ENVIRONMENT, "HOME": "/nonexistent"},
                preexec_fn=confined(self._writable(container)),
            )  # fmt: skip
        self._running.append(process)
        return Running(process, log)


class Running:
    """A container that runs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text()

    def wait_log(self, text: str) -> None:
        """Wait until a text is in the log."""
        wait_until(lambda: text in self.log or self.process.poll() is not None, text)
        assert text in self.log, self.log

    def stop(self) -> None:
        """Tell it to end, as the kubelet does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LIMIT_S) == 0, self.log
