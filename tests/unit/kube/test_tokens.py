"""Tokens reviewed over HTTP: who is let in, who is not, and who has to wait."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fakeapi import FakeApi, status, until, with_api

from isthmus.kube.api import TokenStatus
from isthmus.kube.tokens import (
    Accepted,
    Crowded,
    Expected,
    Rejected,
    Reviewed,
    ReviewLimits,
    TokenReviewer,
    Unavailable,
    judge,
)
from isthmus.testing.clock import ManualClock
from isthmus.values import Identity

AUDIENCE = "system:konnectivity-server"
USER = "system:serviceaccount:kube-system:konnectivity-agent"
EXPECTED = Expected(
    audience=AUDIENCE, namespace="kube-system", service_account="konnectivity-agent"
)
TOKEN = "header.payload.signature-of-a-secret"
GOOD: dict[str, Any] = {
    "authenticated": True,
    "audiences": [AUDIENCE],
    "user": {
        "username": USER,
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "extra": {
            "authentication.kubernetes.io/pod-name": ["agent-x"],
            "authentication.kubernetes.io/node-name": ["node-7"],
        },
    },
}
WHO = Identity(USER, ("system:serviceaccounts", "system:authenticated"), kind="token")


def reviewer(
    api: FakeApi,
    timeout_s: float = 20.0,
    clock: Callable[[], float] = time.monotonic,
    **limits: Any,
) -> TokenReviewer:
    reviews = api.open(timeout_s=timeout_s).tokens
    return TokenReviewer(reviews, EXPECTED, limits=ReviewLimits(**limits), clock=clock)


def test_a_good_token_is_accepted_with_who_and_where(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.review = lambda spec: GOOD
        answer = await reviewer(api).review(f" {TOKEN}\n")
        assert answer == Accepted(identity=WHO, pod="agent-x", node="node-7")
        (asked,) = api.bodies
        assert asked["spec"] == {"token": TOKEN, "audiences": [AUDIENCE]}
        assert (asked["apiVersion"], asked["kind"]) == ("authentication.k8s.io/v1", "TokenReview")

    with_api(tmp_path, test)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"authenticated": False, "error": "token has expired"}, "not accept the token: token has"),
        ({}, "does not accept the token"),
        ({**GOOD, "authenticated": False}, "does not accept the token"),
        ({**GOOD, "audiences": []}, "is for no audience, not for system:konnectivity"),
        ({**GOOD, "audiences": None}, "is for no audience"),
        ({**GOOD, "audiences": ["https://a", "b"]}, "is for https://a, b, not for"),
        ({**GOOD, "user": {"username": USER + "x"}}, "not of system:serviceaccount"),
        ({**GOOD, "user": {"username": USER.upper()}}, "not of system:serviceaccount"),
        ({**GOOD, "user": {}}, "is of '', not of"),
        ({**GOOD, "user": None}, "is of '', not of"),
        ({"error": f"cannot look up {TOKEN}"}, "cannot look up [redacted]"),
    ],
)
def test_a_token_that_is_not_ours_is_rejected(
    tmp_path: Path, answer: dict[str, Any], why: str
) -> None:
    async def test(api: FakeApi) -> None:
        api.review = lambda spec: answer
        verdict = await reviewer(api).review(TOKEN)
        assert isinstance(verdict, Rejected)
        assert why in verdict.reason and TOKEN not in verdict.reason

    with_api(tmp_path, test)


@pytest.mark.parametrize("token", ["", "  ", "x" * 16385, "tök", "a\0b", "a\nb"])
def test_what_is_no_token_is_not_even_asked(tmp_path: Path, token: str) -> None:
    async def test(api: FakeApi) -> None:
        assert isinstance(await reviewer(api).review(token), Rejected)
        assert api.asked == []

    with_api(tmp_path, test)


@pytest.mark.parametrize(
    ("fault", "kind", "why"),
    [
        (status(403, "Forbidden", "cannot create tokenreviews"), Unavailable, "403 cannot create"),
        (status(401, "Unauthorized"), Unavailable, "401"),
        (status(429, "TooManyRequests"), Unavailable, "429"),
        (status(500, "InternalError"), Unavailable, "500"),
        (status(422, "Invalid", "audience is wrong"), Rejected, "audience is wrong"),
        (status(400, "BadRequest", f"what is {TOKEN}?"), Rejected, "what is [redacted]?"),
        (web.Response(text="<html>", status=502), Unavailable, "502"),
        (web.Response(text="{", status=201), Unavailable, "cannot decode the answer"),
        (web.Response(text="[]", status=201), Unavailable, "cannot decode the answer"),
        (web.Response(text='{"spec":{"token":"x"}}'), Unavailable, "has no status"),
        (web.Response(status=307, headers={"Location": "/"}), Unavailable, "307"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, web.Response) else None,
)
def test_an_api_that_cannot_be_asked_rejects_nobody(
    tmp_path: Path, fault: web.Response, kind: type[Reviewed], why: str
) -> None:
    async def test(api: FakeApi) -> None:
        async def fail(request: web.Request) -> web.StreamResponse:
            return fault

        api.fault = fail
        verdict = await reviewer(api).review(TOKEN)
        assert isinstance(verdict, kind) and not isinstance(verdict, Accepted)
        assert why in verdict.reason and TOKEN not in verdict.reason

    with_api(tmp_path, test)


def test_no_api_and_a_slow_one_are_unavailable(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.gate = asyncio.Event()
        slow = await reviewer(api, timeout_s=0.05).review(TOKEN)
        assert isinstance(slow, Unavailable) and "in time" in slow.reason
        api.gate.set()
        reviews = reviewer(api)
        await api.stop()
        gone = await reviews.review(TOKEN)
        assert isinstance(gone, Unavailable) and f"127.0.0.1:{api.port}" in gone.reason
        api.review = lambda spec: GOOD
        await api.start()
        assert isinstance(await reviews.review(TOKEN), Accepted)

    with_api(tmp_path, test)


def test_verdicts_are_remembered_for_a_while(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        clock = ManualClock()
        api.review = lambda spec: GOOD if spec["token"] == TOKEN else {}
        reviews = reviewer(api, clock=clock)
        for _ in range(3):
            assert isinstance(await reviews.review(TOKEN), Accepted)
        assert len(api.bodies) == 1
        clock.advance(9.9)
        await reviews.review(TOKEN)
        assert len(api.bodies) == 1
        clock.advance(0.1)
        await reviews.review(TOKEN)
        assert len(api.bodies) == 2
        for _ in range(3):
            assert isinstance(await reviews.review("bad"), Rejected)
        assert len(api.bodies) == 3
        clock.advance(10.0)
        assert isinstance(await reviews.review("bad"), Rejected)
        assert len(api.bodies) == 4

    with_api(tmp_path, test)


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.review = lambda spec: GOOD
        clock = ManualClock()
        reviews = reviewer(api, max_remembered=2, clock=clock)
        for token in "abc":
            await reviews.review(token)
        await reviews.review("c")
        await reviews.review("b")
        assert len(api.bodies) == 3
        await reviews.review("a")  # the oldest made room
        assert len(api.bodies) == 4
        clock.advance(100)
        await reviews.review("new")
        assert len(reviews._accepted) == 1  # what is over does not stay

    with_api(tmp_path, test)


def test_only_so_many_are_asked_at_once(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.gate = asyncio.Event()
        api.review = lambda spec: GOOD
        reviews = reviewer(api, max_at_once=4, max_per_source=4)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(reviews.review(f"token-{n}")) for n in range(40)]
            await until(lambda: api.reviewing == 4)
            api.gate.set()
        assert api.most_reviewing == 4
        assert all(isinstance(task.result(), Accepted) for task in asked)

    with_api(tmp_path, test)


def test_what_the_api_did_not_judge_is_not_remembered(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        answers = [status(500, "InternalError"), status(422, "Invalid")]

        async def fail(request: web.Request) -> web.StreamResponse:
            return answers.pop()

        api.fault = fail
        reviews = reviewer(api)
        assert isinstance(await reviews.review(TOKEN), Rejected)
        assert isinstance(await reviews.review(TOKEN), Unavailable)
        api.fault = None
        api.review = lambda spec: GOOD
        assert isinstance(await reviews.review(TOKEN), Accepted)

    with_api(tmp_path, test)


def test_bad_tokens_make_no_good_one_forgotten(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.review = lambda spec: GOOD if spec["token"] == TOKEN else {}
        reviews = reviewer(api, max_remembered=1, max_rejections=3)
        await reviews.review(TOKEN)
        for number in range(5):
            assert isinstance(await reviews.review(f"bad-{number}"), Rejected)
        assert (len(reviews._accepted), len(reviews._rejected)) == (1, 3)
        asked = len(api.bodies)
        assert isinstance(await reviews.review(TOKEN), Accepted)
        assert len(api.bodies) == asked

    with_api(tmp_path, test)


def test_a_long_reason_is_cut_before_it_is_kept(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.review = lambda spec: {"error": "x" * 100_000}
        verdict = await reviewer(api).review(TOKEN)
        assert isinstance(verdict, Rejected) and len(verdict.reason) == 300

    with_api(tmp_path, test)


def test_a_source_that_floods_waits_for_itself(tmp_path: Path) -> None:
    """All its turns are taken by tokens that the API does not answer; another's is at once."""

    async def test(api: FakeApi) -> None:
        api.gate = asyncio.Event()
        api.review = lambda spec: GOOD if spec["token"] == TOKEN else {}
        reviews = reviewer(
            api, max_at_once=4, max_per_source=2, max_waiting=9, max_waiting_per_source=5
        )
        async with asyncio.TaskGroup() as tasks:
            flood = [
                tasks.create_task(reviews.review(f"bad-{number}", "192.0.2.66"))
                for number in range(20)
            ]
            await until(lambda: api.reviewing == 2)
            await until(lambda: sum(it.done() for it in flood) == 13)
            assert all(isinstance(it.result(), Crowded) for it in flood if it.done())
            honest = tasks.create_task(reviews.review(TOKEN, "192.0.2.1"))
            await until(lambda: api.reviewing == 3)
            api.gate.set()
            assert isinstance(await honest, Accepted)
        assert api.most_reviewing <= 4
        assert sum(isinstance(it.result(), Rejected) for it in flood) == 7

    with_api(tmp_path, test)


def test_the_same_token_is_asked_about_once_whoever_waits(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.gate = asyncio.Event()
        api.review = lambda spec: GOOD
        reviews = reviewer(api, max_at_once=1, max_per_source=1)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(reviews.review("other", "a"))
            await until(lambda: api.reviewing == 1)
            asked = [
                tasks.create_task(reviews.review(TOKEN, source))
                for source in "aabbcc"
                for _ in "xy"
            ]
            await asyncio.sleep(0)
            assert len(reviews._waiting) == 3  # one for each source
            api.gate.set()
        assert all(isinstance(it.result(), Accepted) for it in (first, *asked))
        assert len(api.bodies) == 2
        assert not reviews._waiting and not reviews._asking and not reviews._turns.holding

    with_api(tmp_path, test)


def test_whoever_stops_waiting_gives_its_place_back(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.gate = asyncio.Event()
        api.review = lambda spec: GOOD
        reviews = reviewer(api, max_at_once=1, max_per_source=1, max_waiting_per_source=1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reviews.review("first", "a"))
            await until(lambda: api.reviewing == 1)
            leaves = tasks.create_task(reviews.review("leaves", "a"))
            await asyncio.sleep(0)
            assert isinstance(await reviews.review("crowded", "a"), Crowded)
            leaves.cancel()
            await until(leaves.done)
            stays = tasks.create_task(reviews.review("stays", "a"))
            await asyncio.sleep(0)
            api.gate.set()
            assert isinstance(await stays, Accepted)
        assert [it["spec"]["token"] for it in api.bodies] == ["first", "stays"]

    with_api(tmp_path, test)


def test_closing_answers_whoever_waits(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.gate = asyncio.Event()
        reviews = reviewer(api, max_at_once=1)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(reviews.review(f"token-{n}")) for n in range(3)]
            await until(lambda: api.reviewing == 1)
            reviews.close()
        assert all(isinstance(it.result(), Unavailable) for it in asked)
        api.gate.set()

    with_api(tmp_path, test)


def test_a_token_is_neither_logged_nor_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "".join(["very-", "secret-", str(id(caplog))])

    async def test(api: FakeApi) -> None:
        caplog.set_level(logging.DEBUG)
        api.review = lambda spec: GOOD
        reviews = reviewer(api)
        await reviews.review(secret)
        api.bodies.clear()
        gc.collect()
        assert secret not in repr(reviews) + repr(vars(reviews))
        assert secret not in caplog.text

    with_api(tmp_path, test)


def test_judging_needs_every_part() -> None:
    good = TokenStatus(authenticated=True, username=USER, audiences=("x", AUDIENCE))
    assert judge(good, EXPECTED) == Accepted(identity=Identity(USER, kind="token"))
    two = TokenStatus(
        authenticated=True,
        username=USER,
        audiences=(AUDIENCE,),
        extra={"authentication.kubernetes.io/node-name": ("a", "b")},
    )
    assert judge(two, EXPECTED) == Accepted(identity=Identity(USER, kind="token"))
