"""The SVG picture: nothing overlaps, nothing is cut, nothing gets out of its quotes.

One is compared with a picture looked at once. ISTHMUS_REGENERATE=1 draws that anew.
"""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from picture_examples import (
    EXAMPLES,
    ISOLATED,
    ISOLATED_LIVE,
    at,
    link,
    network,
    server_snapshot,
    tunnel,
    wide,
)

from isthmus.lab.picture import picture
from isthmus.lab.picture_live import LiveState
from isthmus.lab.picture_svg import svg
from isthmus.lab.topology import LabHost, Serve, Serving, Topology

GOLDEN = Path(__file__).parents[2] / "golden" / "lab"
NS = "{http://www.w3.org/2000/svg}"
LONG = Topology(
    name="long",
    title="Addresses and names as long as they come",
    networks=(
        network("management-network", "fd00:210:3344:5566::/64"),
        network("b", "2001:db8:1234:5678:9abc:def0:1234:0/112"),
    ),
    hosts=(
        LabHost(
            name="a-host-with-a-name-of-forty-characters-00",
            attachments=(at("management-network", "fd00:210:3344:5566:7788:99aa:bbcc:ddee"),),
        ),
        LabHost(
            name="h",
            attachments=(at("b", "2001:db8:1234:5678:9abc:def0:1234:5678"),),
            serves=tuple(Serve(kind=kind, port=65000) for kind in Serving),
        ),
        LabHost(name="i", attachments=(at("b", "2001:db8::1"),), also=(ip_address("192.0.2.1"),)),
    ),
)
LABS = {
    "long": (LONG, LiveState()),
    **EXAMPLES,
    "still": (ISOLATED, LiveState()),
    **{f"wide-{one}-{two}": wide(one, two) for one, two in ((1, 4), (2, 12), (4, 8), (8, 12))},
}
#: In ems, as DejaVu has them: a font narrower than this fits all the more.
CHARACTER = {"mono": 0.602, "name": 0.66, "title": 0.66, "strong": 0.66}


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
    words = text.text or ""
    width = len(words) * size * CHARACTER.get(text.attrib["class"], 0.57)
    left = {"end": x - width, "middle": x - width / 2}.get(text.attrib.get("text-anchor", ""), x)
    return Area(left, y - size * 0.8, left + width, y + size * 0.2)


def groups(root: ET.Element, kind: str) -> Iterator[ET.Element]:
    for one in root.iter(f"{NS}g"):
        if kind in one.attrib.get("class", "").split():
            yield one


@pytest.fixture(params=LABS)
def root(request: pytest.FixtureRequest) -> ET.Element:
    return ET.fromstring(svg(picture(*LABS[request.param])))


def test_looks_as_it_did() -> None:
    text = svg(picture(ISOLATED, ISOLATED_LIVE))
    golden = GOLDEN / "isolated-cluster.svg"
    if os.environ.get("ISTHMUS_REGENERATE"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def cards(root: ET.Element) -> list[Area]:
    return [of_rect(host.find(f"{NS}rect[@class='card']")) for host in groups(root, "host")]


def areas(root: ET.Element) -> list[Area]:
    return [of_rect(network.find(f"{NS}rect")) for network in groups(root, "network")]


def test_networks_and_hosts_stand_apart(root: ET.Element) -> None:
    assert cards(root) and areas(root)
    for one, other in (*combinations(cards(root), 2), *combinations(areas(root), 2)):
        assert not one.meets(other)


def test_networks_lie_in_the_picture(root: ET.Element) -> None:
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for area in areas(root):
        assert Area(0, 0, width, height).holds(area)


def test_every_host_lies_in_one_network(root: ET.Element) -> None:
    for card in cards(root):
        assert sum(area.holds(card) for area in areas(root)) == 1


def test_texts_fit_on_their_cards_and_areas(root: ET.Element) -> None:
    for kind, frame in (("host", "card"), ("network", "area")):
        for group in groups(root, kind):
            box = of_rect(next(one for one in group if frame in one.attrib["class"].split()))
            for text in group.findall(f"{NS}text"):
                assert box.holds(of_text(text)), text.text


def test_chips_fit_around_their_texts_and_stay_on_the_card(root: ET.Element) -> None:
    for host in groups(root, "host"):
        card = of_rect(host.find(f"{NS}rect[@class='card']"))
        chips = [of_rect(one) for one in host.findall(f"{NS}rect") if "chip" in one.attrib["class"]]
        for chip in chips:
            assert card.holds(chip)
        for one, other in combinations(chips, 2):
            assert not one.meets(other)


def test_texts_do_not_touch_each_other_or_walls_and_are_not_cut(root: ET.Element) -> None:
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    # The signs of stalled tunnels are meant to sit on their lines.
    texts = [one for one in root.iter(f"{NS}text") if one.attrib["class"] != "bang"]
    shifted = {id(one) for one in root.iter(f"{NS}text")} - {
        id(one) for group in groups(root, "list") for one in group.iter(f"{NS}text")
    }
    walls = [of_rect(one) for one in root.iter(f"{NS}rect") if one.attrib.get("class") == "wall"]
    assert walls or len(areas(root)) == 1
    for text in texts:
        area = of_text(text)
        assert Area(0, 0, width, height).holds(area), text.text
        if id(text) in shifted:
            assert not any(wall.meets(area) for wall in walls), text.text
    inside = [of_text(one) for one in texts if id(one) in shifted]
    for one, other in combinations(inside, 2):
        assert not one.meets(other)
    for card in cards(root):
        for text in (one for group in groups(root, "link") for one in group.iter(f"{NS}text")):
            assert not card.meets(of_text(text)), text.text


def test_walls_leave_the_lines_alone(root: ET.Element) -> None:
    """Along the straight part of every tube there is a hole in each wall that it crosses."""
    walls = [of_rect(one) for one in root.iter(f"{NS}rect") if one.attrib.get("class") == "wall"]
    for tube in root.iter(f"{NS}path"):
        if "tube" not in tube.attrib["class"].split():
            continue
        straight = re.search(r"([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", tube.attrib["d"])
        if straight is None:
            continue  # inside one network
        half = float(tube.attrib["stroke-width"]) / 2
        x, y, end, _ = map(float, straight.groups())
        way = Area(x, y - half, end, y + half)
        assert not any(wall.meets(way) for wall in walls)


def test_says_in_words_what_it_shows(root: ET.Element) -> None:
    assert root.attrib["role"] == "img"
    assert root.find(f"{NS}title") is not None
    about = root.findtext(f"{NS}desc") or ""
    for host in groups(root, "host"):
        assert host.attrib["data-name"] in about


def test_needs_nothing_from_elsewhere(root: ET.Element) -> None:
    text = ET.tostring(root, encoding="unicode")
    assert not re.search(r"<script|href|@import|url\((?!#bricks)", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme: dark" in text


def test_numbers_and_stalls_are_on_the_link() -> None:
    root = ET.fromstring(svg(picture(ISOLATED, ISOLATED_LIVE)))
    (group,) = groups(root, "link")
    assert [one.text for one in group.findall(f"{NS}text")] == [
        "3 tunnels, 1 stalled · rtt 101ms",
        "↑ 1.2MiB ↓ 330MiB",
        "!",
    ]
    runs = [one for one in root.iter(f"{NS}path") if one.attrib["class"] == "run"]
    # Three in the tube, two go on to the pod, three in the list; the node's own ends there.
    assert len(runs) == 8
    assert sum("stroke-dasharray" in one.attrib for one in runs) == 3


def test_whatever_is_said_stays_text() -> None:
    nasty = "\"><script>alert('&')</script>"
    host = replace(ISOLATED.hosts[0], name=nasty)
    topology = Topology(
        name=nasty, title=nasty, networks=ISOLATED.networks, hosts=(host, *ISOLATED.hosts[1:])
    )
    shot = server_snapshot(nasty, [link(1, nasty, state=nasty)], [tunnel(1, nasty, state=nasty)])
    live = LiveState(running={"server": True}, snapshots={"server": shot})
    text = svg(picture(topology, live))
    assert "<script" not in text
    root = ET.fromstring(text)
    assert nasty in [one.attrib.get("data-name") for one in groups(root, "host")]
    assert nasty in [one.text for one in root.iter(f"{NS}text")]
