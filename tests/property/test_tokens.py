"""Files that are given for tokens: whatever is in them, the answer is a token or one sentence."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_tokens import MOST_CHARS, take_token

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SMALL = st.text(st.sampled_from("abcxyz0189"), min_size=16, max_size=16)


def signed(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{body}.c2ln"


@given(SMALL)
def test_a_bootstrap_token_may_have_space_around_it(text: str) -> None:
    token = f"{text[:6]}.{text}"
    assert take_token(f" {token}\n", now=NOW) == token


@given(st.text(max_size=200) | st.text(st.sampled_from("ab.AB0= \n-_"), max_size=60))
def test_any_text_is_a_token_or_a_sentence(text: str) -> None:
    try:
        token = take_token(text, now=NOW)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    assert token == text.strip()
    assert token.isascii() and token.isprintable() and " " not in token


@given(st.integers(1, 10**6), st.booleans())
def test_a_signed_token_may_be_over(seconds: int, over: bool) -> None:
    at = NOW + timedelta(seconds=-seconds if over else seconds)
    token = signed({"exp": at.timestamp()})
    if not over:
        assert take_token(token, now=NOW) == token
        return
    with pytest.raises(ValueError, match=f"the token expired on {at:%Y-%m-%d}"):
        take_token(token, now=NOW)


@given(st.recursive(st.none() | st.floats() | st.text() | st.integers(), st.lists, max_leaves=5))
def test_strange_claims_are_no_trouble(value: object) -> None:
    for token in (signed(value), signed({"sub": value})):
        assert take_token(token, now=NOW) == token


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it contains no token"),
        (" \n", "it contains no token"),
        ("two words", "one word of ASCII"),
        ("abcdef.0123456789ABCDEF", "a bootstrap token is six small letters"),
        ("abcde.0123456789abcdef", "a bootstrap token is six small letters"),
        ("x" * (MOST_CHARS + 1), "too long for a token"),
    ],
)
def test_what_is_wrong_is_said_without_the_token(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        take_token(text, now=NOW)
    assert not text.strip() or text.strip() not in str(caught.value)
