"""gRPC messages and statuses: any split reads alike, garbage raises one kind of error."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from isthmus.wire.grpc import (
    Status,
    read_status,
    read_timeout,
    request_problem,
    response_problem,
    status_headers,
)

CUTS = st.lists(st.integers(0, 2**32), max_size=20)
BODIES = st.lists(st.one_of(st.binary(max_size=20), st.just(b"x" * 70_000)), max_size=8)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut at these places, wherever they fall within the data."""
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


@given(st.sampled_from(Status), st.text())
def test_a_status_survives_the_round_trip(status: Status, message: str) -> None:
    headers = status_headers(status, message)
    assert read_status(headers) == (status, message)
    assert all(0x20 <= byte < 0x7F for _, value in headers for byte in value)


NAMES = st.sampled_from(
    [
        *(b":method", b":status", b"content-type", b"grpc-timeout", b"grpc-encoding"),
        *(b"grpc-status", b"grpc-message"),
    ]
)
VALUES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"POST", b"200", b"503", b"application/grpc", b"1S", b"gzip", b"13"]),
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_any_headers_are_judged_and_never_raise(headers: list[tuple[bytes, bytes]]) -> None:
    status, _ = read_status(headers)
    assert status in Status
    response_problem(headers)
    refusal = request_problem(headers)
    if refusal is not None:
        answer = refusal.to_headers()
        assert read_status(answer) == (refusal.status, refusal.message)
        assert response_problem(answer) is None


@given(st.integers(0, 99_999_999), st.sampled_from("HMSmun"), st.integers(0, 3))
def test_timeouts_with_and_without_leading_zeros(number: int, unit: str, zeros: int) -> None:
    digits = "0" * zeros + str(number)
    found = read_timeout((digits + unit).encode())
    assert (found is None) == (len(digits) > 8)
    if found is not None:
        scale = dict(zip("HMSmun", (3600, 60, 1, 1e-3, 1e-6, 1e-9), strict=True))[unit]
        assert found == number * scale
