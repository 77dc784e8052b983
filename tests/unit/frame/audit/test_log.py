"""The audit log's file: real files, pipes and limits, and a thread that writes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.frame.audit.log import AuditLog, Backups
from isthmus.frame.audit.model import Record, Stage, to_line

LIMIT_S = 20.0
DAY_S = 86400.0


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for another thread."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.001)


def line(number: int, size: int = 0) -> bytes:
    """A record of a number, and at least so long."""
    return to_line(
        Record(time="t", stage=Stage.BEGIN, connection_id=f"p-{number:x}", reason="x" * size)
    )


def numbers(data: bytes) -> list[int]:
    """The records in a file, all of them whole."""
    assert not data or data.endswith(b"\n")
    read = [json.loads(text) for text in data.splitlines()]
    return [int(it["connectionId"][2:], 16) for it in read if it["stage"] == "Begin"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A named pipe, and a reader who may read or not."""
    name = tmp_path / "pipe"
    os.mkfifo(name)
    reader = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    yield str(name), reader
    os.close(reader)


def test_lines_are_in_the_file_in_order_when_it_is_closed(path: Path) -> None:
    log = AuditLog(str(path), max_bytes=0)
    for number in range(5000):
        log.put(line(number))
    log.close()
    assert numbers(path.read_bytes()) == list(range(5000))
    assert log.counts() == (5000, 0, 0)
    log.close()


def test_a_line_is_written_without_waiting_for_the_next(path: Path) -> None:
    log = AuditLog(str(path), max_bytes=0)
    log.put(line(1))
    until(lambda: path.stat().st_size, "the first line")
    log.put(line(2))
    until(lambda: numbers(path.read_bytes()) == [1, 2], "the second line")
    log.close()


def test_only_its_owner_may_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        AuditLog(str(path), max_bytes=0).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_goes_on_behind_what_is_there_and_ends_half_a_line(path: Path) -> None:
    path.write_bytes(line(1) + b'{"stage":"Beg')
    log = AuditLog(str(path), max_bytes=0)
    log.put(line(2))
    log.close()
    assert path.read_bytes() == line(1) + b'{"stage":"Beg\n' + line(2)


@pytest.mark.parametrize(
    ("name", "why"), [("no/such/dir.log", "No such file or directory"), (".", "Is a directory")]
)
def test_a_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"--audit-log-path .*: {why}"):
        AuditLog(str(tmp_path / name), max_bytes=0)


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="No such device or address"):
        AuditLog(str(tmp_path / "pipe"), max_bytes=0)


# Rotation.


def test_no_record_is_lost_by_rotation_and_no_file_is_too_large(path: Path) -> None:
    log = AuditLog(str(path), max_bytes=10_000, backups=Backups())
    for number in range(2000):
        log.put(line(number, number % 200))
    log.close()
    files = [*Backups().found(path), path]
    assert len(files) > 10
    assert max(file.stat().st_size for file in files) <= 10_000
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    found = [number for file in files for number in numbers(file.read_bytes())]
    assert found == list(range(2000))


def test_a_record_larger_than_a_file_has_one_of_its_own(path: Path) -> None:
    log = AuditLog(str(path), max_bytes=100, backups=Backups())
    for number in range(3):
        log.put(line(number, 500))
    log.close()
    files = [*Backups().found(path), path]
    assert [numbers(file.read_bytes()) for file in files if file.stat().st_size] == [[0], [1], [2]]


def test_so_many_old_files_are_kept(path: Path) -> None:
    stranger = path.with_name("audit-of-somebody-else.log")
    stranger.write_text("mine")
    log = AuditLog(str(path), max_bytes=200, backups=Backups(most=2))
    for number in range(50):
        log.put(line(number))
    log.close()
    assert len(Backups().found(path)) == 2
    assert numbers(path.read_bytes())[-1] == 49
    assert stranger.read_text() == "mine"


def test_old_files_are_deleted_by_age(path: Path) -> None:
    backups = Backups(max_age_days=3)
    made = []
    for days in (10, 4, 2, 0):
        path.write_text("x")
        made.append(backups.move(path, now=100 * DAY_S - days * DAY_S))
    backups.prune(path, now=100 * DAY_S)
    assert backups.found(path) == made[2:]


def test_two_files_of_one_moment_have_two_names(path: Path) -> None:
    names = []
    for _ in range(3):
        path.write_text("x")
        names.append(Backups().move(path, now=1.0).name)
    assert names == [
        "audit-1970-01-01T00-00-01.000.log",
        "audit-1970-01-01T00-00-01.001.log",
        "audit-1970-01-01T00-00-01.002.log",
    ]


def test_who_moves_the_file_away_gets_what_was_before(path: Path) -> None:
    moved = path.with_suffix(".1")
    log = AuditLog(str(path), max_bytes=0)
    log.put(line(1))
    until(lambda: log.written == 1, "the first line")
    path.rename(moved)
    log.put(line(2))
    log.close()
    assert (numbers(moved.read_bytes()), numbers(path.read_bytes())) == ([1], [2])


def test_reopening_makes_the_file_again_though_nothing_is_written(path: Path) -> None:
    log = AuditLog(str(path), max_bytes=0)
    path.unlink()
    log.reopen()
    until(path.exists, "the file is there again")
    log.close()


def test_a_file_that_was_cut_is_gone_on_with(path: Path) -> None:
    log = AuditLog(str(path), max_bytes=10_000, backups=Backups())
    log.put(line(1, 9_000))
    until(lambda: log.written == 1, "the first line")
    os.truncate(path, 0)  # as logrotate's copytruncate does
    log.put(line(2, 9_000))
    log.close()
    assert numbers(path.read_bytes()) == [2]
    assert Backups().found(path) == []


def test_a_file_that_cannot_be_rotated_grows_and_loses_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Backups):
        def move(self, path: Path, *, now: float) -> Path:
            raise PermissionError(13, "Permission denied")

    log = AuditLog(str(path), max_bytes=1000, backups=Stuck())
    for number in range(100):
        log.put(line(number))
    until(lambda: log.written == 100, "they are written")
    log.put(line(100))
    log.close()
    assert numbers(path.read_bytes()) == list(range(101))
    said = [it.message for it in caplog.records]
    assert said == ["cannot rotate the audit log, which keeps growing"]


def test_files_that_are_too_old_go_when_a_server_starts(path: Path) -> None:
    path.write_text("x")
    old = Backups().move(path, now=0.0)
    AuditLog(str(path), max_bytes=1000, backups=Backups(max_age_days=1)).close()
    assert not old.exists()


# When it cannot be written.


def test_what_does_not_fit_is_dropped_counted_and_told(pipe: tuple[str, int]) -> None:
    name, reader = pipe
    log = AuditLog(name, max_bytes=0, most_records=100)
    for number in range(3000):  # a pipe takes 64 KiB, and nobody reads
        log.put(line(number, 100))
        if number == 1000:
            until(lambda: log.dropped, "the queue is full")
    lost = log.dropped
    assert 0 < lost < 3000
    got = bytearray()
    read_until(reader, got, lambda: log.written >= 3000 - lost)
    log.put(line(9999))
    log.close()
    read_until(reader, got, lambda: numbers_in(got)[-1] == 9999)
    told = [json.loads(it)["dropped"] for it in got.splitlines() if b'"Dropped"' in it]
    assert sum(told) == lost == log.dropped
    assert len(numbers_in(got)) == 3001 - lost


def read_until(reader: int, got: bytearray, holds: Callable[[], bool]) -> None:
    """Read what is in the pipe until something holds."""

    def read() -> bool:
        with contextlib.suppress(BlockingIOError):
            got.extend(os.read(reader, 1 << 16))
        return holds()

    until(read, "everything was read")


def numbers_in(data: bytes | bytearray) -> list[int]:
    """The records so far; the last may not be whole yet."""
    return numbers(bytes(data[: data.rfind(b"\n") + 1]))


def test_the_queue_is_bounded_in_bytes_too(pipe: tuple[str, int]) -> None:
    log = AuditLog(pipe[0], max_bytes=0, most_bytes=200_000)
    for number in range(100):
        log.put(line(number, 10_000))
    assert log.dropped >= 100 - (200_000 + 2 * 65536) // 10_000
    log.close(timeout_s=0.01)  # the pipe is full: nobody waits for its reader
    assert log.written < 100 - log.dropped
    read_until(pipe[1], bytearray(), lambda: log.written > 100 - log.dropped)
    log.close()


def test_a_full_disk_is_said_once_and_nothing_is_half_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "isthmus")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = AuditLog(str(path), max_bytes=0)
    log.put(line(0))
    until(lambda: log.written == 1, "the first line")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        for number in range(1, 50):
            log.put(line(number, 100))
        until(lambda: log.errors >= 2, "it is tried again")
        there = numbers(path.read_bytes())
        assert there == list(range(len(there))), "whole lines, in order"
        assert len(path.read_bytes()) + len(line(49, 100)) > 1000, "as many as there is room for"
        assert log.written == len(there)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    until(lambda: log.written == 50, "it is written when there is room")
    log.close()
    assert numbers(path.read_bytes()) == list(range(50))
    said = [it.message for it in caplog.records if "cannot write" in it.message]
    assert len(said) == 1
    assert [it.message for it in caplog.records if "writable again" in it.message]


def test_a_device_that_is_always_full_loses_only_what_it_must(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = AuditLog("/dev/full", max_bytes=0)
    log.put(line(1))
    until(lambda: log.errors, "it is tried")
    log.close()
    assert log.written == 0
    assert "No space left on device" in str([vars(it) for it in caplog.records])


def test_a_reader_that_leaves_and_another_that_comes_get_each_byte_once(tmp_path: Path) -> None:
    name = tmp_path / "pipe"
    os.mkfifo(name)
    reader = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    log = AuditLog(str(name), max_bytes=0)
    for number in range(2000):
        log.put(line(number, 100))
    got = bytearray()
    read_until(reader, got, lambda: len(got) > 1000)
    os.close(reader)  # what was in the pipe is lost with it
    until(lambda: log.errors, "nobody reads")
    reader = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    more = bytearray()
    read_until(reader, more, lambda: b"p-7cf" in more)
    log.close()
    os.close(reader)
    first, second = numbers_in(got), numbers(bytes(more[more.find(b"\n") + 1 :]))
    assert first == list(range(len(first)))
    assert second == list(range(second[0], 2000))
    assert second[0] > first[-1]


def test_standard_output_is_written_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    log = AuditLog("-", max_bytes=100, backups=Backups())
    for number in range(10):
        log.put(line(number))
    log.reopen()
    log.close()
    assert numbers(capfd.readouterr().out.encode()) == list(range(10))
    os.fstat(1)  # it is still open


def test_the_last_lines_stay_in_memory(path: Path) -> None:
    log = AuditLog(str(path), max_bytes=0, most_records=0)  # everything is dropped
    assert log.recent(0, 10) == ([], 0)
    for number in range(250):
        log.put(b"%d\n" % number)
    lines, newest = log.recent(0, 1000)
    assert newest == 250 and lines == [b"%d\n" % number for number in range(50, 250)]
    assert log.recent(248, 1000) == ([b"248\n", b"249\n"], 250)
    assert log.recent(100, 1) == ([b"249\n"], 250)
    assert log.recent(250, 10) == log.recent(999, 10) == log.recent(0, 0) == ([], 250)
    log.close()


def test_it_says_while_it_fails(tmp_path: Path) -> None:
    """/dev/full takes nothing; a file in its place takes all that waited."""
    path = tmp_path / "audit.log"
    path.symlink_to("/dev/full")
    log = AuditLog(str(path), max_bytes=0)
    assert not log.failing
    log.put(line(1))
    until(lambda: log.failing, "the first record fails")
    path.unlink()
    log.reopen()
    until(lambda: not log.failing, "it is written again")
    assert numbers(path.read_bytes()) == [1]
    log.close()
