"""Measures with curl: a CONNECT to Isthmus' server, and the SOCKS5 sidecar in front of that server.

Both paths lead through the same server and agent to one HTTP target. One curl process makes all
fetches of a measurement, so that its start is not measured, and reports the time of each; every
fetch is a new connection from end to end.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from certs import Certs
from figures import Load
from http_target import LARGE, SIZES, SMALL
from processes import BenchError, Workspace
from topologies import HERE, Commands, Shape, Topology, http_answers, start_tunnel, wait_until

#: The names of the two paths.
CONNECT_TLS, SOCKS5 = "connect-tls", "socks5-proxy"
#: The number of small fetches per second of a measurement, above what any machine reaches.
_FETCHES_PER_S = 60
#: The number of initial fetches of a measurement that are not counted.
_UNCOUNTED = 3
_SAYS = r"%{http_code} %{size_download} %{time_total} %{speed_download}\n"
_TIMEOUT_S = 120


class CurlWays:
    """The server, the agent and the target that both paths share, started on first use."""

    def __init__(self, space: Workspace, certs: Certs, commands: Commands) -> None:
        self._space = space
        self._certs = certs
        self._commands = commands
        self._port = space.free_port()

    @cached_property
    def _target(self) -> str:
        words = [sys.executable, str(HERE / "http_target.py"), str(self._space.free_port())]
        child = self._space.start("http-target", words, speaks=True)
        return str(child.read_line(10)["address"])

    @cached_property
    def _tunnel(self) -> Topology:
        certs = self._certs
        flags = (
            f"--server-port={self._port}",
            "--server-bind-address=127.0.0.1",
            f"--server-cert={certs.server_cert}",
            f"--server-key={certs.server_key}",
            f"--server-ca-cert={certs.ca}",
        )
        return start_tunnel(
            self._space, certs, self._commands, CONNECT_TLS, Shape(server_flags=flags)
        )

    def start_connect(self, target: str) -> Topology:
        """Curl's own CONNECT, by mutual TLS."""
        certs = self._certs
        flags = (
            f"--proxy=https://127.0.0.1:{self._port}",
            "--proxytunnel",
            f"--proxy-cacert={certs.ca}",
            f"--proxy-cert={certs.client_cert}",
            f"--proxy-key={certs.client_key}",
        )
        processes = self._tunnel.processes
        return Topology(
            name=CONNECT_TLS, via="curl", processes=processes, at=self._target, curl=flags
        )

    def start_socks5(self, target: str) -> Topology:
        """``isthmus socks5-proxy`` in front of the same server."""
        space, certs = self._space, self._certs
        behind = self._tunnel.processes
        port, health_port, admin_port = (space.free_port() for _ in range(3))
        flags = [
            f"--serving-port={port}",
            "--konnectivity-hostname=127.0.0.1",
            f"--konnectivity-port={self._port}",
            f"--ca-cert-path={certs.ca}",
            f"--tls-cert-path={certs.client_cert}",
            f"--tls-key-path={certs.client_key}",
            "--disable-resolver",
            f"--health-port={health_port}",
            f"--admin-port={admin_port}",
        ]
        sidecar = space.start(SOCKS5, self._commands.words(SOCKS5, flags))
        wait_until(
            lambda: http_answers(health_port, "/readyz"), (sidecar, *behind), "the SOCKS5 sidecar"
        )
        options = (f"--socks5-hostname=127.0.0.1:{port}",)
        return Topology(
            name=SOCKS5, via="curl", processes=(sidecar,), at=self._target, curl=options
        )


def is_missing() -> bool:
    """Whether curl is not installed."""
    return shutil.which("curl") is None


def fetch_times(
    space: Workspace, topology: Topology, load: Load, seconds: float
) -> dict[str, float]:
    """One measurement: small answers one after the other, or large ones."""
    known: dict[str, Callable[[], dict[str, float]]] = {
        "fetch": lambda: _small(space, topology, seconds),
        "download": lambda: _large(space, topology),
    }
    return known[load.command]()


def _small(space: Workspace, topology: Topology, seconds: float) -> dict[str, float]:
    count = max(10, round(seconds * _FETCHES_PER_S))
    taken = _fetch(space, topology, SMALL, _UNCOUNTED + count)[_UNCOUNTED:]
    times = sorted(took * 1e3 for took, _ in taken)
    return {"p50_ms": statistics.median(times), "p90_ms": times[int(0.9 * len(times))]}


def _large(space: Workspace, topology: Topology) -> dict[str, float]:
    ((_, speed),) = _fetch(space, topology, LARGE, 1)
    return {"mb_per_s": speed / 1e6}


def _fetch(
    space: Workspace, topology: Topology, path: str, count: int
) -> list[tuple[float, float]]:
    """Fetch repeatedly with one curl process; returns seconds and bytes per second of each fetch.

    Raises:
        BenchError: a fetch failed, or returned a wrong answer.
    """
    config = space.path("curl.cfg")
    config.write_text(_config(f"http://{topology.at}{path}", topology.curl, count))
    try:
        done = subprocess.run(
            ["curl", "--disable", "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise BenchError(f"curl through {topology.name}: {exc}") from exc
    finally:
        config.unlink()
    found = [_read(line, path) for line in done.stdout.splitlines()]
    if done.returncode or len(found) != count or None in found:
        raise BenchError(f"curl through {topology.name} failed: {done.stderr or done.stdout[:500]}")
    return [each for each in found if each is not None]


def _config(url: str, options: Sequence[str], count: int) -> str:
    """A curl configuration: common options, then each fetch."""
    lines = ["silent", "show-error", "fail-early", 'noproxy = ""', f'write-out = "{_SAYS}"']
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        lines.append(f'{name} = "{value}"' if value else name)
    null = Path("/dev/null")
    lines += [f'url = "{url}"\noutput = "{null}"' for _ in range(count)]
    return "\n".join(lines) + "\n"


def _read(line: str, path: str) -> tuple[float, float] | None:
    """The time and speed of a fetch; None if it failed."""
    status, size, seconds, speed = line.split()
    if status != "200" or float(size) != SIZES[path]:
        return None
    return float(seconds), float(speed)
