"""The commands of both sidecars: the word run, wrong flags, and what is imported for help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.cli.main import main

BOTH = ["socks5-proxy", "https-proxy"]


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize("word", [[], ["run"]])
def test_run_is_accepted_before_the_flags(
    command: str, word: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # HyperShift's own order: flag and value as two words.
    code = main([command, *word, "--serving-port", "8090", "--serving-address", "0.0.0.0"])
    assert code == 2
    assert "--serving-address 0.0.0.0 would open the guest cluster" in capsys.readouterr().err


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize("words", [["walk"], ["run", "run"], ["--prefer-ipv4", "run"]])
def test_no_other_word_is(
    command: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *words]) == 2
    assert "unexpected extra argument" in capsys.readouterr().err


@pytest.mark.parametrize("command", BOTH)
def test_a_missing_certificate_is_one_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "a"}}],'
        ' "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}]}'
    )
    missing = str(tmp_path / "missing")
    flags = [f"--kubeconfig={kubeconfig}", f"--tls-cert-path={missing}", "--wait-for-files=0"]
    assert main([command, *flags]) == 2
    said = capsys.readouterr().err
    assert (missing in said, said.count("\n")) == (True, 1)


def test_flags_of_the_other_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["https-proxy", "--disable-resolver"]) == 2
    assert "unknown flag --disable-resolver" in capsys.readouterr().err
    assert main(["socks5-proxy", "--https-proxy=http://a:1"]) == 2
    assert "unknown flag --https-proxy" in capsys.readouterr().err


@pytest.mark.parametrize("command", BOTH)
def test_help_is_cheap(command: str) -> None:
    script = (
        "import sys; from isthmus.cli.main import main; main([sys.argv[1], '--help']);"
        "print(*sorted({'asyncio', 'ssl', 'h11', 'uvloop', 'lightkube'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, command],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "Example" in done.stdout
    assert done.stdout.splitlines()[-1] == ""
