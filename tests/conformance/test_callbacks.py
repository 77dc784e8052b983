"""Closing from inside callbacks, and calls after the end: for every kind of end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bed import KINDS, PAIRS, Bed, Certificates, Side, able, run, sees_reset
from users import read_exactly, until

from isthmus.tunnel.end import Discard, End, Ending, join

BLOCK = bytes(1024) * 300


class Hook(Discard):
    """A peer that runs something when it is called."""

    __slots__ = ("answer", "calls", "on_abort", "on_eof", "on_write")

    def __init__(self, *, answer: bool = True) -> None:
        super().__init__()
        self.answer = answer
        self.calls: list[str] = []
        self.on_write = self.on_eof = self.on_abort = _nothing

    def write(self, data: bytes) -> bool:
        self.calls.append("write")
        self.on_write()
        return self.answer

    def write_eof(self) -> None:
        self.calls.append("eof")
        self.on_eof()

    def abort(self, reason: Ending) -> None:
        self.calls.append("abort")
        self.on_abort()


def _nothing() -> None:
    pass


def aborting(side: Side) -> Callable[[], None]:
    return lambda: side.end.abort(Ending.ADMIN)


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_aborts_its_writer(
    certificates: Certificates, kind: str, answer: bool
) -> None:
    async def test(bed: Bed) -> None:
        side, hook = await bed.side(kind), Hook(answer=answer)
        join(side.end, hook)
        hook.on_write = aborting(side)
        bed.spawn(side.user.send(BLOCK))
        await until(lambda: side.done)
        await sees_reset(side)
        assert side.done == [Ending.ADMIN]
        assert hook.calls == ["write"]

    run(certificates, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_half_close_that_aborts_its_writer(certificates: Certificates, kind: str) -> None:
    async def test(bed: Bed) -> None:
        side, hook = await bed.side(kind), Hook()
        join(side.end, hook)
        hook.on_eof = aborting(side)
        await side.user.send_eof()
        await until(lambda: side.done)
        await sees_reset(side)
        assert side.done == [Ending.ADMIN]
        assert hook.calls == ["eof"]

    run(certificates, test)


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_that_aborts_back(certificates: Certificates, kind: str) -> None:
    async def test(bed: Bed) -> None:
        side, hook = await bed.side(kind), Hook()
        join(side.end, hook)
        hook.on_abort = aborting(side)
        side.end.write(b"never read")
        await side.user.waiting()
        side.user.reset()
        await until(lambda: side.done)
        assert side.done == [Ending.RESET]
        assert hook.calls == ["abort"]

    run(certificates, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_half_close_answered_from_inside(certificates: Certificates, kind: str) -> None:
    async def test(bed: Bed) -> None:
        side, hook = await bed.side(kind), Hook()
        join(side.end, hook)

        def answer() -> None:
            side.end.write(b"bye")
            side.end.write_eof()

        hook.on_eof = answer
        await side.user.send_eof()
        assert await read_exactly(side.user, 4) == b"bye"
        await until(lambda: side.done)
        assert side.done == [Ending.CLEAN]
        assert hook.calls == ["eof"]

    run(certificates, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_from_inside_write_is_not_lost(certificates: Certificates, kind: str) -> None:
    async def test(bed: Bed) -> None:
        side, hook = await bed.side(kind), Hook(answer=True)
        join(side.end, hook)
        taken = 0

        def pause_and_resume() -> None:
            nonlocal taken
            taken += 1
            side.end.pause_reading()
            side.end.resume_reading()

        hook.on_write = pause_and_resume
        await side.user.send(BLOCK)
        await side.user.send_eof()
        await until(lambda: "eof" in hook.calls)
        assert taken

    run(certificates, test)


@pytest.mark.parametrize("how", ["clean", "reset"])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_a_report_that_aborts_the_other(
    certificates: Certificates, a: str, b: str, how: str
) -> None:
    """An owner that ends both ends when one of them reports."""

    async def test(bed: Bed) -> None:
        one, two = await bed.pair(a, b)
        reports: list[tuple[End, Ending]] = []

        def on_done(end: End, ending: Ending) -> None:
            reports.append((end, ending))
            for side in (one, two):
                side.end.abort(Ending.CANCELLED)

        one.end.on_done = two.end.on_done = on_done
        await two.user.send(b"never read")
        await one.user.waiting()
        if how == "reset":
            one.user.reset()
        else:
            await one.user.send_eof()
            await two.user.send_eof()
        await until(lambda: len(reports) == 2)
        assert {id(end) for end, _ in reports} == {id(one.end), id(two.end)}
        assert reports[0][1] is (Ending.CLEAN if how == "clean" else Ending.RESET)
        assert one.end.ending is not None
        assert two.end.ending is not None

    run(certificates, test)


def call_everything(end: End) -> None:
    assert end.write(b"late") is True
    assert end.write(b"") is True
    end.write_eof()
    end.pause_reading()
    end.resume_reading()
    end.abort(Ending.TIMED_OUT)
    end.start()
    end.write_eof()


@pytest.mark.parametrize("how", ["clean", "aborted", "reset"])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_after_the_end_do_nothing(certificates: Certificates, kind: str, how: str) -> None:
    async def test(bed: Bed) -> None:
        side, hook = await bed.side(kind), Hook()
        join(side.end, hook)
        side.end.write(b"never read")
        await side.user.waiting()
        match how:
            case "clean":
                side.end.write_eof()
                await side.user.send_eof()
            case "aborted":
                side.end.abort(Ending.ADMIN)
            case _:
                side.user.reset()
        await until(lambda: side.done)
        before, calls = list(side.done), list(hook.calls)
        call_everything(side.end)  # in the same turn of the loop
        await until(lambda: bed.carriers or bed.all_closed)
        call_everything(side.end)  # and when its descriptor is gone
        assert side.done == before == [side.end.ending]
        assert hook.calls == calls
        assert side.end.bytes_written == len(b"never read")

    run(certificates, test)


@pytest.mark.parametrize("kind", able("half-close"))
def test_half_close_is_said_once(certificates: Certificates, kind: str) -> None:
    async def test(bed: Bed) -> None:
        side, hook = await bed.side(kind), Hook()
        join(side.end, hook)
        side.end.write(b"last")
        side.end.write_eof()
        if kind != "memory":  # that one counts how often it is told
            side.end.write_eof()
        assert side.end.write(b"too late") is True
        assert await read_exactly(side.user, 5) == b"last"
        assert side.done == []
        await side.user.send(b"other way")
        await until(lambda: hook.calls == ["write"])

    run(certificates, test)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_write_says_nothing(certificates: Certificates, kind: str) -> None:
    async def test(bed: Bed) -> None:
        side, hook = await bed.side(kind), Hook()
        join(side.end, hook)
        assert side.end.write(b"") is True
        assert side.end.write(b"x") is True
        assert await read_exactly(side.user, 1) == b"x"
        assert side.done == []

    run(certificates, test)
