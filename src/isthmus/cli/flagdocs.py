"""The reference pages of the flags, written from the declarations.

``python -m isthmus.cli.flagdocs`` writes server-flags.md, agent-flags.md and a page for every other
program into docs/reference; a test fails if they are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from isthmus.frame.cli.flags import grouped
from isthmus.frame.program import Program
from isthmus.programs import programs
from isthmus.settings.options import OURS, SAME, Kind, Option, options_of

_FORMS = """\
`--flag=value` and `--flag value` are the same; a boolean is `--flag` or `--flag=false`. Durations
are Go's: `500ms`, `10s`, `1h30m`, or `0`. A list is separated by commas. When a flag comes twice
the last one counts, so that one can be appended to override another. Flags marked *repeatable* add
up. A flag for an address, for ranges of addresses, for a directory, a CRL, or a file of settings or
rules, and not repeatable, is refused when it comes with two different values: neither is silently
left out. The column *In konnectivity* says how the Go program differs; where it is empty, it is the
same.
"""

PAGES: dict[str, Program] = {f"{it.name}-flags.md": it for it in programs()}


def page(name: str) -> str:
    """The text of one reference page."""
    program = PAGES[name]
    tables = _tables(options_of(program.settings_class))
    head = [f"# Flags of `isthmus {program.name}`\n", program.flag_rules, _FORMS]
    text = "\n".join([*head, *tables])
    return text.replace("konnectivity", program.flags_of) if program.flags_of else text


def _tables(declared: Iterable[Option]) -> Iterator[str]:
    declared = list(declared)
    for group, options in grouped(option for option in declared if not option.ignored):
        yield f"## {group}\n"
        yield "| Flag | Default | In konnectivity | What it does |"
        yield "|---|---|---|---|"
        yield from map(_row, options)
        yield ""
    yield "## Accepted and ignored\n"
    yield (
        "Manifests written for konnectivity may set these; they change nothing, and a line on\n"
        "standard error says so.\n"
    )
    yield ", ".join(f"`--{option.flag}`" for option in declared if option.ignored) + "\n"


def _row(option: Option) -> str:
    takes = f"={option.takes}" if option.kind is not Kind.BOOL else ""
    flag = f"`--{option.flag}{takes}`".replace("|", "\\|")
    go = {SAME: "", OURS: "no such flag"}.get(option.go, option.go)
    notes = [f"`--{alias}` is the same" for alias in option.aliases]
    if option.repeat:
        notes.append("repeatable")
    if option.env:
        notes.append(f"or the environment variable `{option.env}`")
    if option.inert:
        notes.append("no effect here")
    what = "; ".join([option.help, *notes]).replace("|", "\\|")
    return f"| {flag} | {option.shown} | {go} | {what} |"


def write(directory: Path) -> None:
    """Write every page into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (directory / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    given = sys.argv[1:]
    if len(given) > 1 or any(word.startswith("-") for word in given):
        sys.exit("usage: python -m isthmus.cli.flagdocs [DIRECTORY]")
    write(Path(given[0] if given else "docs/reference"))
