"""The command as people meet it: help, wrong words, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from isthmus import __version__
from isthmus.cli.main import COMMANDS, main
from isthmus.programs import programs

HEAVY = ["aiohttp", "asyncio", "cryptography", "uvloop", "rich", "prometheus_client", "pyroute2"]
PROBE = """
import json, sys
from isthmus.cli.main import main
code = main(sys.argv[2:])
print(json.dumps([code, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]))
"""


def probe(modules: list[str], *args: str) -> list[object]:
    """Exit code, and which of the modules are loaded after it, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(modules), *args],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("line", "code"),
    [("--help", 0), ("--version", 0), ("", 0), ("serve", 2), ("server", 2)]
    + [(f"{name} --help", 0) for name in COMMANDS],
)
def test_help_and_typing_errors_load_nothing_heavy(line: str, code: int) -> None:
    assert probe(["click", *HEAVY], *line.split()) == [code, ["click"]]


@pytest.mark.parametrize("program", [it.name for it in programs()])
def test_help_of_a_program_loads_neither_messages_nor_policies(program: str) -> None:
    names = ["google.protobuf", "isthmus.settings.rules_entitlements", "yaml"]
    assert probe(names, program, "--help") == [0, []]


def test_the_package_is_the_command() -> None:
    argv = [sys.executable, "-m", "isthmus", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"isthmus {__version__}\n", "")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"isthmus {__version__}\n"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["servr"], "unknown command 'servr', did you mean server?"),
        (["zzz"], "unknown command 'zzz'"),
        (["--verion"], "unknown flag --verion, did you mean --version?"),
        (["server", "--servr-port=1"], "unknown flag --servr-port, did you mean --server-port?"),
        (["agent", "--zzzzzzzz"], "unknown flag --zzzzzzzz"),
        (["agent", "-x"], "unknown flag -x"),
        (["agent", "--ca-cert"], "option '--ca-cert' requires an argument"),
        (["agent", "word"], "got unexpected extra argument (word)"),
        (["agent", "--v=high"], "--v: 'high' is not a whole number"),
        (["server", "--mode", "socks"], "--mode must be grpc or http-connect, not 'socks'"),
        (
            ["server", "--mode", "grpc,grpc"],
            "--mode must be grpc, http-connect or grpc,http-connect",
        ),
        (
            ["agent"],
            "--ca-cert, --agent-cert and --agent-key are missing: create the certificates with"
            ' "isthmus pki init", see isthmus pki init -h',
        ),
        (
            ["bootstrap", "apiserver"],
            "--bind-address and --target are missing, see isthmus bootstrap apiserver -h",
        ),
        (
            ["server"],
            "--cluster-cert, --cluster-key, --cluster-ca-cert, --server-cert, --server-key and"
            " --server-ca-cert are missing: create the certificates with"
            ' "isthmus pki init", see isthmus pki init -h',
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"isthmus: {sentence}\n")


def test_the_module_runs_and_passes_the_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "isthmus.cli.main", "agent", "--qqqqqq"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    sentence = "isthmus: unknown flag --qqqqqq\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)


def run(*args: str, **streams: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys, isthmus.cli.main as m; sys.exit(m.main())", *args],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        **streams,  # type: ignore[call-overload]
    )


def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = run("completion", "bash", stdout=full)
    sentence = "isthmus: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, sentence)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_streams_that_are_closed_are_done_without(closed: int) -> None:
    # status says on standard error that nothing answers
    args = ("status", "--admin=http://127.0.0.1:1")
    done = run(*args, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(closed))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_help_of_a_command_as_kubectl_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "manifest", "agent"]) == 0
    assert capsys.readouterr().out.startswith("Usage: isthmus manifest agent ")
    assert main(["help"]) == main(["--help"]) == 0
    first, again = capsys.readouterr().out.split("Usage: ")[1:]
    assert first == again
    assert main(["help", "nothing"]) == 2
    assert capsys.readouterr().err == "isthmus: unknown command 'nothing'\n"


def test_help_is_wrapped_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
    cut = re.findall(r"^.* [a-z]+-$", capsys.readouterr().out, re.M)
    assert cut == []
