"""How many workers, and what a worker of a server is told."""

from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.program import MOST_WORKERS, check_workers


@pytest.mark.parametrize("count", [0, 1, MOST_WORKERS])
def test_so_many_there_can_be(count: int) -> None:
    check_workers(count)


@pytest.mark.parametrize("count", [-1, MOST_WORKERS + 1])
def test_so_many_there_cannot(count: int) -> None:
    with pytest.raises(ConfigError, match="--workers must be from 0 to 64"):
        check_workers(count)


def test_one_is_the_default() -> None:
    assert ServerSettings().workers == 1
