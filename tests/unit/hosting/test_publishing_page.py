"""The page about publishing says what the code does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from isthmus.hosting.changes import changes
from isthmus.hosting.document import read
from isthmus.hosting.model import EndpointAccess
from isthmus.hosting.plan import make_plan
from isthmus.hosting.rules_endpoints import ENDPOINT_RULES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "publishing.md").read_text()


def test_every_finding_of_a_plan_is_listed() -> None:
    table = PAGE.split("<!-- findings of a plan -->")[1].split("<!-- end -->")[0]
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", table, re.MULTILINE))
    assert rows == ENDPOINT_RULES


def test_the_example_of_a_change_is_true() -> None:
    name = "private-route.yaml"
    new = read((ROOT / "examples" / "publishing" / name).read_text(), name)
    old = replace(new, access=EndpointAccess.PUBLIC_AND_PRIVATE)
    steps = changes(make_plan(old), make_plan(new))
    for number, step in enumerate(steps, 1):
        cells = (step.act.value, step.what, step.says, step.interrupts or "nobody")
        line = rf"^{number}  {' +'.join(map(re.escape, cells))}$"
        assert re.search(line, PAGE, re.MULTILINE), step
    assert not re.search(rf"^{len(steps) + 1}  ", PAGE, re.MULTILINE)
