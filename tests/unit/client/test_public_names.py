"""The names of the public library: all there, and loaded when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import isthmus.client


@pytest.mark.parametrize("name", isthmus.client.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(isthmus.client, name).__name__ == name
    assert name in dir(isthmus.client)


def test_another_name_is_not() -> None:
    with pytest.raises(AttributeError, match=r"'isthmus\.client' has no attribute 'Dailer'"):
        isthmus.client.Dailer  # noqa: B018


def test_reading_an_admin_port_loads_nothing_else() -> None:
    code = (
        "import sys, isthmus.client.admin;"
        "print([n for n in ('asyncio', 'google.protobuf', 'aiohttp', 'h11') if n in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "[]"
