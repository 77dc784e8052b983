"""Completion in real shells: what a person gets who presses Tab."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from clients import LIMIT_S
from programs import ENVIRONMENT
from terminal import Terminal

from isthmus.cli.main import main

HEAVY = ["aiohttp", "asyncio", "cryptography", "uvloop", "rich", "prometheus_client", "pyroute2"]
PROBE = """
import json, sys
from isthmus.cli.main import main
try:
    main([])
finally:
    print(json.dumps([name for name in json.loads(sys.argv[1]) if name in sys.modules]))
"""
START = {
    "bash": (["bash", "--norc", "--noprofile"], "source <(isthmus completion bash)"),
    "zsh": (
        ["zsh", "-f"],
        "autoload -U compinit; compinit -u -D; source <(isthmus completion zsh)",
    ),
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with files, and with ``isthmus`` in its bin."""
    command = tmp_path / "bin" / "isthmus"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom isthmus.cli.main import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    (tmp_path / "server-pem").touch()
    return tmp_path


def environment(here: Path) -> dict[str, str]:
    env = {**ENVIRONMENT, "PATH": f"{here / 'bin'}:{os.environ['PATH']}", "HOME": str(here)}
    return env | {"PS1": "> ", "PROMPT": "> ", "HISTFILE": ""}


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


WORDS = [
    ("isthmus ser", "isthmus server "),
    ("isthmus tunnels e", "isthmus tunnels end "),
    ("isthmus server --cluster-ca", "isthmus server --cluster-ca-cert "),
    ("isthmus server --mode=h", "isthmus server --mode=http-connect "),
    ("isthmus server --mode h", "isthmus server --mode http-connect "),
    ("isthmus server --mode=grpc,h", "isthmus server --mode=grpc,http-connect "),
    ("isthmus server --enable-profiling --log-format=j", "--log-format=json "),
    ("isthmus server --mode=grpc --cluster-cert=serv", "--cluster-cert=server-pem "),
    ("isthmus server --cluster-cert serv", "--cluster-cert server-pem "),
    ("isthmus curl --cacert serv", "isthmus curl --cacert server-pem "),
    ("isthmus status -o y", "isthmus status -o yaml "),
    ("isthmus lab up isolated-c", "isthmus lab up isolated-cluster "),
    ("isthmus egress explain pods/e", "isthmus egress explain pods/exec "),
    (
        "isthmus config explain egressSelections.connection.p",
        "isthmus config explain egressSelections.connection.proxyProtocol ",
    ),
]


def contains(terminal: Terminal, after: int, text: str) -> bool:
    return text in terminal.text[after:]


@pytest.mark.parametrize("name", START)
def test_tab(name: str, here: Path) -> None:
    shell(name)
    args, setup = START[name]
    with Terminal(args, environment(here), (40, 160)) as terminal:
        terminal.type(f"cd {here}; {setup}; echo rea''dy\n")
        terminal.wait(lambda: "\nready" in terminal.text, "the script is read")
        for typed, completed in WORDS:
            terminal.type("\x15")
            before = len(terminal.text)
            terminal.type(f"{typed}\t")
            terminal.wait(partial(contains, terminal, before, completed), completed)
        terminal.type("\x15isthmus server --clu\t\t\t")  # more than one: as far as they agree
        terminal.wait(lambda: "--cluster-key" in terminal.text, "what there is")
        terminal.type("\x15isthmus server --mode=\t\t")
        terminal.wait(lambda: "http-connect" in terminal.text.rpartition("--clu")[2], "choices")


def test_fish(here: Path) -> None:
    fish = shell("fish")
    script = "isthmus completion fish | source; for line in $argv; complete -C$line; end"
    lines = [typed for typed, _ in WORDS]
    done = subprocess.run(
        [fish, "--no-config", "-c", script, *lines, "isthmus server --mode=", "isthmus conf"],
        env=environment(here),
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S * 3,
    )
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert found == [
        *(completed.strip().rpartition(" ")[2] for _, completed in WORDS),
        "--mode=grpc",
        "--mode=http-connect",
        "config",
    ]
    assert "configurations, explain their fields" in done.stdout, "a comma does not cut help short"


def ask(words: str, count: int) -> list[str]:
    """What a shell would hear, and last which heavy packages it had to wait for."""
    asking = {"_ISTHMUS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(HEAVY)],
        env=ENVIRONMENT | asking,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "count", "answer"),
    [
        ("isthmus ser", 1, ["plain,server"]),
        ("isthmus server --cluster-k", 2, ["plain,--cluster-key"]),
        ("isthmus server --mode =", 3, ["plain,grpc", "plain,http-connect"]),
        ("isthmus server --mode = gr", 4, ["plain,grpc"]),
        ("isthmus server --enable-profiling = t", 4, ["plain,true"]),
        ("isthmus server --enable-profiling = true --mode = h", 7, ["plain,http-connect"]),
        ("isthmus server --logtostd", 2, []),  # ignored: nobody has to type it
        ("isthmus agent setup-interface --rem", 3, ["plain,--remove"]),
        ("isthmus node-proxy --kubeco", 2, ["plain,--kubeconfig"]),
        ("isthmus pki init ", 3, ["file,"]),
        ("isthmus zzz --x", 2, []),
        ("isthmus server --agent-port = 1", 4, []),
        ("isthmus 'unfinished", 1, []),
    ],
)
def test_what_a_shell_hears_and_nothing_heavy_is_loaded(
    words: str, count: int, answer: list[str]
) -> None:
    *heard, heavy = ask(words, count)
    assert [line for line in heard if line] == answer
    assert json.loads(heavy) == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", name]) == 0
    out, err = capsys.readouterr()
    assert f"_ISTHMUS_COMPLETE={name}_complete" in out and err == ""
