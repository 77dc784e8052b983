"""``isthmus agent setup-interface`` beside ``isthmus agent``; what it does is tests/lab's part."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from isthmus.cli.main import cli, main
from isthmus.programs.agent.command import setup_interface as command


def said(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = main(["agent", *args])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "setup-interface needs --bind-address"),
        (("--remove",), "setup-interface needs --bind-address"),
        (("--bind-address=::1",), "--bind-address ::1 is a loopback address; use"),
        (("--bind-address=10.0.0.1", "--bind-interface=a/b"), "--bind-interface requires"),
        (
            ("--bind-address=10.0.0.1", "--uplink-interface=none,eth0"),
            "--uplink-interface=none cannot be combined with an interface",
        ),
        (("--bind-adress=10.0.0.1",), "unknown flag --bind-adress, did you mean --bind-address?"),
        (("word",), "got unexpected extra argument (word)"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], sentence: str
) -> None:
    code, text = said(capsys, "setup-interface", *args)
    assert code == 2
    assert text.startswith(f"isthmus: {sentence}")


def test_the_word_means_something_only_where_a_command_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = said(capsys, "--agent-id", "setup-interface")
    missing = "--ca-cert, --agent-cert and --agent-key are missing"
    assert (code, text.split(":")[1].strip()) == (2, missing)
    code, text = said(capsys, "--v=1", "setup-interface")
    assert (code, text) == (2, "isthmus: got unexpected extra argument (setup-interface)\n")


def test_its_help_has_a_verb_and_an_example() -> None:
    with click.Context(cli, info_name="isthmus") as top:
        agent = cli.get_command(top, "agent")
        assert agent is not None
        assert "isthmus agent setup-interface" in agent.get_help(click.Context(agent))
        with pytest.raises(click.exceptions.Exit) as ended:
            agent.make_context("agent", ["setup-interface", "--help"], parent=top)
        assert ended.value.exit_code == 0
    with click.Context(command, info_name="isthmus agent setup-interface") as ctx:
        text = command.get_help(ctx)
    assert text.startswith("Usage: isthmus agent setup-interface [OPTIONS]")
    assert "isthmus agent setup-interface" in text.split("Example", 1)[1]
    for param in command.params:
        assert isinstance(param, click.Option)
        assert (param.help or "").split()[0].istitle()
        assert not (param.help or "").endswith(".")


def test_help_does_not_load_netlink() -> None:
    code = (
        "import sys; from isthmus.cli.main import main;"
        " main(['agent', 'setup-interface', '--help']); sys.exit('pyroute2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
