"""The balancer of a lab on loopback: real clients in front of it, real targets behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from clients import (
    LIMIT_S,
    MIB,
    Client,
    Target,
    echo_target,
    free_port,
    full_target,
    receive_all,
    send_all,
)
from programs import ENVIRONMENT
from stack import http_get, wait_until

from isthmus.lab.balancer import BalanceBy, Balancer, BalancerSettings, main, pick
from isthmus.values import HostPort

T = TypeVar("T")


class Running:
    """A balancer on the loop of a thread of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, balancer: Balancer) -> None:
        self._loop = loop
        self.balancer = balancer

    def do(self, ask: Callable[[], T]) -> T:
        """Ask the balancer something, in its loop."""

        async def inside() -> T:
            return ask()

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(LIMIT_S)

    def backend(self, target: str) -> dict[str, object]:
        """What the status says about one backend."""
        backends = self.do(self.balancer.status)["backends"]
        assert isinstance(backends, dict)
        found = backends[target]
        assert isinstance(found, dict)
        return found

    def connect(self, source: str = "127.0.0.1") -> Client:
        """Connect as a client, from one of the addresses of loopback."""
        where = ("127.0.0.1", self.balancer.port)
        return Client(socket.create_connection(where, LIMIT_S, source_address=(source, 0)))

    def wait_dialing(self) -> None:
        """Wait until a client waits for its backend."""
        wait_until(lambda: self.do(lambda: self.balancer.dialing) == 1, "a client waits")


@contextlib.contextmanager
def balancing(
    *backends: str,
    by: BalanceBy = BalanceBy.RANDOM,
    dial_timeout_s: float = LIMIT_S,
    down_s: float = LIMIT_S,
) -> Iterator[Running]:
    settings = BalancerSettings(
        port=0,
        by=by,
        backends=tuple(HostPort.parse(one) for one in backends),
        dial_timeout_s=dial_timeout_s,
        down_s=down_s,
    )
    started: list[Running] = []
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        balancer = Balancer(settings)
        try:
            balancer.start()
            started.append(Running(asyncio.get_running_loop(), balancer))
            ready.set()
            await stop.wait()
        finally:
            await balancer.stop()
            ready.set()

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(asyncio.run, serve())
        ready.wait(LIMIT_S)
        try:
            yield started[0]
        finally:
            if started:
                started[0].do(stop.set)
            served.result(LIMIT_S)


def reads_reset(client: Client) -> bool:
    """Whether the connection ends, after whatever came before, by a reset."""
    try:
        client.read_to_end()
    except ConnectionResetError:
        return True
    return False


def test_a_half_close_travels_as_one_each_way() -> None:
    with (
        Target() as target,
        balancing(target.name) as running,
        running.connect() as client,
        target.accept() as far,
    ):
        client.send(b"question")
        client.half_close()
        assert far.read_to_end() == b"question"
        far.send(b"answer")
        far.half_close()
        assert client.read_to_end() == b"answer"
        wait_until(lambda: running.backend(target.name)["open"] == 0, "it is over")


def test_the_far_side_may_half_close_first() -> None:
    with (
        Target() as target,
        balancing(target.name) as running,
        running.connect() as client,
        target.accept() as far,
    ):
        far.send(b"greeting")
        far.half_close()
        assert client.read_to_end() == b"greeting"
        client.send(b"reply")
        client.half_close()
        assert far.read_to_end() == b"reply"


def test_a_reset_travels_as_one_each_way() -> None:
    with Target() as target, balancing(target.name) as running:
        with running.connect() as client, target.accept() as far:
            client.send(b"x")
            assert far.read_exactly(1) == b"x"
            client.reset()
            assert reads_reset(far)
        with running.connect() as client, target.accept() as far:
            client.send(b"y")
            assert far.read_exactly(1) == b"y"  # before that, a reset is a refusal
            far.reset()
            assert reads_reset(client)
        wait_until(lambda: running.backend(target.name)["open"] == 0, "both are over")
        assert running.backend(target.name)["opened"] == 2


def test_many_bytes_arrive_as_they_were() -> None:
    with (
        echo_target() as target,
        balancing(target.name) as running,
        running.connect() as client,
        ThreadPoolExecutor(1) as thread,
    ):
        sent = thread.submit(send_all, client, 3, 16 * MIB)
        assert receive_all(client) == (16 * MIB, sent.result(LIMIT_S))


def test_a_backend_by_name() -> None:
    with (
        Target() as target,
        balancing(f"localhost:{target.port}") as running,
        running.connect() as client,
        target.accept() as far,
    ):
        client.send(b"by name")
        assert far.read_exactly(7) == b"by name"


def test_a_backend_that_refuses_is_skipped() -> None:
    dead = f"127.0.0.1:{free_port()}"
    with (
        Target() as target,
        # The dead one has the fewest connections: it is the first to try, unless it is left out.
        balancing(dead, target.name, by=BalanceBy.LEAST) as running,
        contextlib.ExitStack() as opened,
    ):
        for _ in range(6):
            opened.enter_context(running.connect())
            opened.enter_context(target.accept())
        assert running.backend(target.name)["open"] == 6
        assert running.backend(dead)["opened"] == 0
        assert running.backend(dead)["failed"]
        assert running.do(running.balancer.status)["unserved"] == 0


def test_a_backend_that_does_not_answer_is_skipped() -> None:
    with (
        full_target() as silent,
        Target() as target,
        balancing(silent.name, target.name, by=BalanceBy.LEAST, dial_timeout_s=0.05) as running,
        contextlib.ExitStack() as opened,
    ):
        for _ in range(2):  # by the second, the silent one is the less loaded
            client = opened.enter_context(running.connect())
            client.send(b"early")
            assert opened.enter_context(target.accept()).read_exactly(5) == b"early"
        assert running.backend(silent.name)["failed"]


def test_a_backend_that_comes_back_gets_connections_again() -> None:
    with Target() as target, balancing(target.name, down_s=0.05) as running:
        again = ("127.0.0.1", target.port)
        target.__exit__()
        with pytest.raises(ConnectionResetError), running.connect() as client:
            client.read_to_end()
        with socket.create_server(again) as back:
            back.settimeout(0.1)

            def served() -> bool:
                with contextlib.suppress(TimeoutError, ConnectionResetError), running.connect():
                    back.accept()[0].close()
                    return True
                return False

            wait_until(served, "it is tried again")


def test_without_any_backend_the_client_is_reset() -> None:
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with balancing(*dead) as running:
        for number in (1, 2):  # once they are tried, once they are known to be down
            with pytest.raises(ConnectionResetError), running.connect() as client:
                client.read_to_end()
            assert running.do(running.balancer.status)["unserved"] == number
        assert [running.backend(one)["failed"] for one in dead] == [1, 1]


def test_a_client_that_goes_while_it_waits_is_forgotten() -> None:
    with full_target() as silent, balancing(silent.name) as running:
        client = running.connect()
        running.wait_dialing()
        client.reset()
        wait_until(lambda: running.do(running.balancer.status)["unserved"] == 1, "forgotten")
        assert running.backend(silent.name)["failed"] == 0


def test_stopping_resets_who_waits_and_who_is_joined() -> None:
    with full_target() as silent, Target() as target, contextlib.ExitStack() as opened:
        with balancing(silent.name) as running:
            waiting = opened.enter_context(running.connect())
            running.wait_dialing()
        with balancing(target.name) as running:
            joined = opened.enter_context(running.connect())
            far = opened.enter_context(target.accept())
        assert reads_reset(waiting)
        assert reads_reset(joined)
        assert reads_reset(far)


def test_a_source_address_has_its_backend_and_another_when_that_is_gone() -> None:
    with Target() as one, Target() as two, contextlib.ExitStack() as opened:
        targets = {one.name: one, two.name: two}
        backends = [HostPort.parse(name) for name in targets]
        with balancing(*targets, by=BalanceBy.SOURCE) as running:
            for number in [*range(1, 9), *range(1, 9)]:
                source = f"127.0.0.{number}"
                first = _first(backends, source)
                client = opened.enter_context(running.connect(source))
                client.send(source.encode())
                far = opened.enter_context(targets[first].accept())
                assert far.read_exactly(len(source)) == source.encode()
            assert {_first(backends, f"127.0.0.{n}") for n in range(1, 9)} == set(targets)
            mine = _first(backends, "127.0.0.1")
            targets.pop(mine).__exit__()
            (other,) = targets.values()
            with running.connect() as client, other.accept() as far:
                client.send(b"moved")
                assert far.read_exactly(5) == b"moved"


def _first(backends: list[HostPort], source: str) -> str:
    return str(pick(backends, BalanceBy.SOURCE, source_address=source, chance=lambda: 0.0)[0])


def test_the_least_loaded_backend_gets_the_next() -> None:
    with (
        Target() as one,
        Target() as two,
        balancing(one.name, two.name, by=BalanceBy.LEAST) as running,
        contextlib.ExitStack() as opened,
    ):
        for number in range(1, 21):
            opened.enter_context(running.connect())
            _wait_open(running, number, one, two)
            apart = _open(running, one) - _open(running, two)
            assert abs(apart) == number % 2


def _open(running: Running, target: Target) -> int:
    return int(str(running.backend(target.name)["open"]))


def _wait_open(running: Running, number: int, *targets: Target) -> None:
    def are_open() -> bool:
        return sum(_open(running, one) for one in targets) == number

    wait_until(are_open, f"{number} are open")


def test_the_program() -> None:
    port, status_port = free_port(), free_port()
    with echo_target() as target:
        argv = [
            *(sys.executable, "-m", "isthmus.lab.balancer", "--by", "source"),
            *("--listen", f"127.0.0.1:{port}", "--to", f"localhost:{target.port}"),
            *("--status-port", str(status_port)),
        ]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env=ENVIRONMENT) as program:
            try:
                assert program.stdout is not None
                assert program.stdout.readline() == b"balancer: ready\n"
                with Client(socket.create_connection(("127.0.0.1", port), LIMIT_S)) as client:
                    client.send(b"hello")
                    assert client.read_exactly(5) == b"hello"
                    code, text = http_get(status_port, "/")
                    program.send_signal(signal.SIGTERM)
                    assert program.wait(LIMIT_S) == 0
            finally:
                program.kill()
    assert code == 200
    assert json.loads(text) == {
        "by": "source",
        "backends": {
            f"localhost:{target.port}": {"open": 1, "opened": 1, "failed": 0, "down": False}
        },
        "unserved": 0,
    }


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--listen", "99999", "--to", "a:1"], "--listen 99999: port out of range: 99999"),
        (["--listen", "fd00::1:80", "--to", "a:1"], "--listen fd00::1:80: an IPv6 address needs"),
        (["--listen", "8091", "--to", "a"], "--to a: no port in 'a'"),
        (["--listen", "8091", "--to", "a:1", "--status-port", "0"], "--status-port 0: port out of"),
        (["--listen", "192.0.2.1:80", "--to", "a:1"], "--listen: cannot listen on 192.0.2.1:80"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    args: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"balancer: {said}")
    assert err.count("\n") == 1
