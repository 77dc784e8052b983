"""What .ci/run says of tests that fail once: they are run again, and named in the end."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Fails as pytest does whatever $FAILING names; the second try, with JOBS=0, fails for $TWICE.
MAKE = """\
#!/bin/sh
case "$*" in *JOBS=0*) tries=$TWICE ;; *) tries=$FAILING ;; esac
case " $tries " in
  *" $1 "*) echo "FAILED tests/test_$1.py::test_it - AssertionError"; exit 1 ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the script and nothing of what it runs."""
    for name, text in {"bin/make": MAKE, ".venv/bin/python": "#!/bin/sh\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    return tmp_path


def run(tree: Path, *, failing: str = "", twice: str = "") -> subprocess.CompletedProcess[str]:
    path = f"{tree / 'bin'}:{os.environ['PATH']}"
    environ = {"PATH": path, "TMPDIR": str(tree), "FAILING": failing, "TWICE": twice}
    return subprocess.run(
        [tree / ".ci" / "run"], env=environ, capture_output=True, text=True, check=False
    )


def test_nothing_is_said_of_a_run_without_failures(tree: Path) -> None:
    done = run(tree)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_passed_only_when_run_again_is_named_last(tree: Path) -> None:
    done = run(tree, failing="test lab")
    assert done.returncode == 0
    assert done.stdout.endswith(
        "\npassed only when run again:\n"
        "  test: tests/test_test.py::test_it - AssertionError\n"
        "  lab: tests/test_lab.py::test_it - AssertionError\n"
    )


def test_what_fails_twice_ends_the_run_and_hides_no_other(tree: Path) -> None:
    done = run(tree, failing="test interop", twice="interop")
    assert done.returncode
    assert "lab" not in done.stdout
    assert done.stdout.endswith("again:\n  test: tests/test_test.py::test_it - AssertionError\n")
    assert [it.name for it in tree.iterdir() if it.name.startswith("tmp.")] == []
