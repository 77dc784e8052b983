"""Check everything a release needs, and make its tag when asked.

usage: make release [ARGS="--rehearsal | --tag [--sign]"]

One line for each check; the first failure is one sentence and ends it. What the commands printed is
in build/release/CHECK.log. Of the tests only those of version skew are run: the others are for
.ci/run and make nightly.
"""

from __future__ import annotations

import argparse
import sys
import time

from release.checks import CHECKS, ReleaseError, Work, make_tag


def main() -> int:
    """Run the checks in order; 1 if one fails."""
    parser = argparse.ArgumentParser(
        prog="release",
        description=(__doc__ or "").partition("\n")[0],
        epilog="checks, in order: " + ", ".join(CHECKS),
    )
    parser.add_argument(
        "--rehearsal",
        action="store_true",
        help="allow uncommitted changes and fragments in changes/",
    )
    parser.add_argument("--only", metavar="CHECKS", help="run these checks, separated by commas")
    parser.add_argument("--tag", action="store_true", help="tag the commit when all checks passed")
    parser.add_argument("--sign", action="store_true", help="sign the tag with git's signing key")
    args = parser.parse_args()
    only = args.only.split(",") if args.only else list(CHECKS)
    if unknown := [name for name in only if name not in CHECKS]:
        parser.error(f"no such check: {', '.join(unknown)}")
    if args.tag and (args.rehearsal or args.only):
        parser.error("--tag needs all checks: leave --rehearsal and --only out")
    if args.sign and not args.tag:
        parser.error("--sign needs --tag")
    work = Work(rehearsal=args.rehearsal)
    began = time.monotonic()
    for name in only:
        if not _passes(name, work):
            return 1
    print(f"all {len(only)} checks passed in {time.monotonic() - began:.0f} s")
    if args.tag:
        try:
            print(make_tag(work, sign=args.sign))
        except ReleaseError as error:
            print(f"release: {error}", file=sys.stderr)
            return 1
    return 0


def _passes(name: str, work: Work) -> bool:
    live = sys.stdout.isatty()
    if live:
        print(f"...  {name}", end="", flush=True)
    began = time.monotonic()
    try:
        found, failed = CHECKS[name](work), False
    except ReleaseError as error:
        found, failed = str(error), True
    took = time.monotonic() - began
    line = f"{'FAIL' if failed else 'ok':4} {name:10} {found} ({took:.1f} s)"
    print(f"\r\x1b[K{line}" if live else line, flush=True)
    return not failed


if __name__ == "__main__":
    sys.exit(main())
