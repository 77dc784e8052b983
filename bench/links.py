"""Thousands of real links to one server over loopback: memory, pings, and a server restart.

The server is the program itself; its agents run in a few processes (links_agents.py). Only the
server is measured: resident memory without links, with idle ones, and after each has carried a
tunnel; CPU while only pings happen; and, after a kill and a restart, how long until every agent is
back, what the handshakes cost, and how many attempts failed. docs/scaling.md interprets the
figures.

usage: bench/links.py [--links N] [--processes N] [--key ec|rsa] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from links_key import rsa_leaves
from machine import machine
from processes import BenchError, Child, Workspace, rss_kb

from isthmus.tools.pki import making as pki

HERE = Path(__file__).resolve().parent
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.05
_AT_ONCE = 32
_PIECE = bytes(range(256)) * 256


@dataclass(kw_only=True)
class Found:
    """The measured figures."""

    links: int
    key: str
    machine: str = ""
    empty_kb: int = 0
    idle_kb_per_link: float = 0.0
    used_kb_per_link: float = 0.0
    again_kb_per_link: float = 0.0
    first_s: float = 0.0
    first_cpu_ms_per_link: float = 0.0
    ping_cpu_us_per_link_s: float = 0.0
    ping_seconds: float = 0.0
    traffic_bytes: int = 0
    answered: int = 0
    back: int = 0
    back_s: float = 0.0
    half_back_s: float = 0.0
    back_cpu_ms_per_link: float = 0.0
    failed: dict[str, int] = field(default_factory=dict)
    left_descriptors: int = 0


class Server:
    """The server, restarted on the same port."""

    def __init__(self, space: Workspace, files: pki.PkiFiles) -> None:
        self._space = space
        self._files = files
        self.port = space.free_port()
        self._health = space.free_port()
        self.uds = space.path("s.sock")
        self.child = self._start()

    def _start(self) -> Child:
        files = self._files
        child = self._space.start(
            "server",
            [
                sys.executable, str(HERE / "launch.py"), "server",
                "--mode=http-connect", f"--uds-name={self.uds}", "--delete-existing-uds-file",
                "--server-port=0", "--agent-bind-address=127.0.0.1", f"--agent-port={self.port}",
                f"--cluster-cert={files.server_cert}", f"--cluster-key={files.server_key}",
                f"--cluster-ca-cert={files.ca_cert}", "--proxy-strategies=destHost,default",
                "--health-bind-address=127.0.0.1", f"--health-port={self._health}",
                "--admin-port=0", "--max-connections=16384",
            ],
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while not self._listens():
            child.check_alive()
            if time.monotonic() > deadline:
                raise BenchError("the server is not listening")
            time.sleep(_LOOK_S)
        return child

    def _listens(self) -> bool:
        wanted = f":{self.port:04X}"
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return any(it.split()[1].endswith(wanted) and it.split()[3] == "0A" for it in lines)

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self.child.process.send_signal(signal.SIGKILL)
        self.child.process.wait()

    def start_again(self) -> None:
        """Start it again on the same port."""
        self.child = self._start()

    @property
    def cpu_s(self) -> float:
        """Its CPU time so far."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    @property
    def rss_kb(self) -> int:
        """Its memory."""
        return rss_kb([self.child.pid])

    @property
    def descriptors(self) -> int:
        """The number of its open descriptors."""
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))


class Agents:
    """The processes that run the agents."""

    def __init__(
        self, space: Workspace, files: pki.PkiFiles, port: int, links: int, processes: int
    ) -> None:
        self._space = space
        share, more = divmod(links, processes)
        self._children = []
        first = 0
        for index in range(processes):
            number = share + (index < more)
            child = space.start(
                f"agents-{index}",
                [sys.executable, str(HERE / "links_agents.py"),
                 str(files.directory), str(port), str(first), str(number)],
                speaks=True,
            )  # fmt: skip
            self._children.append(child)
            first += number

    def state(self) -> tuple[int, Counter[str]]:
        """The number of linked agents, and the failed attempts so far."""
        failed: Counter[str] = Counter()
        linked = 0
        for child in self._children:
            child.tell("state")
        for child in self._children:
            said = child.read_line(60.0)
            linked += said["linked"]
            failed.update(said["failed"])
        return linked, failed

    def stop(self) -> None:
        """End all of them; each closes its links."""
        for child in self._children:
            assert child.process.stdin is not None
            child.process.stdin.close()
        for child in self._children:
            child.wait(30.0)
            self._space.stop(child)


async def send_through(uds: Path, index: int, size: int) -> bool:
    """Send some bytes through one agent, and read them back."""
    reader, writer = await asyncio.open_unix_connection(str(uds))
    try:
        target = f"agent-{index}.sim:80"
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            return False
        for _ in range(size // len(_PIECE)):
            writer.write(_PIECE)
            if await reader.readexactly(len(_PIECE)) != _PIECE:
                return False
        return True
    finally:
        writer.close()
        await writer.wait_closed()


async def send_through_all(uds: Path, links: int, size: int) -> int:
    """The same through every agent, several at once; returns how many echoes were complete."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> bool:
        async with places:
            return await send_through(uds, index, size)

    return sum(await asyncio.gather(*(one(index) for index in range(links))))


def wait_linked(agents: Agents, links: int, limit_s: float) -> tuple[float, float]:
    """Wait until all agents are linked, up to a limit; seconds until half and all of them were."""
    began = time.monotonic()
    half_s = took_s = 0.0
    while (linked := agents.state()[0]) < links and took_s < limit_s:
        took_s = time.monotonic() - began
        if not half_s and linked >= links / 2:
            half_s = took_s
        time.sleep(_LOOK_S)
    took_s = time.monotonic() - began
    return half_s or took_s, took_s


def say(text: str) -> None:
    """Print progress."""
    print(f"bench/links.py: {text}", file=sys.stderr, flush=True)


def measure(arguments: argparse.Namespace, space: Workspace) -> Found:
    """Run all measurements."""
    links, limit_s = arguments.links, arguments.limit
    files = pki.init(space.dir / "pki", server_names=("127.0.0.1", "localhost"))
    if arguments.key == "rsa":
        rsa_leaves(files)
    found = Found(links=links, key=arguments.key, machine=machine())
    server = Server(space, files)
    found.empty_kb, cpu_s = server.rss_kb, server.cpu_s
    descriptors = server.descriptors
    agents = Agents(space, files, server.port, links, arguments.processes)
    _, found.first_s = wait_linked(agents, links, limit_s)
    linked, failed = agents.state()
    if linked < links:
        raise BenchError(
            f"only {linked} of {links} agents linked within {limit_s:.0f} s, without a restart;"
            f" failed attempts: {dict(failed)}"
        )
    found.first_cpu_ms_per_link = (server.cpu_s - cpu_s) * 1000 / links
    say(f"all linked in {found.first_s:.1f} s, {found.first_cpu_ms_per_link:.2f} ms of CPU each")
    time.sleep(1.5)  # the pings of the first second are not part of idling
    found.idle_kb_per_link = (server.rss_kb - found.empty_kb) / links
    cpu_s, began = server.cpu_s, time.monotonic()
    time.sleep(arguments.seconds)
    found.ping_seconds = time.monotonic() - began
    found.ping_cpu_us_per_link_s = (server.cpu_s - cpu_s) * 1e6 / found.ping_seconds / links
    say(
        f"idle: {found.idle_kb_per_link:.1f} kB and {found.ping_cpu_us_per_link_s:.1f} µs of CPU"
        " a second each"
    )
    found.traffic_bytes = arguments.bytes
    found.answered = asyncio.run(send_through_all(server.uds, links, arguments.bytes))
    found.used_kb_per_link = (server.rss_kb - found.empty_kb) / links
    say(f"after traffic: {found.used_kb_per_link:.1f} kB each, {found.answered} echoes")
    _restart(server, agents, found, limit_s)
    say(f"after a restart: {found.back} back within {found.back_s:.1f} s")
    agents.stop()
    deadline = time.monotonic() + 30
    while server.descriptors > descriptors and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    found.left_descriptors = server.descriptors - descriptors
    return found


def _restart(server: Server, agents: Agents, found: Found, limit_s: float) -> None:
    before = agents.state()[1]
    server.kill()
    server.start_again()
    cpu_s = server.cpu_s
    empty_kb = server.rss_kb
    found.half_back_s, found.back_s = wait_linked(agents, found.links, limit_s)
    found.back_cpu_ms_per_link = (server.cpu_s - cpu_s) * 1000 / found.links
    found.again_kb_per_link = (server.rss_kb - empty_kb) / found.links
    found.back, failed = agents.state()
    found.failed = dict(failed - before)


def show(found: Found) -> str:
    """The figures, as text."""
    failed = ", ".join(f"{number} {stage}" for stage, number in found.failed.items()) or "none"
    return "\n".join(
        (
            f"{found.links} links, {found.key} keys; {found.machine}",
            f"  server without links       {found.empty_kb / 1000:.0f} MB",
            f"  a link, idle               {found.idle_kb_per_link:.1f} kB",
            f"  after {found.traffic_bytes // 1024} KiB each way     "
            f"{found.used_kb_per_link:.1f} kB",
            f"  pings                      {found.ping_cpu_us_per_link_s:.1f} µs of CPU a second"
            " each",
            f"  all linked at first        {found.first_s:.1f} s,"
            f" {found.first_cpu_ms_per_link:.2f} ms of CPU each",
            f"  after a restart            {found.back} back within {found.back_s:.1f} s"
            f" (half in {found.half_back_s:.1f} s),"
            f" {found.back_cpu_ms_per_link:.2f} ms of CPU each; failed attempts: {failed}",
            f"  echoes that came back      {found.answered}",
            f"  descriptors left           {found.left_descriptors}",
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench/links.py", description=__doc__)
    add = parser.add_argument
    add("--links", type=int, default=5000, help="how many (default 5000)")
    add("--processes", type=int, default=2, help="that hold the agents (default 2)")
    add("--bytes", type=int, default=256 * 1024, help="each way through each link")
    add("--seconds", type=float, default=30.0, help="of idleness, for the pings (default 30)")
    add("--limit", type=float, default=180.0, help="seconds until all have to be linked")
    add("--key", choices=("ec", "rsa"), default="ec", help="of certificates (default ec, P-256)")
    add("--json", type=Path, metavar="FILE", help="write what was measured there as well")
    given = parser.parse_args(arguments)
    with Workspace() as space:
        found = measure(given, space)
    print(show(found))
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(found), indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except BenchError as exc:
        sys.exit(f"bench/links.py: {exc}")
