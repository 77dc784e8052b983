"""Writes the tables of docs/how-to/doctor.md: every check, and the advice for every failure.

python -m isthmus.tools.doctor.reference docs/how-to/doctor.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from isthmus.frame.finding import DIAL_ADVICE, FINDS, LINK_ADVICE, CheckId
from isthmus.tools.doctor.layout import ALL
from isthmus.tools.doctor.looks import LOOKS, programs_of


def checks() -> str:
    """Every check, its programs, and what it finds."""
    rows = ["| check | of | finds |", "|---|---|---|"]
    for check in CheckId:
        programs = programs_of(check)
        whose = "all" if programs in (ALL, frozenset()) else ", ".join(sorted(programs))
        only = all(look.running for look in LOOKS if check in look.checks)
        rows.append(f"| `{check.value}` | {whose}{', running' if only else ''} | {FINDS[check]} |")
    return "\n".join(rows)


def dial_failures() -> str:
    """Why dials fail, and what to do."""
    rows = ["| reason | means | what to do |", "|---|---|---|"]
    for failure, advice in DIAL_ADVICE.items():
        rows.append(f"| `{failure.name.lower()}` | {failure.value} | {advice} |")
    return "\n".join(rows)


def link_failures() -> str:
    """Why links fail, and what to do."""
    rows = ["| reason | means | what to do |", "|---|---|---|"]
    for stage, advice in LINK_ADVICE.items():
        rows.append(f"| `{stage.name.lower()}` | {stage.value} | {advice} |")
    return "\n".join(rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "checks": checks,
    "dial-failures": dial_failures,
    "link-failures": link_failures,
}


def rewritten(page: str) -> str:
    """The page with current tables; each is between two comments."""
    for name, write in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        table = f"{start}\n{write()}\n{end}"
        page = pattern.sub(lambda _, table=table: table, page)  # type: ignore[misc]  # a default
    return page


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(rewritten(file.read_text()))
