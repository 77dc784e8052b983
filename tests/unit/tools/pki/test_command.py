"""The pki command: what it prints, where, and what it does not import."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from isthmus.errors import ConfigError
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.command import command

RUN = [
    sys.executable,
    "-c",
    "from isthmus.tools.pki.command import command; command(prog_name='pki')",
]


def run(*args: str | Path) -> str:
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_init_names_what_it_made_and_show_reads_it(tmp_path: Path) -> None:
    made = run("init", tmp_path / "pki", "--server-name", "a.example", "--server-name", "::1")
    kinds = ["CA", "client CA", "server", "agent", "client"]
    assert [line[:10].strip() for line in made.splitlines()] == kinds
    for line in made.splitlines():
        assert all(Path(path).is_file() for path in line[10:].split())
    infos = {
        Path(info["path"]).name: info
        for info in json.loads(run("show", "-o", "json", tmp_path / "pki"))
    }
    assert infos["server.crt"]["names"] == ["a.example", "::1"]
    assert infos["server.crt"]["key"] == "matches"
    assert infos["agent.crt"]["usages"] == ["client"]


def test_keep_ca_with_force_renews(tmp_path: Path) -> None:
    run("init", tmp_path)
    before = (tmp_path / "ca.crt").read_bytes()
    made = run("init", tmp_path, "--keep-ca", "--force", "--days", "7")
    assert "CA " not in made
    assert (tmp_path / "ca.crt").read_bytes() == before
    (info,) = json.loads(run("show", "-o", "json", tmp_path / "server.crt"))
    # A share of its life counts, as for status and doctor: it has only begun.
    assert (info["daysLeft"], info["standing"]) == (6, "ok")


def test_a_certificate_for_servers_among_themselves(tmp_path: Path) -> None:
    made = run("init", tmp_path, "--relay-name", "relay.example")
    assert made.splitlines()[-1].split()[0] == "relay"
    (info,) = json.loads(run("show", "-o", "json", tmp_path / "relay.crt"))
    assert (info["names"], info["issuer"]) == (["relay.example"], "CN=isthmus-ca")


def test_a_directory_from_before_keeps_its_one_ca(tmp_path: Path) -> None:
    pki.init(tmp_path, one_ca=True)
    made = run("init", tmp_path, "--keep-ca", "--force")
    assert "ca.crt signs for agents and clients; docs/pki.md has the steps" in made
    assert not (tmp_path / "client-ca.crt").exists()
    (info,) = json.loads(run("show", "-o", "json", tmp_path / "client.crt"))
    assert info["issuer"] == "CN=isthmus-ca"


def test_init_twice_is_a_sentence(tmp_path: Path) -> None:
    run("init", tmp_path)
    with pytest.raises(ConfigError, match="already exists; replace it with --force"):
        run("init", tmp_path)


def test_a_table_when_asked_for(tmp_path: Path) -> None:
    run("init", tmp_path)
    table = run(
        "show",
        tmp_path,
    )
    assert table.splitlines()[0].split() == ["Subject", "Usage"]
    for word in ("server.crt", "CN=isthmus-se", "CN=isthmus-ca", "127.0.0.1", "364 days left"):
        assert word in table


def test_a_table_on_a_terminal_and_in_a_pipe(tmp_path: Path) -> None:
    run("init", tmp_path)
    argv = [*RUN, "show", str(tmp_path)]
    piped = subprocess.run(argv, capture_output=True, check=True, text=True)
    assert "SHA-256" in piped.stdout
    assert "ca.crt" in piped.stdout
    main, side = pty.openpty()
    subprocess.run([*RUN, "show", str(tmp_path)], stdout=side, check=True)
    os.close(side)
    seen = os.read(main, 65536).decode()
    os.close(main)
    assert "SHA-256" in seen
    assert not seen.startswith("[")


def test_show_without_a_path_is_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(json.loads(run("show", "-o", "json"))) == 5


@pytest.mark.parametrize("args", [[], ["init"], ["show"]])
def test_help_starts_with_a_verb_and_has_an_example(args: list[str]) -> None:
    text = run(*args, "--help")
    first = text.split("\n\n")[1].strip()
    assert first.split()[0] in ("Create", "Create,", "Show")
    assert not first.endswith(".")
    assert "Example:" in text


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from isthmus.tools.pki.command import command;"
        "command(['init', '--help'], standalone_mode=False);"
        "print(sorted({'cryptography', 'rich', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
