"""HyperShift's own accepted and refused cases: hypershift_cases.yaml says what they are.

The verdict is HyperShift's, or the case says why it is another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from publishing_cases import changed

from isthmus.errors import ConfigError
from isthmus.hosting.changes import refusals
from isthmus.hosting.document import read
from isthmus.hosting.model import PublishPlan, Weight
from isthmus.hosting.plan import check

CASES = Path(__file__).with_name("hypershift_cases.yaml")
ACCEPTED, REFUSED = "accepted", "refused"
READING = ["reading"]


def planned(document: dict[str, Any]) -> PublishPlan:
    """What is checked, without what would be made."""
    cluster = read(json.dumps(document), "case.yaml")
    return PublishPlan(cluster=cluster, findings=check(cluster))


def refused_by(base: dict[str, Any], case: dict[str, Any]) -> list[str]:
    """Rules by name and fields of a change; READING where a document is not read."""
    try:
        new = planned(changed(base, case.get("set", {})))
        old = planned(changed(base, case["before"])) if "before" in case else None
    except ConfigError as error:
        assert str(error).startswith("case.yaml:")
        return READING
    by = {each.rule for each in new.findings if each.weight is Weight.ERROR}
    if old is not None:
        by |= {each.field for each in refusals(old, new)}
    return sorted(by)


def test_hypershifts_own_cases_have_its_verdict_or_a_reason() -> None:
    # safe_load of PyYAML's C parser where there is one: 300 lines of flow style are slow otherwise
    said = yaml.load(CASES.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    wrong, seen = [], set()
    for group in said["groups"]:
        for case in group["cases"]:
            name = f"{group['of']}: {case['what']}"
            assert name not in seen, f"{name} is there twice"
            seen.add(name)
            theirs, ours = case["theirs"], case.get("ours", case["theirs"])
            assert {theirs, ours} <= {ACCEPTED, REFUSED}, name
            assert (theirs != ours) is ("why" in case), f"{name}: a reason is for another verdict"
            assert (ours == REFUSED) is bool(case.get("by")), f"{name}: says what refuses it"
            found = refused_by(said["bases"][group["base"]], case)
            if found != case.get("by", []):
                wrong.append(f"{name}: {found or ACCEPTED}, not {case.get('by') or ACCEPTED}")
    assert not wrong, "\n".join(wrong)
    assert len(seen) >= 300
