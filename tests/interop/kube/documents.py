"""Documents of ours against what the API made of them."""

from __future__ import annotations

from typing import Any

from kube.api import Api, CallFailedError


def make_namespace(api: Api, name: str) -> None:
    """Make a namespace where there is none."""
    try:
        api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    except CallFailedError as exc:
        assert exc.status == 409


def contains(whole: Any, part: Any) -> bool:
    """Everything that we said is in what the API made of it."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)
