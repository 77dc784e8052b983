"""Signs of a kube-proxy: processes that are called so, and ports that answer as it does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from isthmus.programs.node_proxy.kube_proxy import find_signs, processes

LIMIT_S = 20.0


@contextlib.contextmanager
def process(argv: list[str], executable: str | None = None) -> Iterator[int]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, executable=executable, **pipes) as made:
        assert made.stdin is not None and made.stdout is not None
        try:
            # The kernel lets us go on before the process has its new name; one that answers has it.
            made.stdin.write(b"there?\n")
            made.stdin.flush()
            assert made.stdout.readline() == b"there?\n"
            yield made.pid
        finally:
            made.kill()


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A program called kube-proxy, which waits for its standard input."""
    cat = shutil.which("cat")
    assert cat is not None
    return shutil.copy(cat, str(tmp_path / "kube-proxy"))


def test_a_process_is_found_by_its_own_name(program: str) -> None:
    with process([program]) as pid:
        assert pid in set(processes())
    assert pid not in set(processes())


def test_a_process_is_found_by_what_it_was_called_as() -> None:
    with process(["/usr/local/bin/kube-proxy"], executable=shutil.which("cat")) as pid:
        assert pid in set(processes())


def test_one_that_only_speaks_of_it_is_none() -> None:
    cat = shutil.which("cat")
    assert cat is not None
    with process([cat, "-", "kube-proxy"]) as pid:
        assert pid not in set(processes())


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_one_in_another_network_is_none(program: str) -> None:
    with process(["unshare", "--net", program]) as pid:
        assert Path(f"/proc/{pid}/comm").read_text() == "kube-proxy\n"
        assert pid not in set(processes())


def test_who_started_us_is_none(tmp_path: Path) -> None:
    script = tmp_path / "kube-proxy"
    look = "from isthmus.programs.node_proxy.kube_proxy import processes;print(list(processes()))"
    script.write_text(f"#!/bin/sh\n'{sys.executable}' -c '{look}'\ntrue\n")
    script.chmod(0o700)
    done = subprocess.run([script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert str(os.getpid()) not in done.stdout
    assert done.stdout == "[]\n"


def asked(pages: dict[str, str], redirect: str = "") -> list[str]:
    """What a port with these pages tells; its number is written PORT."""

    async def handle(request: web.BaseRequest) -> web.Response:
        if redirect:
            return web.Response(status=302, headers={"Location": redirect})
        text = pages.get(request.path)
        return web.Response(text=text or "", status=404 if text is None else 200)

    async def run() -> list[str]:
        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with asyncio.timeout(LIMIT_S):
                told = await find_signs([port])
        finally:
            await runner.cleanup()
        return [each.replace(str(port), "PORT") for each in told if "process" not in each]

    return asyncio.run(run())


def test_ports_tell() -> None:
    assert asked({"/proxyMode": "nftables"}) == [
        "http://127.0.0.1:PORT/proxyMode answers like kube-proxy"
    ]
    health = '{"lastUpdated": "x", "currentTime": "y", "nodeEligible": true}'
    assert asked({"/healthz": health}) == ["http://127.0.0.1:PORT/healthz answers like kube-proxy"]


@pytest.mark.parametrize(
    "pages",
    [{}, {"/healthz": "ok"}, {"/healthz": "[]"}, {"/healthz": "{}"}, {"/proxyMode": "x" * 100_000}],
)
def test_other_ports_tell_nothing(pages: dict[str, str]) -> None:
    assert asked(pages) == []


def test_nobody_is_sent_elsewhere() -> None:
    assert asked({}, redirect="http://192.0.2.1/") == []


def test_a_port_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.programs.node_proxy.kube_proxy._ANSWER_S", 0.05)

    with socket.create_server(("127.0.0.1", 0)) as nobody:
        told = asyncio.run(find_signs([nobody.getsockname()[1]]))
    assert [each for each in told if "process" not in each] == []
