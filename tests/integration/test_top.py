"""``isthmus top`` at a real terminal: keys, screens, and a terminal that is given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from clients import LIMIT_S, echo_target, free_port
from programs import COMMAND, ENVIRONMENT
from stack import Stack
from terminal import OTHER_SCREEN, OWN_SCREEN, Terminal

from isthmus.cli.main import main
from isthmus.client.admin import AdminClient
from isthmus.tools.watching.command_top import Watcher

TOP = [*COMMAND, "top", "-d", "0.2"]
BROKEN = """
import sys
from isthmus.tools.watching import top_view
def fails(*_, **__):
    raise RuntimeError("a bug")
top_view.screen_lines = fails
from isthmus.cli.main import main
from isthmus.tools.watching.command_top import Watcher
from isthmus.client.admin import AdminClient
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def running(certificates: Any, link: str) -> Iterator[Stack]:
    with Stack(certificates, link) as stack:
        stack.add_server(server_id="cp-1")
        stack.add_agent(agent_id="node-1")
        yield stack


def top(stack: Stack, size: tuple[int, int] = (24, 110)) -> Terminal:
    return Terminal(
        [*TOP, "--admin", f"http://127.0.0.1:{stack.server.admin_port}"], ENVIRONMENT, size
    )


def given_back(terminal: Terminal) -> bool:
    """The terminal is as it was: its own screen, its cursor, its settings."""
    raw = terminal.raw
    screens = raw.rfind(OWN_SCREEN) > raw.rfind(OTHER_SCREEN) >= 0
    return (
        screens
        and raw.rfind("\x1b[?25h") > raw.rfind("\x1b[?25l")
        and (terminal.settings() == terminal.mode)
    )


def test_keys_and_screens(stack: Stack) -> None:
    with (
        echo_target() as target,
        stack.tunnel("uds", target.name) as first,
        stack.tunnel("tls", target.name) as second,
        top(stack) as terminal,
    ):
        terminal.wait_screen("2 tunnels, 0 stalled", "server cp-1", "RATE*", "http-connect", "1/2")
        assert terminal.raw.startswith(OTHER_SCREEN)
        assert terminal.settings() != terminal.mode
        second.send(b"x" * 5000)
        second.read_exactly(5000)
        terminal.wait_screen("4.9KiB")
        terminal.type("s")
        terminal.wait_screen("ID*")
        terminal.type("r")
        terminal.wait_screen("ID^")
        terminal.type("\x1b[B")
        terminal.wait_screen("2/2")
        terminal.type("k")
        terminal.wait_screen("1/2")
        terminal.type("/uid:0")
        terminal.wait_screen("/uid:0_")
        terminal.type("\r")
        terminal.wait_screen("filter: uid:0", "1/1")
        terminal.type("\x1b")
        terminal.wait_screen("1/2  q quit")
        terminal.type("?")
        terminal.wait_screen("reverse the order", "press any key to go back")
        terminal.type("x ")
        terminal.wait_screen("paused")
        terminal.type(" sq")
        assert terminal.wait_exit() == 0
        assert given_back(terminal)
        first.send(b"still there")
        assert first.read_exactly(11) == b"still there"


def test_ending_a_tunnel(stack: Stack) -> None:
    with (
        echo_target() as target,
        stack.tunnel("uds", target.name) as client,
        top(stack) as terminal,
    ):
        terminal.wait_screen("1/1")
        terminal.type("en")
        terminal.wait_screen("not ended")
        terminal.type("e")
        terminal.wait_screen("End tunnel ", f"to {target.name} on cp-1? [y/N]")
        client.send(b"1")
        assert client.read_exactly(1) == b"1"
        terminal.type("y")
        terminal.wait_screen(f"to {target.name} ended", "0 tunnels")
        assert client.recv() == b""
        terminal.type("q")
        assert terminal.wait_exit() == 0


def test_a_tunnel_that_ends_while_it_is_asked_about(stack: Stack) -> None:
    with echo_target() as target, top(stack) as terminal:
        with stack.tunnel("uds", target.name):
            terminal.wait_screen("1/1")
            terminal.type("e")
            terminal.wait_screen("End tunnel ")
        terminal.wait_screen("0 tunnels", "End tunnel ")
        terminal.type("y")
        terminal.wait_screen(f"to {target.name} has ended already")
        terminal.type("q")
        assert terminal.wait_exit() == 0


def test_it_follows_the_size_of_the_terminal(stack: Stack) -> None:
    with top(stack, (10, 60)) as terminal:
        terminal.wait_screen("0 tunnels", "RATE*")
        assert "FRONTEND" not in terminal.screen
        terminal.resize(30, 140)
        terminal.wait_screen("FRONTEND")
        terminal.wait(lambda: terminal.screen.count("\n") == 29, "all lines are used")
        terminal.resize(2, 8)
        terminal.wait(lambda: terminal.screen.count("\n") == 1, "two lines are left")
        terminal.type("q")
        assert terminal.wait_exit() == 0


@pytest.mark.parametrize(
    ("how", "code"), [("\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_however_it_ends_the_terminal_is_given_back(
    stack: Stack, how: str | signal.Signals, code: int
) -> None:
    with top(stack) as terminal:
        terminal.wait_screen("0 tunnels")
        if isinstance(how, str):
            terminal.type(how)
        else:
            terminal.process.send_signal(how)
        assert terminal.wait_exit() == code
        assert given_back(terminal)
        assert "Traceback" not in terminal.text


def test_a_terminal_that_goes_away(stack: Stack) -> None:
    with top(stack) as terminal:
        terminal.wait_screen("0 tunnels")
        terminal.hang_up()
        assert terminal.process.wait(LIMIT_S) in (0, 129)


def test_a_bug_gives_the_terminal_back_too(stack: Stack) -> None:
    admin = f"http://127.0.0.1:{stack.server.admin_port}"
    with Terminal([sys.executable, "-c", BROKEN, "top", "--admin", admin], ENVIRONMENT) as terminal:
        assert terminal.wait_exit() == 1
        assert given_back(terminal)
        assert "RuntimeError: a bug" in terminal.raw.rpartition(OWN_SCREEN)[2]


@pytest.mark.parametrize(("how", "code"), [("q", 0), (signal.SIGTERM, 143)])
def test_a_terminal_that_is_slow(stack: Stack, how: str | signal.Signals, code: int) -> None:
    # One frame is more than a terminal keeps: it is in the middle of one when it is told to end.
    with top(stack, (400, 500)) as terminal:
        terminal.wait_unread()
        if isinstance(how, str):
            terminal.type(how)
        else:
            terminal.process.send_signal(how)
        assert terminal.wait_exit() == code
        assert len(terminal.raw) > 65_536 or code
        assert given_back(terminal)


def test_a_program_that_goes_away(fresh: Stack) -> None:
    server = fresh.add_server(server_id="gone")
    with top(fresh) as terminal:
        terminal.wait_screen("server gone")
        port = server.admin_port
        fresh.stop(server)
        terminal.wait_screen(f"no answer: 127.0.0.1:{port}")
        terminal.type("q")
        assert terminal.wait_exit() == 0


def test_frames_for_a_pipe(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    admin = ["--admin", f"http://127.0.0.1:{stack.server.admin_port}"]
    with echo_target() as target, stack.tunnel("uds", target.name):
        assert main(["top", "-b", "-n", "2", "-d", "0.1", *admin]) == 0
    out = capsys.readouterr().out
    first, second = out.split("\n\nisthmus top")
    assert "\x1b" not in out and first.startswith("isthmus top  ")
    assert "\nserver cp-1\n\nID   TARGET" in first and target.name in first
    assert "dials -," in first and "dials 0.0/s" in second and "0B/s" in second


def test_a_dial_of_server_and_agent_is_counted_once(stack: Stack) -> None:
    ports = (stack.server.admin_port, stack.agent.admin_port)
    watcher = Watcher([AdminClient(f"127.0.0.1:{port}") for port in ports], once=True)
    watcher.look()
    before = watcher.counts._at_s
    with echo_target() as target:
        for _ in range(4):
            with stack.tunnel("uds", target.name) as client:
                client.send(b"x")
                assert client.read_exactly(1) == b"x"
    watcher.look()
    assert watcher.counts.dials_s is not None
    assert round(watcher.counts.dials_s * (watcher.counts._at_s - before)) == 4


def test_without_a_terminal_it_says_so(stack: Stack) -> None:
    args = [*TOP, "--admin", f"http://127.0.0.1:{stack.server.admin_port}"]
    done = subprocess.run(
        args, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env=ENVIRONMENT, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "isthmus: top needs a terminal; use -b to print frames\n"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    with Terminal(["env", "TERM=dumb", *args], env) as terminal:
        assert terminal.wait_exit() == 2 and "use -b to print frames" in terminal.text


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    assert main(["top", "-b", "-n", "1", "--admin", dead]) == 1
    assert "no answer: 127.0.0.1" in capsys.readouterr().out
    with Terminal([*TOP, "--admin", dead], ENVIRONMENT) as terminal:
        assert terminal.wait_exit() == 2
        assert "nothing listens there" in terminal.text and OTHER_SCREEN not in terminal.raw
