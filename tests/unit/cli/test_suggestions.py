"""A wrong word is answered with the nearest right one: commands, commands of groups, choices."""

from __future__ import annotations

import pytest

from isthmus.cli.main import main


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["statsu"], "unknown command 'statsu', did you mean status?"),
        (["version"], "unknown command 'version', did you mean --version?"),
        (
            ["server", "--mode=grcp"],
            "--mode must be grpc or http-connect, not 'grcp', did you mean grpc?",
        ),
        (["pki", "inti"], "unknown command 'inti', did you mean init?"),
        (["manifest", "agnet"], "unknown command 'agnet', did you mean agent?"),
        (["tunnels", "edn"], "unknown command 'edn', did you mean end?"),
        (["pki", "zzz"], "unknown command 'zzz'"),
        (["tunnels", "--srot=age"], "unknown flag --srot, did you mean --sort?"),
        (["pki", "show", "--outptu=json"], "unknown flag --outptu, did you mean --output?"),
        (
            ["pki", "show", "-o", "jsn"],
            "invalid value for '-o' / '--output': 'jsn' is not one of 'text', 'json', 'yaml',"
            " did you mean json?",
        ),
        (
            ["completion", "bsh"],
            "invalid value for '{bash|zsh|fish}': 'bsh' is not one of 'bash', 'zsh', 'fish',"
            " did you mean bash?",
        ),
        (
            ["tunnels", "--sort=xyz"],
            "invalid value for '--sort': 'xyz' is not one of 'age', 'bytes', 'rate'",
        ),
    ],
)
def test_the_nearest(args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    assert capsys.readouterr() == ("", f"isthmus: {sentence}\n")
