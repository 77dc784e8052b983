"""``isthmus server setup-socket``: gives a directory away, and nothing that a link leads to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.cli.main import main

root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
OWNER = "--owner=65532"


def owner(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid


@root
def test_directories_are_given_to_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    names = (f"--uds-name={one}/a.sock", f"--uds-name={one}/b.sock", f"--uds-name={two}/c.sock")
    for _ in range(2):
        assert main(["server", "setup-socket", *names, OWNER]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said == [f"{path} now belongs to 65532" for path in (one, two)]
    assert owner(one) == owner(two) == (65532, 65532)
    assert owner(tmp_path) == (0, 0)


@root
def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    main(["server", "setup-socket", f"--uds-name={link}/s", OWNER])
    assert owner(target) == (0, 0)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--uds-name=/no/such/s", OWNER), "/no/such: No such file or directory"),
        (("--uds-name=/s", OWNER), "--uds-name: refusing to change the owner of /"),
        ((OWNER,), "--uds-name"),
        (("--uds-name=/run/x/s",), "--owner"),
        (("--uds-name=/run/x/s", "--owner=0"), "0"),
    ],
)
def test_what_is_wrong_is_said(
    args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "setup-socket", *args]) == 2
    assert said in capsys.readouterr().err
