"""A plan's picture: all that the plan says and nothing else, on a page as wide as a telephone.

Some are compared with pictures looked at once. ISTHMUS_REGENERATE=1 draws those anew, and the
copies that the documents show.
"""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from picture_plans import KEPT, NASTY, PLANS, SUMMER

from isthmus.hosting.model import PlannedEndpoint, PublishPlan, Strategy, Viewpoint
from isthmus.hosting.picture import CidrHold, EndpointGroup, picture
from isthmus.hosting.picture_svg import CARD_X, KIND, rail_x, svg
from isthmus.hosting.plan import make_plan

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "publishing"
SHOWN = ROOT / "docs" / "pictures"
NS = "{http://www.w3.org/2000/svg}"
#: In ems, as DejaVu has them: a font narrower than this fits all the more.
CHARACTER = {"mono": 0.602, "name": 0.66, "title": 0.66, "strong": 0.66}
TELEPHONE_PX, SMALLEST_PX = 380, 10


@dataclass(frozen=True)
class Area:
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, other: Area) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and self.right >= other.right
            and self.bottom >= other.bottom
        )

    def meets(self, other: Area) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def of_rect(rect: ET.Element | None) -> Area:
    assert rect is not None
    x, y, width, height = (float(rect.attrib[one]) for one in ("x", "y", "width", "height"))
    return Area(x, y, x + width, y + height)


def of_text(text: ET.Element) -> Area:
    size, x, y = (float(text.attrib[one]) for one in ("font-size", "x", "y"))
    width = len(text.text or "") * size * CHARACTER.get(text.attrib["class"], 0.57)
    left = x - width / 2 if text.attrib.get("text-anchor") == "middle" else x
    return Area(left, y - size * 0.8, left + width, y + size * 0.2)


def groups(root: ET.Element, kind: str) -> list[ET.Element]:
    return [one for one in root.iter(f"{NS}g") if one.attrib["class"] == kind]


def of_class(root: ET.Element, name: str, kind: str) -> Iterator[ET.Element]:
    for one in root.iter(f"{NS}{name}"):
        if one.attrib["class"].split()[0] == kind:
            yield one


def page(root: ET.Element) -> Area:
    return Area(*map(float, root.attrib["viewBox"].split()))


def cards(root: ET.Element) -> list[Area]:
    return [of_rect(gate.find(f"{NS}rect[@class='card']")) for gate in groups(root, "gate")]


def placed(plan: PublishPlan, root: ET.Element) -> list[tuple[EndpointGroup, Area]]:
    return list(zip(picture(plan).groups, cards(root), strict=True))


def places(root: ET.Element) -> list[Area]:
    return [of_rect(place.find(f"{NS}rect")) for place in groups(root, "place")]


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> PublishPlan:
    return PLANS[request.param]


@pytest.fixture
def root(plan: PublishPlan) -> ET.Element:
    return ET.fromstring(svg(plan))


@pytest.mark.parametrize("name", KEPT)
def test_looks_as_it_did(name: str) -> None:
    text = svg(KEPT[name])
    kept, shown = GOLDEN / f"{name}.svg", SHOWN / f"publishing-{name}.svg"
    if os.environ.get("ISTHMUS_REGENERATE"):
        kept.write_text(text, encoding="utf-8")
        shown.write_text(text, encoding="utf-8")
    assert text == kept.read_text(encoding="utf-8")
    assert text == shown.read_text(encoding="utf-8")


def test_the_document_shows_them_all() -> None:
    pages = ("how-to/publishing.md", "explanation/publishing-versions.md")
    document = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
    shown = re.findall(r"\]\(\.\./pictures/publishing-(.+?)\.svg\)", document)
    assert sorted(shown) == sorted(KEPT)


def card_of(each: PlannedEndpoint, root: ET.Element) -> Area:
    """The one card that an endpoint is written on, with all that is to be said of it."""
    at = str(each.target) if each.target else f"port {each.port}"
    told = [each.service.value, each.through, at, each.by, each.strategy.value]
    if each.strategy is Strategy.NONE:
        told = [each.service.value, "not published", f"{each.by.partition('/')[2]}:{each.port}"]
    (card,) = (
        gate
        for gate in groups(root, "gate")
        if all(is_in(part, gate.findall(f"{NS}text")) for part in told)
    )
    return of_rect(card.find(f"{NS}rect[@class='card']"))


def is_in(part: str, texts: list[ET.Element]) -> bool:
    """Whether texts have a part, which may be broken at blanks or elsewhere."""
    return any(part in blank.join(one.text or "" for one in texts) for blank in ("", " "))


def test_every_endpoint_is_there_with_dots_for_those_who_reach_it(
    plan: PublishPlan, root: ET.Element
) -> None:
    dots = {
        (float(one.attrib["cx"]), float(one.attrib["cy"]))
        for one in of_class(root, "circle", "dot")
        if one.attrib["r"] == "4.5"
    }
    for each in plan.endpoints:
        card = card_of(each, root)
        on_it = {x for x, y in dots if card.top <= y <= card.bottom}
        assert on_it == {rail_x(place) for place in each.visible_from}, each


def test_a_line_leads_from_the_farthest_rail_to_each_card(
    plan: PublishPlan, root: ET.Element
) -> None:
    bars = {}
    for one in of_class(root, "path", "bar"):
        x, y, end = map(float, re.findall(r"[\d.]+", one.attrib["d"].replace("h", "H")))
        if end > x:
            bars[y] = (one.attrib["class"], x, end)
    for gate, card in placed(plan, root):
        ((kind, x, end),) = [bar for y, bar in bars.items() if card.top <= y <= card.bottom]
        farthest = min(gate.seen, key=tuple(Viewpoint).index)
        assert (kind, x) == (f"bar {KIND[farthest]}", rail_x(farthest))
        assert CARD_X - 10 <= end <= CARD_X


def test_rails_end_at_the_last_that_is_reached(plan: PublishPlan, root: ET.Element) -> None:
    rails = {one.attrib["class"]: one.attrib["d"] for one in of_class(root, "path", "rail")}
    for place in Viewpoint:
        reached = [card for gate, card in placed(plan, root) if place in gate.seen]
        data = rails.get(f"rail {KIND[place]}")
        assert (data is not None) == bool(reached)
        if data is not None:
            assert reached[-1].top < float(data.rpartition("V")[2]) < reached[-1].bottom


def test_walls_stand_where_the_blocks_hold(plan: PublishPlan, root: ET.Element) -> None:
    walls = [of_rect(one) for one in of_class(root, "rect", "wall")]
    dots = [float(one.attrib["cx"]) for one in of_class(root, "circle", "ring")]
    for each in plan.endpoints:
        card = card_of(each, root)
        beside = [one for one in walls if card.top - 5 <= one.top and one.bottom <= card.bottom]
        assert len(beside) == (2 if each.restricted else 0), each
        # They hold for everybody who comes by that address: nobody stands behind the wall.
        assert all(max(dots) < one.left and one.right <= card.left for one in beside)
    assert bool(walls) == any(each.restricted for each in plan.endpoints)


def test_says_where_the_blocks_do_not_hold() -> None:
    texts = [one.text for one in ET.fromstring(svg(make_plan(SUMMER))).iter(f"{NS}text")]
    assert texts.count(CidrHold.HELD.value) == texts.count(CidrHold.OPEN.value) == 1
    without = svg(make_plan(replace(SUMMER, allowed_cidrs=())))
    assert "CIDR" not in without


def test_nothing_overlaps(root: ET.Element) -> None:
    for one, other in combinations(cards(root), 2):
        assert not one.meets(other)
    texts = [one for one in root.iter(f"{NS}text") if one.attrib["class"] != "bang"]
    for first, second in combinations(texts, 2):
        assert not of_text(first).meets(of_text(second)), (first.text, second.text)


def test_everything_lies_in_its_frame(root: ET.Element) -> None:
    internet, guest, management, namespace = places(root)
    for area in (internet, guest, management):
        assert page(root).holds(area)
    assert not internet.meets(guest) and not guest.meets(management)
    assert management.holds(namespace)
    for card in (*cards(root), *(of_rect(one.find(f"{NS}rect")) for one in groups(root, "errors"))):
        assert namespace.holds(card)
    for text in root.iter(f"{NS}text"):
        assert page(root).holds(of_text(text)), text.text
    for kind in ("place", "gate", "errors"):
        for group in groups(root, kind):
            frame = of_rect(group.find(f"{NS}rect"))
            for text in group.findall(f"{NS}text"):
                assert frame.holds(of_text(text)), text.text
            for chip in of_class(group, "rect", "chip"):
                assert frame.holds(of_rect(chip))


def test_a_telephone_shows_it(root: ET.Element) -> None:
    scale = TELEPHONE_PX / page(root).right
    for text in root.iter(f"{NS}text"):
        size = float(text.attrib["font-size"])
        assert size * scale >= SMALLEST_PX or text.attrib["class"] == "bang", text.text


def test_says_in_words_what_it_shows(plan: PublishPlan, root: ET.Element) -> None:
    assert root.attrib["role"] == "img"
    about = root.findtext(f"{NS}desc") or ""
    for each in plan.endpoints:
        assert each.service.value in about and each.by in about
    for error in plan.errors[:6]:
        assert f"line {error.place.line}: this is wrong" in about


def test_needs_nothing_from_elsewhere(root: ET.Element) -> None:
    text = ET.tostring(root, encoding="unicode")
    assert not re.search(r"<script|href|@import|url\((?!#bricks)", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def test_every_colour_has_one_for_the_night() -> None:
    style = ET.fromstring(svg(PLANS["public-and-private"])).findtext(f"{NS}style") or ""
    day, night = style.split("@media (prefers-color-scheme: dark)")
    colored = {name for name, rule in rules(day) if "#" in rule.replace("url(#bricks)", "")}
    assert colored == {name for name, _ in rules(night)}


def rules(style: str) -> list[tuple[str, str]]:
    found = re.findall(r"^ *([.\w][^{}\n]*?) \{ (.*) \}$", style, flags=re.MULTILINE)
    return [(name, rule) for names, rule in found for name in names.split(", ")]


def test_whatever_is_said_stays_text() -> None:
    text = svg(PLANS["wrong"])
    assert "<script" not in text
    name = NASTY.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
    assert name in "".join(one.text or "" for one in ET.fromstring(text).iter(f"{NS}text"))


def test_a_plan_with_errors_shows_them_and_no_lines() -> None:
    root = ET.fromstring(svg(PLANS["wrong"]))
    (errors,) = groups(root, "errors")
    texts = [one.text or "" for one in errors.findall(f"{NS}text")]
    assert texts[0] == "There is no plan" and texts[-1] == "and 3 more"
    assert sum(text.startswith("line ") for text in texts) == 6
    assert not list(of_class(root, "path", "rail")) and not groups(root, "gate")
