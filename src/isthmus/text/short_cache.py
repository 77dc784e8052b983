"""A cache whose keys come from peers: bounded in bytes, and short keys only.

``functools.lru_cache`` counts entries, and keeps whatever a peer sent for as long as nobody sends
something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: What one entry counts besides its texts: the objects around them.
OBJECT_BYTES = 64
#: What the keys of one cache keep in memory at most.
MOST_CACHE_BYTES = 1024 * 1024


class Cached(Protocol, Generic[P, R]):
    """A function with a cache; ``__wrapped__`` is the function without it."""

    __wrapped__: Callable[P, R]
    kept: dict[object, object]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer from the cache, or ask the function."""


def short_cache(max_entries: int, max_key_bytes: int) -> Callable[[Callable[P, R]], Cached[P, R]]:
    """Keep the answers of a pure function for the last keys; a longer key is answered anew.

    Positional arguments only, made of texts, numbers, tuples and frozen values of these; the answer
    must not be None. Only a miss looks at the size of its key: a hit costs what a dictionary costs.
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
    """About what a key keeps in memory; linear in its size."""
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
