"""What it takes to come from one plan to another: step by step, and whom each step interrupts.

What is new comes first, then clients move to it, then what nobody uses any more goes. Two Routes
cannot have one name and two Services cannot have one node port: where the new needs what the old
still has, the old goes first, and its step says so. What cannot be done in place at all is refused;
the steps after it are what it would take to do it by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from isthmus.hosting.changes_refused import refusals
from isthmus.hosting.changes_told import interruption, moves
from isthmus.hosting.model import Plan
from isthmus.hosting.shapes import Manifest, key


class Act(Enum):
    """What a step does."""

    REFUSE = "refuse"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    MOVE = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do. ``what`` is an object, ``Kind/name``, or the service whose clients move.

    ``manifest`` is the object as it will be, or as it was before it is deleted. ``interrupts`` says
    who cannot do what, and for how long; empty where nobody notices.
    """

    act: Act
    what: str
    says: str
    interrupts: str = ""
    manifest: Manifest | None = None


Name = tuple[str, str, str]
Objects = dict[Name, Manifest]

_LEFT = "nothing leads to it any more"


def changes(old: Plan, new: Plan) -> tuple[Step, ...]:
    """The steps from one plan to the other, in order; none where nothing changes."""
    refused = [Step(act=Act.REFUSE, what=what, says=says) for what, says in refusals(old, new)]
    before, after = _named(old.objects), _named(new.objects)
    made, updated, deleted = _split(_in_order(before, after))
    later = {step.what for step in updated}
    early: list[Step] = []
    late: list[Step] = []
    for move in moves(old, new):
        step = Step(act=Act.MOVE, what=move.what, says=move.says, interrupts=move.interrupts)
        (late if move.after & later else early).append(step)
    return (*refused, *made, *early, *updated, *late, *deleted)


def apply_steps(objects: Iterable[Manifest], steps: Iterable[Step]) -> tuple[Manifest, ...]:
    """The objects that there are after some steps."""
    found = _named(objects)
    for step in steps:
        if step.manifest is None:
            continue
        if step.act is Act.DELETE:
            del found[_name(step.manifest)]
        else:
            found[_name(step.manifest)] = step.manifest
    return tuple(found.values())


def _name(manifest: Manifest) -> Name:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata["namespace"], metadata["name"]


def _named(objects: Iterable[Manifest]) -> Objects:
    return {_name(each): each for each in objects}


def claims(manifest: Manifest) -> frozenset[str]:
    """What only one object of the management cluster can have."""
    spec = manifest["spec"]
    if manifest["kind"] == "Route":
        return frozenset({spec["host"]} if "host" in spec else ())
    ports = spec.get("ports", ()) if manifest["kind"] == "Service" else ()
    return frozenset(f"node port {each['nodePort']}" for each in ports if "nodePort" in each)


def _in_order(before: Objects, after: Objects) -> Iterator[Step]:
    """New and changed objects as soon as what they claim is free; what is left goes last."""
    now = dict(before)
    waiting = [name for name in after if after[name] != before.get(name)]
    waiting.sort(key=lambda name: name in before)
    while waiting:
        free = next((name for name in waiting if not _holders(now, after, name)), None)
        if free is None:
            holder, wanted = _holders(now, after, waiting[0])[0]
            why = f"{key(after[waiting[0]])} needs {wanted}, which cannot be had twice"
            yield _gone(now.pop(holder), why)
            continue
        waiting.remove(free)
        yield _step(now.get(free), after[free])
        now[free] = after[free]
    for name, manifest in now.items():
        if name not in after:
            yield _gone(manifest, _LEFT)


def _holders(now: Objects, after: Objects, name: Name) -> list[tuple[Name, str]]:
    """Objects that have what this one claims, and will give it up."""
    wanted = claims(after[name])
    return [
        (other, min(shared))
        for other, manifest in now.items()
        if other != name and manifest != after.get(other) and (shared := wanted & claims(manifest))
    ]


def _step(old: Manifest | None, new: Manifest) -> Step:
    if old is None:
        return Step(act=Act.CREATE, what=key(new), says="it is new", manifest=new)
    return Step(
        act=Act.UPDATE,
        what=key(new),
        says="it is changed where it is",
        interrupts=interruption(old, new),
        manifest=new,
    )


def _gone(manifest: Manifest, why: str) -> Step:
    return Step(
        act=Act.DELETE,
        what=key(manifest),
        says=why,
        interrupts=interruption(manifest, None),
        manifest=manifest,
    )


def _split(steps: Iterable[Step]) -> tuple[list[Step], list[Step], list[Step]]:
    """What comes before clients move, what changes under them, and what goes after them.

    As soon as something had to go early, what follows has to follow it.
    """
    made: list[Step] = []
    updated: list[Step] = []
    deleted: list[Step] = []
    for step in steps:
        if not updated and not deleted and step.act is Act.CREATE:
            made.append(step)
        elif step.act is Act.DELETE and step.says == _LEFT:
            deleted.append(step)
        else:
            updated.append(step)
    return made, updated, deleted
