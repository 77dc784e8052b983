"""Runs fuzz targets: guided by coverage under atheris, by hypothesis where that is missing.

    python tests/fuzz/run.py TARGET... --seconds 60

A target is a module of ``targets/`` with ``check(data)``, which raises for anything that may not
happen. It begins with the corpus in the repository and with what earlier runs found (build/fuzz).
An input that fails is kept in build/fuzz/found; once fixed, it goes into the corpus. Hangs and
memory are libFuzzer's to notice: one input has TIMEOUT_S and the process RSS_MB.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
BUILD = HERE.parents[1] / "build" / "fuzz"
TIMEOUT_S = 10
RSS_MB = 1024
#: More than any header, head or message needs to be interesting; bounds are lowered to fit in.
MAX_LEN = 4096
_DONE = re.compile(r"#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+)")
_CHATTER = re.compile(r"#\d|INFO:|WARNING:|0x")

Check = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one run."""

    target: str
    engine: str
    failed: bool
    executions: int = 0
    coverage: int = 0
    features: int = 0
    output: str = ""

    def __str__(self) -> str:
        verdict = "FAILED" if self.failed else "ok"
        seen = f", {self.coverage} edges, {self.features} features" if self.coverage else ""
        return f"{self.target:<24} {verdict:<7}{self.executions:>9} inputs by {self.engine}{seen}"

    @property
    def told(self) -> str:
        """What it said, without the lines of a run that goes well."""
        lines = [line for line in self.output.splitlines() if not _CHATTER.match(line)]
        return "\n".join(lines)[:8000]


def targets() -> list[str]:
    """The names of all targets."""
    return sorted(path.stem for path in (HERE / "targets").glob("[!_]*.py"))


def load(target: str) -> Check:
    """The function of a target."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    check: Check = importlib.import_module(f"targets.{target}").check
    return check


def inputs(target: str) -> list[bytes]:
    """The corpus of a target in the repository."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


def run(target: str, seconds: float, *, engine: str = "", fresh: bool = False) -> Outcome:
    """Fuzz one target in a process of its own, and tell what came of it.

    ``fresh``: from the corpus in the repository alone, and nothing is kept.
    """
    engine = engine or ("atheris" if find_spec("atheris") else "hypothesis")
    command = [sys.executable, str(Path(__file__)), target, "--inside", engine]
    with tempfile.TemporaryDirectory() as temporary:
        kept = temporary if fresh else str(BUILD)
        done = subprocess.run(
            [*command, "--seconds", str(seconds), "--kept", kept],
            capture_output=True, text=True, errors="replace", timeout=seconds + 120, check=False,
        )  # fmt: skip
    output = done.stdout + done.stderr
    found = _DONE.search(output)
    executions, coverage, features = map(int, found.groups()) if found else (0, 0, 0)
    return Outcome(
        target=target, engine=engine, failed=done.returncode != 0, executions=executions,
        coverage=coverage, features=features, output=output,
    )  # fmt: skip


def _by_atheris(target: str, seconds: float, directory: Path) -> None:
    import atheris  # type: ignore[import-untyped]  # it has no types

    with atheris.instrument_imports(include=["isthmus", "targets", "hpack", "h11", "dns"]):
        check = load(target)
    kept, found = directory / "corpus" / target, directory / "found"
    for each in (kept, found):
        each.mkdir(parents=True, exist_ok=True)
    arguments = [
        f"-max_total_time={max(1, round(seconds))}", f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={RSS_MB}", f"-max_len={MAX_LEN}", f"-artifact_prefix={found}/{target}-",
        str(kept), *([str(CORPUS / target)] if (CORPUS / target).exists() else []),
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *arguments], check)
    atheris.Fuzz()


def _by_hypothesis(target: str, seconds: float, _: Path) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    check, seeds = load(target), inputs(target)
    until, done = time.monotonic() + seconds, 0
    for seed in seeds:
        check(seed)
    known = st.sampled_from(seeds or [b""])
    cut = st.integers(0, MAX_LEN)
    spliced = st.builds(
        lambda a, b, at, until_, new: a[:at] + new + b[until_:], known, known, cut, cut, st.binary()
    )

    @settings(
        max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.one_of(st.binary(max_size=MAX_LEN), spliced))
    def some(data: bytes) -> None:
        nonlocal done
        done += 1
        check(data)

    while time.monotonic() < until:
        some()
    print(f"#{done} DONE   cov: 0 ft: 0")


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description="Fuzz parsers and sessions")
    parser.add_argument("target", nargs="*", help="one of: " + ", ".join(targets()))
    parser.add_argument("--seconds", type=float, default=30.0, help="for each target")
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), default="")
    parser.add_argument("--fresh", action="store_true", help="keep nothing of earlier runs")
    parser.add_argument("--kept", default=str(BUILD), help=argparse.SUPPRESS)
    parser.add_argument("--inside", choices=("atheris", "hypothesis"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = set(given.target) - {*targets(), "_broken"}
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if given.inside:
        by = _by_atheris if given.inside == "atheris" else _by_hypothesis
        by(given.target[0], given.seconds, Path(given.kept))
        return 0
    failed = False
    for target in given.target or targets():
        outcome = run(target, given.seconds, engine=given.engine, fresh=given.fresh)
        failed = failed or outcome.failed
        print(outcome, flush=True)
        if outcome.failed:
            print(outcome.told, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
