"""A file that is followed: what is right is taken, what is wrong is said once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.net.files import FollowedFile, read_text, stamp_of


class Bed:
    """A file with a number in it, and what was heard of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.taken: list[int] = []
        self.failed: list[str] = []
        self.reads = 0
        self.while_reading: Callable[[], None] | None = None
        self.put("1")
        self.file = FollowedFile(
            str(path), self._read, taken=self.taken.append,
            failed=lambda error: self.failed.append(str(error)),
        )  # fmt: skip

    def put(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    def check(self) -> None:
        asyncio.run(self.file.check())

    def _read(self, path: str) -> int:
        self.reads += 1
        text = read_text(path, what="--number ")
        if self.while_reading is not None:
            self.while_reading()
        if not text.isdigit():
            raise ConfigError(f"{path}: not a number")
        return int(text)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path / "number")


def test_it_is_read_again_when_it_changed_and_only_then(bed: Bed) -> None:
    bed.check()
    assert (bed.file.current, bed.taken, bed.reads) == (1, [], 1)
    bed.put("2")
    bed.check()
    bed.check()
    assert (bed.file.current, bed.taken, bed.reads) == (2, [2], 2)


def test_what_is_wrong_or_gone_is_said_once_and_changes_nothing(bed: Bed) -> None:
    bed.put("x")
    bed.check()
    bed.check()
    assert bed.failed == [f"{bed.path}: not a number"]
    bed.path.unlink()
    bed.check()
    bed.check()
    assert bed.failed[1:] == [f"cannot read --number {bed.path}: no such file"]
    assert (bed.file.current, bed.taken) == (1, [])
    bed.put("3")
    bed.check()
    assert (bed.file.current, bed.taken) == (3, [3])


def test_what_is_replaced_while_it_is_read_is_read_whole_by_the_next_look(bed: Bed) -> None:
    bed.put("2")
    bed.while_reading = lambda: bed.put("3")
    bed.check()
    assert (bed.file.current, bed.taken) == (1, [])
    bed.while_reading = None
    bed.check()
    assert (bed.file.current, bed.taken) == (3, [3])


def test_a_look_that_is_asked_for_reads_the_same_file_again(bed: Bed) -> None:
    async def scenario() -> None:
        watching = asyncio.create_task(bed.file.watch(look_s=3600.0))
        bed.file.look_now()
        async with asyncio.timeout(20):
            while not bed.taken:
                await asyncio.sleep(0.001)
        watching.cancel()
        await asyncio.wait({watching})

    asyncio.run(scenario())
    assert (bed.taken, bed.reads) == ([1], 2)


def test_a_copy_that_keeps_time_and_size_is_another_state(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    first = os.stat(path)
    before = stamp_of(str(path))
    path.write_text("b")
    os.utime(path, ns=(first.st_atime_ns, first.st_mtime_ns))
    assert stamp_of(str(path)) != before
    assert stamp_of("a\0b") == stamp_of(str(tmp_path / "none")) == ()


def test_the_first_has_to_be_right(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read --number .*/none: no such file$"):
        read_text(str(tmp_path / "none"), what="--number ")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        read_text(str(tmp_path / "latin"))
