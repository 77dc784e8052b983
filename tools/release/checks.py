"""The checks of a release, in the order in which they run; each returns what its line shows."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kube.build import KUBERNETES, build_helm

from isthmus.lab.kubernetes.layers import command, why_not
from isthmus.lab.kubernetes.programs import NotBuiltError
from release import bill
from release.image import Unpacked, unpack

ROOT = Path(__file__).resolve().parents[2]
STEP_LIMIT_S = 1800.0
#: What `isthmus up --once` prints when a request came through a server and an agent.
ANSWER = "Hello from the far side"
_MIB = 1024 * 1024


class ReleaseError(Exception):
    """A release cannot be made; one sentence says why."""


@dataclass(slots=True)
class Work:
    """The repository, and what the checks have made so far."""

    root: Path = ROOT
    rehearsal: bool = False
    _version: str = field(default="", init=False)
    _logs: set[Path] = field(default_factory=set, init=False)

    @property
    def version(self) -> str:
        """The version that would be released."""
        if not self._version:
            text = (self.root / "src/isthmus/__init__.py").read_text("utf-8")
            self._version = re.findall(r'^__version__ = "(.+)"$', text, re.M)[0]
        return self._version

    @property
    def dist(self) -> Path:
        """Where the files of the release are."""
        return self.root / "dist"

    @property
    def wheel(self) -> Path:
        """The wheel in dist/."""
        return self.dist / f"isthmus-{self.version}-py3-none-any.whl"

    @property
    def sdist(self) -> Path:
        """The source distribution in dist/."""
        return self.dist / f"isthmus-{self.version}.tar.gz"

    @property
    def image(self) -> Path:
        """The archive of the image in dist/."""
        return self.dist / f"isthmus-{self.version}-image.tar"

    def logged(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> str:
        """Run a command for a check and return its output, which is also in the check's log.

        Raises:
            ReleaseError: it failed.
        """
        log = self.root / "build" / "release" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # What is installed is tested, not the sources beside it.
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [str(word) for word in argv],
            cwd=self.root, env={**inherited, **(env or {})}, input=stdin,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=STEP_LIMIT_S, check=False,
        )  # fmt: skip
        with log.open("ab" if log in self._logs else "wb") as file:
            self._logs.add(log)
            file.write(f"$ {' '.join(map(str, argv))}\n".encode() + done.stdout)
        text = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            where = log.relative_to(self.root)
            raise ReleaseError(
                f"{Path(argv[0]).name} failed with exit code {done.returncode}:"
                f" {_reason(text)[:200]}; all of its output is in {where}"
            )
        return text


def _reason(output: str) -> str:
    """The line that says what failed: the first test that pytest names, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith("FAILED ")]
    return next(iter(failed or lines[-1:]), "no output")


def tree(work: Work) -> str:
    """The tree is the commit that would be tagged, and the tag is free."""
    changed = work.logged("tree", ["git", "status", "--porcelain"]).splitlines()
    if changed and not work.rehearsal:
        raise ReleaseError(f"{len(changed)} files are not committed, the first is {changed[0][3:]}")
    head = work.logged("tree", ["git", "rev-parse", "HEAD"]).strip()
    tags = work.logged("tree", ["git", "tag", "--list", f"v{work.version}"]).split()
    if tags:
        tagged = work.logged("tree", ["git", "rev-parse", f"{tags[0]}^{{commit}}"]).strip()
        if tagged != head:
            raise ReleaseError(
                f"v{work.version} is already the tag of {tagged[:7]};"
                " `make changelog VERSION=…` writes another version"
            )
    dirty = f", {len(changed)} files not committed" if changed else ""
    return f"{head[:7]}{dirty}"


def versions(work: Work) -> str:
    """Writing the version again changes nothing: chart, examples and package agree."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for name in ("src/isthmus/__init__.py", "README.md", "deploy", "docs"):
            source, place = work.root / name, copy / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, place) if source.is_dir() else shutil.copy(source, place)
        chart = copy / "deploy/helm/isthmus/Chart.yaml"
        said = dict(re.findall(r'^(version|appVersion): "?([^"\n]+)"?$', chart.read_text(), re.M))
        argv: list[str | Path] = [
            sys.executable,
            work.root / "tools/set-version",
            work.version,
            copy,
        ]
        before = chart.read_bytes()
        work.logged("versions", argv)
        if chart.read_bytes() != before:
            raise ReleaseError(
                f"Chart.yaml says {said}, the package {work.version};"
                f" `tools/set-version {work.version}` writes both"
            )
    others = sorted(_other_versions(work.root, work.version))
    if others:
        raise ReleaseError(f"{others[0]}, and the package is {work.version}")
    return work.version


def _other_versions(root: Path, version: str) -> list[str]:
    """Examples that name an image or a wheel of Isthmus in another version."""
    named = re.compile(r"isthmus(?::|-)(\d+\.\d+\.\d+(?:rc\d+)?)\b")
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [
        f"{page.relative_to(root)} line {number} names version {found}"
        for page in pages
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        for found in named.findall(line)
        if found != version
    ]


def changelog(work: Work) -> str:
    """CHANGELOG.md has this version, and no fragment is left in changes/."""
    project = tomllib.loads((work.root / "pyproject.toml").read_text("utf-8"))
    kinds = {kind["directory"] for kind in project["tool"]["towncrier"]["type"]}
    fragments = sorted(
        path.name for path in (work.root / "changes").iterdir() if path.name != "README.md"
    )
    for name in fragments:
        found = re.fullmatch(r"\+[a-z0-9-]+\.([a-z]+)\.md", name)
        if not found or found[1] not in kinds:
            raise ReleaseError(f"changes/{name} is not called +NAME.KIND.md, with a known kind")
    if work.rehearsal:
        draft = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", work.version]
        work.logged("changelog", draft)
        return f"{len(fragments)} fragments for the next version"
    if fragments:
        raise ReleaseError(
            f"{len(fragments)} fragments are left in changes/;"
            f" `make changelog VERSION={work.version}` moves them into CHANGELOG.md"
        )
    text = (work.root / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", text, re.M)
    if newest is None or newest[1] != work.version:
        said = f"begins with {newest[1]}" if newest else "has no version"
        raise ReleaseError(f"CHANGELOG.md {said}, and the package is {work.version}")
    return f"{newest[1]} of {newest[2]}"


def docs(work: Work) -> str:
    """The site builds, without a dead link."""
    mkdocs = Path(sys.executable).with_name("mkdocs")
    work.logged("docs", [mkdocs, "build", "--strict"], env={"NO_MKDOCS_2_WARNING": "1"})
    pages = sum(1 for _ in (work.root / "build/docs").rglob("*.html"))
    return f"{pages} pages"


def dist(work: Work) -> str:
    """Wheel and source distribution are built, and the source distribution gives the same wheel."""
    shutil.rmtree(work.dist, ignore_errors=True)
    build: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation"]
    # Without --sdist and --wheel, build makes the wheel from the source distribution.
    work.logged("dist", [*build, "--outdir", work.dist, work.root])
    with tempfile.TemporaryDirectory() as directory:
        work.logged("dist", [*build, "--wheel", "--outdir", directory, work.root])
        again = Path(directory) / work.wheel.name
        if not again.is_file() or not work.wheel.is_file():
            raise ReleaseError(f"the build made no {work.wheel.name}")
        if _digest(again) != _digest(work.wheel):
            raise ReleaseError(
                "the wheel from the tree and the wheel from the source distribution differ:"
                " files in src/ are missing in [tool.hatch.build.targets.sdist], or not committed"
            )
    sizes = (
        f"{path.name} {path.stat().st_size / _MIB:.1f} MiB" for path in (work.wheel, work.sdist)
    )
    return ", ".join(sizes)


def wheel(work: Work) -> str:
    """The wheel installs into a clean environment, where `isthmus up` answers."""
    with _environment(work) as place:
        isthmus, python = place / "bin/isthmus", place / "bin/python"
        for argv in ([isthmus], [python, "-m", "isthmus"]):
            said = work.logged("wheel", [*argv, "--version"]).strip()
            if said != f"isthmus {work.version}":
                raise ReleaseError(f"the installed command says {said!r}")
        work.logged("wheel", [sys.executable, "-m", "pip", "--python", python, "check"])
        if ANSWER not in work.logged("wheel", [isthmus, "up", "--once"]):
            raise ReleaseError("isthmus up --once gave no answer from the demo target")
        made = bill.of_environment(python, work.root / "pyproject.toml", work.wheel)
        path = work.dist / f"{work.wheel.name}.cdx.json"
        path.write_text(made, "utf-8")
    return f"isthmus up answered; {path.name} lists {bill.count(made)} packages"


class _environment:
    """A virtual environment that has the wheel and what it needs, and nothing else: no pip."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._directory = tempfile.TemporaryDirectory(prefix="isthmus-release-")

    def __enter__(self) -> Path:
        if not self._work.wheel.is_file():
            raise ReleaseError(f"dist/{self._work.wheel.name} is missing: the check dist makes it")
        place = Path(self._directory.name)
        self._work.logged("wheel", [sys.executable, "-m", "venv", "--without-pip", place])
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
        python = place / "bin/python"
        self._work.logged("wheel", [*pip, python, "install", "--quiet", self._work.wheel])
        return place

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()


def image(work: Work) -> str:
    """The image is built as an archive, which starts as its own user on a read-only root."""
    if reason := why_not():
        raise ReleaseError(f"the image cannot be built: {reason}")
    environment = {"PYTHONPATH": "tools"}
    work.logged("image", [sys.executable, "-m", "container", "--archive"], env=environment)
    with tempfile.TemporaryDirectory(prefix="isthmus-release-") as directory:
        try:
            unpacked = unpack(work.image, Path(directory) / "root")
        except ValueError as error:
            raise ReleaseError(f"{work.image.name}: {error}") from error
        scratch = Path(directory) / "tmp"
        scratch.mkdir()
        scratch.chmod(0o1777)
        _start(work, unpacked, scratch)
        made = bill.of_image(unpacked, work.image, work.version)
        path = work.dist / f"{work.image.name}.cdx.json"
        path.write_text(made, "utf-8")
    size = work.image.stat().st_size / _MIB
    return f"{size:.0f} MiB, isthmus up answered; {path.name} lists {bill.count(made)} packages"


def _start(work: Work, unpacked: Unpacked, scratch: Path) -> None:
    user, _, group = unpacked.user.partition(":")
    words, plan = command(
        [unpacked.root], [*unpacked.entrypoint, "up", "--once"],
        environment={**unpacked.environment, "HOME": "/tmp"},
        owner=(int(user), int(group)), binds=[(str(scratch), "/tmp", "rw")],
    )  # fmt: skip
    if ANSWER not in work.logged("image", words, stdin=plan):
        raise ReleaseError("isthmus up --once in the image gave no answer from the demo target")


def chart(work: Work) -> str:
    """Helm finds nothing wrong with the chart, and renders it."""
    found = shutil.which("helm")
    try:
        helm = Path(found) if found else build_helm(lambda _: None)
    except NotBuiltError as error:
        raise ReleaseError(f"helm is not installed and cannot be built: {error}") from error
    place = work.root / "deploy/helm/isthmus"
    work.logged("chart", [helm, "lint", "--strict", place])
    render: list[str | Path] = [helm, "template", f"--kube-version={KUBERNETES}", "isthmus", place]
    text = work.logged("chart", render)
    objects = len(re.findall(r"^kind: ", text, re.M))
    if not objects:
        raise ReleaseError("helm template rendered no object")
    return f"{objects} objects"


def skew(work: Work) -> str:
    """Server and agent work with those of the release before."""
    describe = ["git", "describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^"]
    done = subprocess.run(describe, capture_output=True, text=True, check=False, cwd=work.root)
    recorded = (work.root / "tests/integration/previous-release.txt").read_text("utf-8").split()
    against = done.stdout.strip() or f"{recorded[-1][:7]}, there is no tag"
    tests = "tests/integration/test_skew.py"
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "nightly", tests]
    last = work.logged("skew", argv, env={"ISTHMUS_NIGHTLY": "1"}).splitlines()[-1]
    passed = re.search(r"(\d+) passed", last)
    if passed is None or "skipped" in last:
        raise ReleaseError(f"{tests} did not run: {last}; a shallow clone lacks the old release")
    return f"{passed[1]} tests against {against}"


def checksums(work: Work) -> str:
    """SHA256SUMS has every file of the release, for `sha256sum --check`."""
    parts = (work.wheel, work.sdist, work.image)
    if missing := [path.name for path in parts if not path.is_file()]:
        raise ReleaseError(f"dist/{missing[0]} is missing")
    names = sorted(
        [*(path.name for path in parts), *(p.name for p in work.dist.glob("*.cdx.json"))]
    )
    lines = [f"{_digest(work.dist / name)}  {name}\n" for name in names]
    (work.dist / "SHA256SUMS").write_text("".join(lines), "utf-8")
    return f"dist/SHA256SUMS has {len(names)} files"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_tag(work: Work, *, sign: bool) -> str:
    """Tag the commit, with the digests as its message.

    Raises:
        ReleaseError: git refused.
    """
    sums = (work.dist / "SHA256SUMS").read_text("utf-8")
    message = f"Isthmus {work.version}\n\n{sums}"
    name = f"v{work.version}"
    kind = "--sign" if sign else "--annotate"
    work.logged("tag", ["git", "tag", kind, "--message", message, name])
    return f"tagged {name}; `git push origin {name}` publishes it"


#: By name, in order: later ones use what earlier ones made.
CHECKS: dict[str, Callable[[Work], str]] = {
    check.__name__: check
    for check in (tree, versions, changelog, docs, dist, wheel, image, chart, skew, checksums)
}
