"""A cache whose keys come from peers: bounded in bytes, and short keys only.

``functools.lru_cache`` counts entries, and keeps what a peer sent until other values replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: What one entry takes besides its texts: the objects around them.
OBJECT_BYTES = 64
#: Most memory for the keys of one cache.
MOST_CACHE_BYTES = 1024 * 1024


class Cached(Protocol, Generic[P, R]):
    """A function with a cache; ``__wrapped__`` is the function without it."""

    __wrapped__: Callable[P, R]
    kept: dict[object, object]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer from the cache, or call the function."""


def short_cache(max_entries: int, max_key_bytes: int) -> Callable[[Callable[P, R]], Cached[P, R]]:
    """Keep the results of a pure function for the last keys; for longer keys the function is called
    every time.

    Arguments are positional, and made of texts, numbers, tuples and frozen values of these; the
    result must not be None. Only a miss measures the size of its key: a hit costs a dictionary
    lookup.
    """
    if max_entries * max_key_bytes > MOST_CACHE_BYTES:
        raise ValueError(f"a cache of more than {MOST_CACHE_BYTES} bytes")

    def decorate(function: Callable[P, R]) -> Cached[P, R]:
        kept: dict[object, R] = {}
        get = kept.get

        @wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> R:
            found = get(args)
            if found is not None:
                return found
            answer = function(*args, **kwargs)
            if key_bytes(args) <= max_key_bytes:
                if len(kept) >= max_entries:
                    del kept[next(iter(kept))]
                kept[args] = answer
            return answer

        cached.kept = kept  # type: ignore[attr-defined]  # for tests
        return cached  # type: ignore[return-value]  # mypy knows no attributes of functions

    return decorate


def key_bytes(key: object) -> int:
    """Roughly the memory that a key takes; linear in its size."""
    return sum(OBJECT_BYTES + _text_bytes(part) for part in _parts(key))


def _text_bytes(part: object) -> int:
    if isinstance(part, bytes):
        return len(part)
    if isinstance(part, str):
        return len(part) if part.isascii() else 4 * len(part)
    return 0


def _parts(key: object) -> Iterator[object]:
    waiting = [key]
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple):
            waiting.extend(part)
        elif is_dataclass(part):
            waiting.extend(getattr(part, field.name) for field in fields(part))
        yield part
