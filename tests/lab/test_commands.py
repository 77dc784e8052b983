"""The lab's commands as a user types them: up, show, shell, list, down; several labs at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from machine import HOME, LAB, environment, lab, nothing_left

SIMPLE = """\
title: Two hosts
networks:
  net: {cidr: 10.210.0.0/24}
hosts:
  left:
    at: {net: 10.210.0.10}
  right:
    at: {net: 10.210.0.20}
    serve: {http: 8080}
steps:
  - {from: left, get: right:8080, answers: from right}
  - {from: left, connect: right:1, fails: timeout}
"""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def simple(tmp_path: Path) -> str:
    path = tmp_path / "simple.yaml"
    path.write_text(SIMPLE)
    return str(path)


def token(printed: str) -> str:
    found = re.search(r"lab ([0-9a-f]{6}) is up", printed)
    assert found, printed
    return found[1]


def test_two_labs_at_once(simple: str) -> None:
    one, two = token(lab("up", simple)), token(lab("up", "isolated-cluster"))
    try:
        assert one != two
        listed = json.loads(lab("list", "-o", "json"))
        assert {each["id"] for each in listed["labs"]} == {one, two}
        page = lab("shell", "--lab", one, "left", "curl", "-sS", "http://right:8080/some/path")
        assert page.startswith("from right\nasked for: /some/path\n")
        assert "from pod" in lab("shell", "--lab", two, "node", "curl", "-sS", "http://pod:8080/")
        done = subprocess.run(
            [*LAB, "show"], env=environment(), text=True, capture_output=True, check=False
        )
        assert done.returncode == 2
        assert f"several labs are up: choose one by --lab: {min(one, two)}" in done.stderr
        assert "right" in lab("show", "--lab", one)
    finally:
        lab("down", "--lab", one)
        lab("down", "--all")


def test_show_draws_live_tunnels(tmp_path: Path) -> None:
    lab("up", "isolated-cluster")
    directory = next(HOME.iterdir())
    held = subprocess.Popen(
        [*LAB, "shell", "master", sys.executable, "-c",
         "import socket; s = socket.socket(socket.AF_UNIX);"
         f" s.connect('{directory}/connect.sock');"
         " s.sendall(b'CONNECT pod:7 HTTP/1.1\\r\\nHost: pod:7\\r\\n\\r\\n');"
         " print(s.recv(100), flush=True); input()"],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert held.stdout is not None and b" 200 " in held.stdout.readline()
        text = lab("show")
        assert "pod:7" in text and "server" in text and "agent" in text
        lab("show", "--svg", str(tmp_path / "picture.svg"))
        assert "pod:7" in "".join(ElementTree.parse(tmp_path / "picture.svg").getroot().itertext())
    finally:
        lab("down")
        held.communicate(timeout=20)


def test_run_that_does_not_hold_says_what_was_seen(simple: str) -> None:
    done = subprocess.run(
        [*LAB, "run", simple], env=environment(), text=True, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert "✓" in done.stdout and "✗" in done.stdout and "1 of 2 held" in done.stdout
    assert "refused: " in done.stdout


def test_keep_leaves_it_up(simple: str) -> None:
    report = json.loads(lab("run", simple, "--keep", "--output=json", check=False))
    assert report["kept"] and [path.name for path in HOME.iterdir()] == [report["lab"]]
    lab("down", "--lab", report["lab"])


def test_processes_left_out_can_be_started_by_hand() -> None:
    lab("up", "isolated-cluster", "--without=server", "--without=agent")
    try:
        directory = next(HOME.iterdir())
        assert not (directory / "connect.sock").exists()
        assert (directory / "pki" / "ca.crt").exists()
    finally:
        lab("down")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["up", "isolated-clutser"], "did you mean isolated-cluster"),
        (["up", "isolated-cluster", "--without=servre"], "--without=servre: no such process"),
        (["down"], "no lab is up"),
        (["show", "--lab", "ffffff"], "no lab ffffff is up"),
        (["run", "/nowhere/lab.yaml"], "/nowhere/lab.yaml"),
    ],
)
def test_refusals(args: list[str], said: str) -> None:
    done = subprocess.run(
        [*LAB, *args], env=environment(), text=True, capture_output=True, check=False
    )
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def refused(path: Path, text: str, *args: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run(
        [*LAB, "run", str(path), *args], env=environment(), text=True, capture_output=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["kept", "owner", "about.json", "topology.yaml", "pki", "logs"])
def test_files_that_the_lab_needs_itself(tmp_path: Path, name: str) -> None:
    done = refused(tmp_path / "own.yaml", f'{SIMPLE}files: {{{name}: ""}}\n')
    assert done.returncode == 2
    assert f"files.{name}: '{name}' is a name that the lab uses itself" in done.stderr


def test_a_program_that_does_not_exist_is_no_failure_that_was_expected(tmp_path: Path) -> None:
    step = "  - {from: left, run: crul http://right:8080/, fails: true}\n"
    done = refused(tmp_path / "typo.yaml", SIMPLE + step)
    assert done.returncode == 2
    assert "typo runs crul: not found in the PATH" in done.stderr


def test_a_program_that_fails_at_once_is_seen(tmp_path: Path) -> None:
    text = SIMPLE.replace(
        "at: {net: 10.210.0.10}", "at: {net: 10.210.0.10}\n    processes: {p: 'false'}"
    )
    done = refused(tmp_path / "fails.yaml", text)
    assert done.returncode == 1
    assert "p ended with exit code 1" in done.stderr + done.stdout


def test_a_step_that_cannot_be_done_is_named_and_the_rest_listed(tmp_path: Path) -> None:
    text = SIMPLE.replace(
        "at: {net: 10.210.0.10}",
        "at: {net: 10.210.0.10}\n    processes: {p: {command: sleep 100, start: false}}",
    ).replace("steps:\n", "steps:\n  - freeze: p\n")
    done = refused(tmp_path / "cannot.yaml", text, "--output=json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    first, *rest = report["steps"]
    assert (first["from"], first["what"], first["seen"]) == ("left", "freeze p", "p is not running")
    assert [step["seen"] for step in rest] == ["not done", "not done"]
    assert not report["held"]


def test_modules_of_the_current_directory_are_not_ours(simple: str, tmp_path: Path) -> None:
    """Whoever can write there would be root."""
    (tmp_path / "h11.py").write_text("raise SystemExit('not yours')")
    (tmp_path / "uvloop.py").write_text("raise SystemExit('not yours')")
    isthmus = [sys.executable, "-P", "-m", "isthmus.cli.main", "lab"]
    done = subprocess.run(
        [*isthmus, "run", simple, "--output=json"], env=environment(), text=True,
        capture_output=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(done.stdout)["steps"][0]["held"], done.stderr


def test_nobody_reads_the_verdict(simple: str) -> None:
    for where in (">&-", "2>&-", ">/dev/full"):
        done = subprocess.run(
            ["bash", "-c", f"{' '.join(LAB)} run {simple} {where}"], env=environment(),
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1, where  # one of its steps does not hold


def test_program_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(SIMPLE.replace("hosts:\n", "hosts:\n  bad:\n    at: {net: 10.210.0.30}\n"
        "    processes: {server: isthmus server --mode=nonsense}\n"))  # fmt: skip
    done = subprocess.run(
        [*LAB, "run", str(path)], env=environment(), text=True, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert "server ended with exit code 2: isthmus: --mode" in done.stderr
