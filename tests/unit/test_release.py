"""The checks of a release that only read: versions, changelog, digests, layers, bills, tags."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from release import bill, checks
from release.checks import CHECKS, ReleaseError, Work
from release.image import Unpacked, unpack

from isthmus import __version__

ROOT = Path(__file__).parents[2]
VERSIONED = (
    "src/isthmus/__init__.py", "README.md", "deploy/helm/isthmus/Chart.yaml", "tools/set-version",
    "docs/how-to/container.md", "docs/recipes/k0s.md",
)  # fmt: skip
STATUS = """Package: tar
Status: install ok installed
Architecture: amd64
Version: 1.34+dfsg-1.2+deb12u1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """A copy of the files that name the version, and of what the changelog is made from."""
    for name in (*VERSIONED, "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("what comes\n")
    (tmp_path / "dist").mkdir()
    released(tmp_path, __version__)
    return Work(root=tmp_path)


def released(root: Path, version: str) -> None:
    text = "# Changelog\n\n<!-- towncrier release notes start -->\n"
    (root / "CHANGELOG.md").write_text(f"{text}\n## {version} (2030-01-02)\n\n- one thing\n")


def refused(check: str, work: Work) -> str:
    with pytest.raises(ReleaseError) as caught:
        CHECKS[check](work)
    (sentence,) = str(caught.value).splitlines()
    return sentence


def git(work: Work, *args: str) -> None:
    argv = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *args]
    subprocess.run(argv, cwd=work.root, check=True, capture_output=True, timeout=60)


def test_versions_that_agree(work: Work) -> None:
    assert CHECKS["versions"](work) == __version__


def test_a_chart_of_another_version(work: Work) -> None:
    chart = work.root / "deploy/helm/isthmus/Chart.yaml"
    chart.write_text(chart.read_text().replace(__version__, "9.8.7"))
    said = refused("versions", work)
    assert "9.8.7" in said and f"`tools/set-version {__version__}`" in said


@pytest.mark.parametrize("shown", ["isthmus:9.8.7", "isthmus-9.8.7-py3-none-any.whl"])
def test_an_example_of_another_version(work: Work, shown: str) -> None:
    page = work.root / "docs/recipes/k0s.md"
    page.write_text(f"{page.read_text()}\n{shown}\n")
    lines = len(page.read_text().splitlines())
    said = refused("versions", work)
    assert said.startswith(f"docs/recipes/k0s.md line {lines} names version 9.8.7")


def test_a_changelog_with_the_version_on_top(work: Work) -> None:
    assert CHECKS["changelog"](work) == f"{__version__} of 2030-01-02"


def test_a_changelog_of_another_version(work: Work) -> None:
    released(work.root, "9.8.7")
    assert "CHANGELOG.md begins with 9.8.7" in refused("changelog", work)
    (work.root / "CHANGELOG.md").write_text("# Changelog\n")
    assert "CHANGELOG.md has no version" in refused("changelog", work)


def test_a_fragment_that_was_left(work: Work) -> None:
    (work.root / "changes" / "+one.added.md").write_text("One.\n")
    assert refused("changelog", work).startswith("1 fragments are left in changes/")


@pytest.mark.parametrize("name", ["one.added.md", "+one.new.md", "+one.md"])
def test_a_fragment_of_no_kind(work: Work, name: str) -> None:
    work.rehearsal = True
    (work.root / "changes" / name).write_text("One.\n")
    assert refused("changelog", work).startswith(f"changes/{name} is not called")


def test_a_tree_with_changes(work: Work) -> None:
    git(work, "init", "--quiet")
    (work.root / ".gitignore").write_text("build/\ndist/\n")
    git(work, "add", ".")
    git(work, "commit", "--quiet", "--message=all")
    assert len(CHECKS["tree"](work)) == 7
    (work.root / "README.md").write_text("changed\n")
    assert refused("tree", work) == "1 files are not committed, the first is README.md"
    work.rehearsal = True
    assert CHECKS["tree"](work).endswith(", 1 files not committed")


def test_a_tag_is_made_when_asked_and_never_moved(work: Work) -> None:
    git(work, "init", "--quiet")
    git(work, "config", "user.name", "n")
    git(work, "config", "user.email", "n@example.com")
    (work.root / ".gitignore").write_text("build/\ndist/\n")
    git(work, "add", ".")
    git(work, "commit", "--quiet", "--message=all")
    (work.dist / "SHA256SUMS").write_text("00  isthmus\n")
    assert checks.make_tag(work, sign=False).startswith(f"tagged v{__version__};")
    assert len(CHECKS["tree"](work)) == 7  # the tag is on this commit
    git(work, "commit", "--quiet", "--allow-empty", "--message=more")
    assert refused("tree", work).startswith(f"v{__version__} is already the tag of ")


def test_digests_are_those_that_sha256sum_checks(work: Work) -> None:
    assert "is missing" in refused("checksums", work)
    for path in (work.wheel, work.sdist, work.image, work.dist / "image.cdx.json"):
        path.write_bytes(path.name.encode())
    assert CHECKS["checksums"](work) == "dist/SHA256SUMS has 4 files"
    argv = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(argv, cwd=work.dist, check=True, timeout=60)


def test_a_command_that_fails_is_one_sentence(work: Work) -> None:
    argv = [sys.executable, "-c", "print('much'); raise SystemExit('no wheel')"]
    with pytest.raises(ReleaseError, match=r"exit code 1: no wheel; all of its output is in"):
        work.logged("dist", argv)
    assert "much" in (work.root / "build/release/dist.log").read_text()


def test_a_failed_test_is_named(work: Work) -> None:
    said = "FAILED tests/test_a.py::test_b - boom\n1 failed, 14 passed in 2 s"
    with pytest.raises(ReleaseError, match=r"exit code 1: FAILED tests/test_a.py::test_b - boom;"):
        work.logged("skew", [sys.executable, "-c", f"print({said!r}); raise SystemExit(1)"])
    # The log of an earlier run is not kept.
    log = work.root / "build/release/skew.log"
    assert Work(root=work.root).logged("skew", ["echo", "anew"]) == "anew\n"
    assert "FAILED" not in log.read_text()


def layer(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def archive(path: Path, *layers: bytes) -> Path:
    """An archive with these layers, the lowest first, as OCI's image layout has it."""
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> dict[str, str]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}"}

    said = {"User": "1:2", "Entrypoint": ["/x"], "Env": ["PATH=/bin"]}
    manifest = {
        "config": put(json.dumps({"config": said}).encode()),
        "layers": [put(each) for each in layers],
    }
    index = {"manifests": [put(json.dumps(manifest).encode())]}
    path.write_bytes(layer({"index.json": json.dumps(index).encode(), **blobs}))
    return path


def test_upper_layers_hide_what_lower_ones_have(tmp_path: Path) -> None:
    lower = layer({"a/one": b"1", "a/two": b"2", "b/three": b"3", "c": b"4"})
    upper = layer({"a/.wh.one": b"", "b/.wh..wh..opq": b"", "b/own": b"5", ".wh.c": b""})
    found = unpack(archive(tmp_path / "image.tar", lower, upper), tmp_path / "root")
    assert (found.user, found.entrypoint, found.environment) == ("1:2", ["/x"], {"PATH": "/bin"})
    files = {str(it.relative_to(found.root)) for it in found.root.rglob("*") if it.is_file()}
    assert files == {"a/two", "b/own"}


@pytest.mark.parametrize("data", [b"", b"no archive", layer({}), layer({"index.json": b"{}"})])
def test_what_is_no_archive_of_an_image(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "image.tar").write_bytes(data)
    with pytest.raises(ValueError, match="not an OCI archive"):
        unpack(tmp_path / "image.tar", tmp_path / "root")


def test_the_bill_of_an_image(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, text in {
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
        "var/lib/dpkg/status": STATUS,
        "opt/isthmus/lib/site-packages/Some_Name-1.2.dist-info/METADATA": (
            "Metadata-Version: 2.1\nName: Some_Name\nVersion: 1.2\n"
        ),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    image = Unpacked(root=root, user="1:1", entrypoint=["/x"], environment={})
    (tmp_path / "image.tar").write_bytes(b"image")
    made = bill.of_image(image, tmp_path / "image.tar", "1.0.0")
    assert made == bill.of_image(image, tmp_path / "image.tar", "1.0.0")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made) is None
    document = json.loads(made)
    assert {each["purl"] for each in document["components"]} == {
        "pkg:deb/debian/tar@1.34%2Bdfsg-1.2%2Bdeb12u1?arch=amd64&distro=debian-12",
        "pkg:pypi/some-name@1.2",
    }
    assert bill.count(made) == 2
    (digest,) = document["metadata"]["component"]["hashes"]
    assert digest["content"] == hashlib.sha256(b"image").hexdigest()


def test_the_page_lists_every_check() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row in CHECKS] == list(CHECKS)
