"""What every test shares."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

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


#: Modules that take minutes, the longest first: what is begun last decides when all are done.
_LONGEST = (
    "tests/lab/test_kills.py",
    "tests/lab/test_apiserver.py",
    "tests/lab/test_topologies.py",
    "tests/lab/test_services.py",
    "tests/lab/test_nodes_behind_wall.py",
    "tests/interop/kube/test_cluster_egress.py",
    "tests/interop/kube/test_node_proxy_rules.py",
    "tests/interop/kube/test_node_proxy_takeover.py",
    "tests/interop/kube/test_etcd_egress.py",
)
#: Those of them in which every test makes all it needs: its tests go to whoever is free.
_SPREAD = frozenset(_LONGEST[:3])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For processes that get whole modules: the longest first, then those with the most tests."""
    if "loadscope" not in getattr(config, "workerinput", {}).get("mainargv", ()):
        return
    modules = [item.nodeid.partition("::")[0] for item in items]
    many = Counter(modules)
    rank = {module: place - len(_LONGEST) for place, module in enumerate(_LONGEST)}
    order = {module: (rank.get(module, 0), -many[module]) for module in many}
    items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With loadscope, give a process whole modules: their tests share what is slow to start."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByModule(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # A parameter may have "::" in it, as addresses do.
            module = nodeid.partition("::")[0]
            return nodeid if module in _SPREAD else module

    config.option.loadscopereorder = False
    return ByModule(config, log)


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
