"""What is released: the same bytes each time, everything in it, and it works where nothing else is.

The wheel is installed into a fresh virtual environment, and used there: by hand, and by a part of
these tests that must not notice that there are sources.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from wheels import ROOT, build_sdist, build_wheel

from isthmus import __version__
from isthmus.lab.kubernetes.layers import cache

pytestmark = [pytest.mark.interop, pytest.mark.nightly, pytest.mark.timeout(900)]
LIMIT_S = 600.0
#: What the selected tests need besides the wheel's own dependencies.
TESTING = ("pytest", "pytest-timeout", "hypothesis")
SELECTED = ("tests/integration/test_connect.py", "tests/integration/test_start.py", "tests/unit")
#: Those of them that need more packages than a user has, and the one that is about the sources.
LEFT_OUT = (
    "tests/unit/programs/node_proxy/test_pages.py",
    "tests/unit/client/test_context.py",
    "tests/unit/programs/node_proxy/kernel/test_service_health.py",
    "tests/unit/frame/observe/test_tracing.py",
    "tests/unit/test_packaging.py",
)
#: Files that are no Python and have to be in the wheel, by folder.
DATA = (
    "lab/topologies/*.yaml",
    "lab/kubernetes/images/Containerfile",
    "lab/kubernetes/modules/*/*",
    "wire/*.proto",
    "wire/*.pyi",
    "dashboard/assets/*",
    "py.typed",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


def packages() -> Path:
    """A directory with what the wheel and the tests need, got once for what pyproject.toml says."""
    wanted = [*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]]
    wanted += TESTING
    name = hashlib.sha256("\0".join([sys.version, *wanted]).encode()).hexdigest()[:16]
    made = cache().parent / f"wheels-{name}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=_there(made.parent)) as growing:
            argv = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
            argv += ["--disable-pip-version-check", f"--dest={growing}/wheels", *wanted]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode != 0:
                pytest.skip("installing the wheel needs Python's packages from the network")
            os.rename(f"{growing}/wheels", made)
    return made


def _there(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of programs of a fresh environment with the wheel in it."""
    place = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=LIMIT_S)
    argv = [
        place / "bin" / "pip", "install", "--quiet", "--no-compile", "--no-index",
        "--disable-pip-version-check", f"--find-links={packages()}", wheel, *TESTING,
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return place / "bin"


def run(*argv: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=LIMIT_S, env=environment, cwd=cwd
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_it_is_the_same_each_time(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    again = build_wheel(tmp_path / "again")
    assert again.name == wheel.name == f"isthmus-{__version__}-py3-none-any.whl"
    assert digest(again) == digest(wheel)
    # And from what is released as sources, without a repository.
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "sources", filter="data")
    (sources,) = (tmp_path / "sources").iterdir()
    assert digest(build_wheel(tmp_path / "other", sources=sources)) == digest(wheel)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_everything_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src"
    data = {str(path.relative_to(source)) for it in DATA for path in (source / "isthmus").glob(it)}
    assert data <= names
    assert {f"isthmus-{__version__}.dist-info/licenses/LICENSE"} <= names
    strange = {name for name in names if not name.startswith(("isthmus/", "isthmus-"))}
    assert strange == set()
    assert not [name for name in names if "__pycache__" in name]


def test_tests_find_what_they_need_in_the_source_distribution(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("tests", "docs", "deploy", "examples", "changes"):
        there = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert there <= names
    assert {"Makefile", "CHANGELOG.md", "tools/check-skips"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "dist", "build"))]


def test_what_is_downloaded_is_as_small_as_readme_says() -> None:
    """Which is 18 MB; here with the packages of the tests, and room for newer versions."""
    text = (ROOT / "README.md").read_text()
    assert "This downloads 18 MB of Python packages" in text
    assert sum(path.stat().st_size for path in packages().iterdir()) < 30 * 10**6


def test_the_command_works_where_nothing_else_is(installed: Path, tmp_path: Path) -> None:
    command = installed / "isthmus"
    assert run(command, "--version", cwd=tmp_path) == f"isthmus {__version__}\n"
    assert "isolated-cluster" in run(command, "lab", "list", cwd=tmp_path)
    # A server, an agent and a request, all of this wheel.
    assert "Hello from the far side" in run(command, "up", "--once", cwd=tmp_path)


def test_tests_pass_with_the_wheel_alone(installed: Path) -> None:
    python = installed / "python"
    where = run(python, "-c", "import isthmus; print(isthmus.__file__)", cwd=ROOT).strip()
    assert Path(where).is_relative_to(installed.parent)
    # What the tests start has to be the wheel as well: see tests/integration/programs.py.
    with tempfile.TemporaryDirectory(prefix="isthmus-") as short:  # UNIX sockets have short names
        said = run(
            python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-m", "not slow and not interop and not lab", f"--basetemp={short}/t",
            *(f"--ignore={path}" for path in LEFT_OUT), *SELECTED, cwd=ROOT,
        )  # fmt: skip
    assert " passed" in said
