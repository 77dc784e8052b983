"""Every fuzz target: the corpus as it is, and nightly what mutations of it do in two seconds.

`make fuzz` runs them for longer; see docs/how-to/fuzzing.md.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

# Tests are imported by path (importlib mode), which leaves their own directory unsearched.
sys.path.insert(0, str(Path(__file__).parent))

import run  # found by the line above

SECONDS = 2.0


@pytest.mark.parametrize("target", run.targets())
def test_the_corpus(target: str) -> None:
    seeds = run.inputs(target)
    assert seeds, "no corpus: see make_corpus.py"
    check = run.load(target)
    for seed in [b"", *seeds]:
        check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("target", run.targets())
def test_a_moment_of_fuzzing(target: str) -> None:
    outcome = run.run(target, SECONDS, fresh=True)
    assert not outcome.failed, outcome.told
    assert outcome.executions > len(run.inputs(target)), outcome.told


def test_without_atheris() -> None:
    outcome = run.run("proxy_headers", 0.5, engine="hypothesis", fresh=True)
    assert not outcome.failed, outcome.told
    assert outcome.executions >= 200


@pytest.mark.parametrize("engine", ["atheris", "hypothesis"])
def test_what_is_found_is_told(engine: str) -> None:
    """A runner that never finds anything would look the same."""
    if engine == "atheris" and importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is built for some machines only")
    outcome = run.run("_broken", 20.0, engine=engine, fresh=True)
    assert outcome.failed
    assert "the bug that has to be found" in outcome.output
