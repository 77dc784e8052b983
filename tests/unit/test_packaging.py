"""What a release is made of fits together: versions, the image, the news."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from isthmus import __version__

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "deploy" / "container"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KINDS = [each["directory"] for each in PROJECT["tool"]["towncrier"]["type"]]
NEWS = [path for path in sorted((ROOT / "changes").iterdir()) if path.name != "README.md"]
LOCKED = re.compile(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.M)


#: The first version of each package without a known vulnerability, and the last advisory.
FIXED = {
    "aiohttp": ("3.14.3", "CVE-2026-69244"),
    "certifi": ("2024.7.4", "CVE-2024-39689"),
    "cryptography": ("50.0.0", "CVE-2026-69247"),
    "dnspython": ("2.6.1", "CVE-2023-29483"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "h2": ("4.4.1", "CVE-2026-71554"),
    "idna": ("3.15", "CVE-2026-45409"),
    "jinja2": ("3.1.6", "CVE-2025-27516"),
    "protobuf": ("6.33.5", "CVE-2026-0994"),
    "pygments": ("2.20.0", "CVE-2026-4539"),
    "pytest": ("9.0.3", "CVE-2025-71176"),
    "pyyaml": ("5.4", "CVE-2020-14343"),
    "requests": ("2.33.0", "CVE-2026-25645"),
    "urllib3": ("2.7.0", "CVE-2026-44431"),
}


def requirements() -> list[Requirement]:
    """Everything that the project asks for, with the extras and what contributors need."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    texts = [*project["dependencies"], *groups["dev"]]
    texts += [each for extra in project["optional-dependencies"].values() for each in extra]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", sorted(FIXED))
def test_no_bound_lets_a_vulnerable_version_in(name: str) -> None:
    found = [it for it in requirements() if it.name.lower() == name]
    assert found, f"{name} has no bound"
    fixed, advisory = FIXED[name]
    for asked in found:
        (bound,) = [it for it in asked.specifier if it.operator == ">="]
        assert Version(bound.version) >= Version(fixed), f"{asked}: {advisory}"


@pytest.mark.parametrize("asked", requirements(), ids=str)
def test_what_is_installed_is_within_the_bounds(asked: Requirement) -> None:
    if asked.marker is not None and not asked.marker.evaluate():
        return
    try:
        version = metadata.version(asked.name)
    except metadata.PackageNotFoundError:  # of the image, of a wheel alone: contributors' packages
        return
    assert version in asked.specifier


def test_the_version_is_said_once() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"] == {"path": "src/isthmus/__init__.py"}
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", __version__)
    assert "ARG VERSION\n" in (CONTAINER / "Containerfile").read_text()


def test_the_next_version_is_written_everywhere(tmp_path: Path) -> None:
    files = (
        "src/isthmus/__init__.py", "deploy/helm/isthmus/Chart.yaml", "README.md",
        "deploy/container/Containerfile", "docs/how-to/container.md", "docs/recipes/k0s.md",
    )  # fmt: skip
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    argv = [sys.executable, str(ROOT / "tools" / "set-version"), "9.8.7", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for name in files:
        # Nothing else has changed, and nowhere is the old one left.
        before = (ROOT / name).read_text()
        assert (tmp_path / name).read_text() == before.replace(__version__, "9.8.7") != before


@pytest.mark.parametrize("words", [[], ["next"], ["v1.2.3"], ["1.2"], ["1.2.3\n"]])
def test_a_version_is_three_numbers(words: list[str]) -> None:
    argv = [sys.executable, str(ROOT / "tools" / "set-version"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "set-version: takes one version, such as 1.2.3 or 1.2.3rc1\n"


def test_the_image_has_what_the_project_asks_for() -> None:
    project = PROJECT["project"]
    text = (CONTAINER / "requirements.txt").read_text()
    locked = {name: version for name, version, _ in LOCKED.findall(text)}
    # Nothing without a hash, nothing else: every line belongs to one of them.
    assert LOCKED.sub("", text).split("\n", 1)[1].strip() == ""
    for asked in project["dependencies"] + project["optional-dependencies"]["tracing"]:
        wanted = Requirement(asked)
        version = locked.get(wanted.name.lower(), "")
        assert version and version in wanted.specifier, f"{asked}: run `make lock`"


@pytest.mark.parametrize("path", sorted(CONTAINER.rglob("*")), ids=lambda path: path.name)
def test_nothing_says_where_packages_come_from(path: Path) -> None:
    if path.is_file():
        text = path.read_text()
        assert not re.search(r"https?://|index-url|[a-z]\.(io|com|org)/", text)


def test_the_base_is_a_version_and_nobody_is_root() -> None:
    text = (CONTAINER / "Containerfile").read_text()
    assert re.search(r"^ARG BASE=debian:\d+\.\d+-slim$", text, re.MULTILINE)
    # A digest that is given counts for every stage that has the base.
    assert re.search(r"^ARG BASE_DIGEST=$", text, re.MULTILINE)
    based = re.findall(r"^FROM (\$\S+) AS", text, re.MULTILINE)
    assert based == ["${BASE}${BASE_DIGEST}"] * 2
    assert "BASE_DIGEST=@sha256:" in (ROOT / "docs" / "releasing.md").read_text()
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["65532:65532"]
    # Whatever can be built is what comes after that line, and only says what is started.
    stages = re.findall(r"^FROM (\S+) AS (\S+)\nENTRYPOINT (.*)$", text, re.MULTILINE)
    assert stages == [
        ("runtime", name, f'["/{name}"]') for name in ("proxy-server", "proxy-agent", "isthmus")
    ]
    assert text.endswith('ENTRYPOINT ["/isthmus"]\n')
    assert "HEALTHCHECK" not in text
    for name in ("isthmus", "proxy-server", "proxy-agent"):
        assert (CONTAINER / "bin" / name).stat().st_mode & 0o111 == 0o111


def test_each_piece_of_news_is_short_and_has_a_kind() -> None:
    for path in NEWS:  # there are none after a release, and nothing to skip either
        found = re.fullmatch(r"\+[a-z0-9-]+\.([a-z]+)\.md", path.name)
        assert found and found[1] in KINDS, path.name
        lines = path.read_text().splitlines()
        assert 0 < len(lines) <= 5 and all(len(line) <= 125 for line in lines), path.name
        assert lines[-1].endswith("."), path.name


def test_the_next_changelog_can_be_shown() -> None:
    argv = [sys.executable, "-m", "towncrier", "build", "--draft", "--version=9.9.9"]
    argv += ["--date=2030-01-02", f"--dir={ROOT}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("## 9.9.9 (2030-01-02)\n")
    for path in NEWS:
        assert path.read_text().splitlines()[0] in done.stdout
