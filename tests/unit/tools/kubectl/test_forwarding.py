"""Port-forwards by a kubectl that is a script: how many are open, and what becomes of failures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.tools.kubectl.forwarding import Forwards, explained
from isthmus.tools.kubectl.rules_pods import PodPort

#: Answers each connection with the port that was asked for; port 1 is forbidden.
KUBECTL = f"""#!{sys.executable}
import os, socket, sys
log, (pod, port) = {{log!r}}, sys.argv[-2:]
with open(log, "a") as file:
    file.write(f"{{{{os.getpid()}}}} {{{{pod}}}}\\n")
if port == ":1":
    sys.exit('error: pods "p" is forbidden')
listener = socket.create_server(("127.0.0.1", 0))
at = listener.getsockname()[1]
print(f"Forwarding from 127.0.0.1:{{{{at}}}} -> {{{{port[1:]}}}}", flush=True)
while True:
    accepted, _ = listener.accept()
    accepted.sendall(port.encode())
    accepted.close()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def forwards(tmp_path: Path, log: Path) -> Iterator[Forwards]:
    """At most two at a time."""
    script = tmp_path / "kubectl"
    script.write_text(KUBECTL.format(log=str(log)))
    script.chmod(0o755)
    made = Forwards([str(script)], most_open=2)
    yield made
    made.close()


def port(pod: str, number: int = 2, **more: str) -> PodPort:
    return PodPort(namespace="n", pod=pod, program="agent", port=number, **more)


def ask(forwards: Forwards, to: PodPort) -> bytes:
    reach = forwards.reach(to)
    with reach.connect() as sock:
        answer = sock.recv(100)
    reach.release()
    return answer


def started(log: Path) -> list[str]:
    return [line.split()[1] for line in log.read_text().splitlines()]


def runs(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_forward_is_used_again_and_makes_room(forwards: Forwards, log: Path) -> None:
    a, b, c = port("a"), port("b"), port("c", 3)
    assert [ask(forwards, one) for one in (a, a, b, a, c)] == [b":2", b":2", b":2", b":2", b":3"]
    assert started(log) == ["pod/a", "pod/b", "pod/c"]
    first, second, third = (line.split()[0] for line in log.read_text().splitlines())
    assert (runs(first), runs(second), runs(third)) == (True, False, True)  # b was used least
    ask(forwards, b)
    assert started(log)[3:] == ["pod/b"]


def test_one_in_use_is_not_ended(forwards: Forwards, log: Path) -> None:
    a = forwards.reach(port("a"))
    with a.connect():
        for name in ("b", "c", "d"):
            ask(forwards, port(name))
        ask(forwards, port("a"))
    a.release()
    assert started(log).count("pod/a") == 1


def test_closing_ends_all(forwards: Forwards, log: Path) -> None:
    for name in ("a", "b"):
        ask(forwards, port(name))
    forwards.close()
    assert not [line for line in log.read_text().splitlines() if runs(line.split()[0])]


def test_a_failure_has_its_reason_and_is_not_tried_again_at_once(
    forwards: Forwards, log: Path
) -> None:
    for _ in range(3):
        with pytest.raises(OSError, match=r'pods "p" is forbidden'):
            forwards.reach(port("a", 1)).connect()
    assert started(log) == ["pod/a"]


def test_what_does_not_run_is_not_asked(forwards: Forwards, log: Path) -> None:
    with pytest.raises(OSError, match="it waits"):
        forwards.reach(port("a", trouble="it waits")).connect()
    assert not log.exists()


def test_other_ports_have_their_own_forward(forwards: Forwards) -> None:
    reach = forwards.reach(port("a")).at(9)
    with reach.connect() as sock:
        assert sock.recv(100) == b":9"
    reach.release()


def test_an_ended_forward_is_replaced(forwards: Forwards) -> None:
    to = port("a")
    with forwards.reach(to).connect():
        child = forwards._children[to]
        child.process.terminate()
        child.process.wait()
        assert forwards.complaint(to) == ""
    forwards.release(to)
    assert ask(forwards, to) == b":2"  # by a new one


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("error: lost connection to pod", "lost connection to pod"),
        (
            'E1119 21:36:21.858558    4911 portforward.go:424] "Unhandled Error" err="an error'
            ' occurred forwarding 4 -> 5: no such \\"container\\""',
            'an error occurred forwarding 4 -> 5: no such "container"',
        ),
        (
            "an error occurred: dial tcp4 127.0.0.1:5: connect: connection refused",
            "nothing listens on port 5 in the pod (connection refused)",
        ),
        ("x" * 1000, f"{'x' * 300}…"),
    ],
)
def test_what_kubectl_says_is_for_people(line: str, expected: str) -> None:
    assert explained(line, 5) == expected
