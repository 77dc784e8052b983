"""A policy follows its file, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.server.networks import follow_policy, read_policy

HEAD = "apiVersion: isthmus.dev/v1alpha1\nkind: ConnectivityPolicy\nrules:\n"


def policy(name: str, effect: str = "allow") -> str:
    return f"{HEAD}- {{name: {name}, effect: {effect}}}\n"


class Bed:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.failures = 0
        path.write_text(policy("first"))
        self.file = follow_policy(str(path), on_failed=self._failed)

    def _failed(self) -> None:
        self.failures += 1

    def after(self, text: str | bytes | None) -> str:
        """The rule that holds after the file was replaced by this, or removed."""
        if text is None:
            self.path.unlink()
        else:
            new = self.path.with_suffix(".new")
            new.write_bytes(text.encode() if isinstance(text, str) else text)
            new.rename(self.path)
        asyncio.run(self.file.check())
        return self.file.current.rules[0].name


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path / "p.yaml")


def test_it_follows_the_file(bed: Bed) -> None:
    assert bed.after(policy("second")) == "second"
    assert bed.after(policy("third")) == "third"
    assert bed.failures == 0


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (policy("x", "alow"), "p.yaml:4:21: rules[0].effect: must be allow or deny, not 'alow'"),
        ("", "p.yaml: is empty"),
        (b"\xff", "not UTF-8"),
        (None, "no such file"),
    ],
)
def test_what_is_bad_is_said_once_and_changes_nothing(
    bed: Bed, bad: str | bytes | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "isthmus.server"):
        assert bed.after(bad) == "first"
        asyncio.run(bed.file.check())
        asyncio.run(bed.file.check())
    (line,) = caplog.messages
    assert said in line
    assert line.endswith("; the previously loaded policy stays in use")
    assert bed.failures == 1
    assert bed.after(policy("good")) == "good"


def test_the_first_has_to_be_right(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read --policy-file .*/none: no such file"):
        read_policy(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="--policy-file"):
        read_policy("a\0b")
