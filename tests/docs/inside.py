"""Runs commands on a machine of their own: this process is its first, in fresh namespaces.

Started by doc_machines.py with ``unshare``: what it mounts, binds, starts and configures is seen by
nobody else and goes away with it. Reads what to do as JSON from standard input, writes what came of
it as JSON to standard output, and stops at the first command that is not as expected.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

LIMIT_S = 60.0
READY = re.compile(r"\bserving\b|Paste into another terminal|dashboard at ")


class Machine:
    """The directory where commands run, and the programs that run on."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def file(self, step: dict[str, Any]) -> tuple[int, str]:
        """Write a file."""
        path = self._home / step["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step["text"], encoding="utf-8")
        return 0, ""

    def run(self, step: dict[str, Any]) -> tuple[int, str]:
        """Run a command to its end, on a terminal if what it prints is shown."""
        reader, writer = os.openpty() if step["prints"] else os.pipe()
        argv = ["bash", "-o", "pipefail", "-c", step["text"]]
        with subprocess.Popen(
            argv, cwd=self._home, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer
        ) as process:
            os.close(writer)
            guard = Timer(LIMIT_S, process.kill)
            guard.start()
            said = self._read(reader, process)
            guard.cancel()
        os.close(reader)
        return process.returncode, said.decode(errors="replace").replace("\r\n", "\n")

    @staticmethod
    def _read(reader: int, process: subprocess.Popen[bytes]) -> bytes:
        """What the command writes; it need not close what it leaves running."""
        said = b""
        while True:
            readable, _, _ = select.select([reader], [], [], 0.05)
            if not readable:
                if process.poll() is not None:
                    return said
                continue
            try:
                chunk = os.read(reader, 65536)
            except OSError:  # a terminal that nobody has open any more
                return said
            if not chunk:
                return said
            said += chunk

    def stay(self, step: dict[str, Any]) -> tuple[int, str]:
        """Start a program in place of the one of its kind that runs, and wait until it serves."""
        self.end(step["program"])
        said = self._home.parent / f"{step['program']}.log"
        with said.open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {step['text']}"], cwd=self._home,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._running[step["program"]] = process, said
        waited(lambda: process.poll() is not None or READY.search(said.read_text()) is not None)
        if process.poll() is not None:
            return process.returncode or 1, f"it ended: {said.read_text()}"
        if READY.search(said.read_text()) is None:
            return 124, f"not ready after {LIMIT_S:.0f} s: {said.read_text()}"
        return 0, said.read_text()

    def end(self, program: str) -> None:
        """Stop a program as an operator does, if it runs."""
        process, _ = self._running.pop(program, (None, None))
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=LIMIT_S)

    def said(self) -> str:
        """The last lines of everything that runs."""
        logs = [f"{name}: {log.read_text()[-2000:]}" for name, (_, log) in self._running.items()]
        return "\n".join(logs)


def waited(done: Callable[[], bool]) -> None:
    """Wait until it is done; give up after a while, whoever asks looks again."""
    deadline = time.monotonic() + LIMIT_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


def prepare(given: dict[str, Any]) -> None:
    """Make the places that commands name, and the machine's network."""
    run = made
    etc = Path(given["home"]).parent / "etc"
    # Other tests' networks come and go in /etc/netns meanwhile, and are none of this machine.
    own = [str(path) for path in Path("/etc").iterdir() if path.name != "netns"]
    run("cp", "-a", *own, str(etc))
    run("mount", "--bind", str(etc), "/etc")
    for place in ("/run", "/var/lib", "/var/log", "/mnt"):
        run("mount", "-t", "tmpfs", "tmpfs", place)
    Path("/etc/hosts").write_text("".join(f"{line}\n" for line in given["hosts"]))
    for directory in given["directories"]:
        Path(directory).mkdir(parents=True, exist_ok=True)
    run("ip", "link", "set", "lo", "up")
    for address in given["addresses"]:
        run("ip", "addr", "add", address, "dev", "lo")


def made(*argv: str) -> None:
    """Run a command of the machine's making; it has to work."""
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Do what standard input says."""
    given = json.load(sys.stdin)
    os.environ.update(given["environment"])
    prepare(given)
    machine = Machine(Path(given["home"]))
    results = []
    for step in given["steps"]:
        code, output = getattr(machine, step["do"])(step)
        results.append({"where": step["where"], "code": code, "output": output})
        if code != step.get("code", 0) and not step.get("may_fail"):
            results[-1]["running"] = machine.said()
            break
    json.dump(results, sys.stdout)
    sys.stdout.flush()
    # The kernel ends what runs on: this is the first process of its namespace.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
