"""What every test shares."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Tests start hundreds of programs: an environment without bytecode would compile the package, and
# have every test rewritten, again and again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadline: it would be an assertion on elapsed time. In CI the examples are always the same
# ones, so that a change is judged by what it does and not by luck.
settings.register_profile("isthmus", deadline=None, max_examples=25)
settings.register_profile("isthmus-ci", settings.get_profile("isthmus"), derandomize=True)
settings.register_profile("isthmus-nightly", deadline=None, max_examples=200)
if os.environ.get("ISTHMUS_NIGHTLY"):
    settings.load_profile("isthmus-nightly")
else:
    settings.load_profile("isthmus-ci" if os.environ.get("CI") else "isthmus")

# A run that a shell started in the background ignores these, and so would every program it starts.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


def pytest_collection_finish() -> None:
    """Have no collection of garbage look through ten thousand collected tests again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """Keep what a program that ran in this process did to its umask from the next test."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
