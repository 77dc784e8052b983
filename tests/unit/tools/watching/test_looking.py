"""Looking at several programs at once."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading

import pytest

from isthmus.tools.watching.looking import at_once

LIMIT_S = 20.0


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_results_are_in_order(count: int) -> None:
    assert at_once(lambda number: number * 2, range(count)) == [n * 2 for n in range(count)]


def test_they_are_done_at_once() -> None:
    met = threading.Barrier(3)
    assert sorted(at_once(lambda _: met.wait(LIMIT_S), range(3))) == [0, 1, 2]


def test_what_goes_wrong_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        at_once(lambda number: 1 // number, [1, 0, 1])


PATIENT = """
import sys
from isthmus.tools.watching.admin_flags import AdminFlags
from isthmus.cli.main import main
AdminFlags.clients.__kwdefaults__["timeout_s"] = 600.0
sys.exit(main(["status", "--admin", sys.argv[1], "--admin", sys.argv[2]]))
"""


def test_an_interrupt_does_not_wait_for_those_who_do_not_answer() -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in silent]
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PATIENT, *urls], stderr=subprocess.PIPE, text=True
            )
        )
        stack.callback(process.kill)
        for each in silent:  # until both are asked
            each.settimeout(LIMIT_S)
            stack.enter_context(each.accept()[0])
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said.strip()) == (130, "")
