"""The text picture, against pictures looked at once. ISTHMUS_REGENERATE=1 draws those anew."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from picture_examples import EXAMPLES, HA, HA_LIVE, ISOLATED, ISOLATED_LIVE, wide

from isthmus.lab.picture import picture
from isthmus.lab.picture_live import LiveState
from isthmus.lab.picture_text import draw

GOLDEN = Path(__file__).parents[2] / "golden" / "lab"


@pytest.mark.parametrize("name", EXAMPLES)
def test_looks_as_it_did(name: str) -> None:
    text = draw(picture(*EXAMPLES[name]), width=100, color=False)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("ISTHMUS_REGENERATE"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


SIZES = [(1, 2), (2, 2), (2, 12), (3, 6), (8, 8), (8, 12)]


@pytest.mark.parametrize(("networks", "hosts"), SIZES)
@pytest.mark.parametrize("width", [60, 80, 100, 133, 200])
@pytest.mark.parametrize("ascii", [False, True])
def test_everything_is_there_and_within_the_width(
    networks: int, hosts: int, width: int, ascii: bool
) -> None:
    topology, live = wide(networks, hosts)
    text = draw(picture(topology, live), width=width, color=False, ascii=ascii)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    for host in topology.hosts:
        assert f" {host.name} " in text
        for address in host.addresses:
            assert str(address) in text
    for process in topology.processes:
        assert f" {process.name}  isthmus" in text
    for network in topology.networks:
        assert f" {network.name} {network.cidrs[0]}" in text
    for allow in topology.allows:
        assert f"{allow.source} {'->' if ascii else '→'} {allow.target}:8091" in text


def columns(lines: list[str], sign: str) -> set[int]:
    return {at for line in lines for at, one in enumerate(line) if one == sign}


@pytest.mark.parametrize(("networks", "hosts"), SIZES)
@pytest.mark.parametrize("width", [80, 160])
def test_lanes_begin_and_end_at_a_host_and_pass_the_walls_by_gaps(
    networks: int, hosts: int, width: int
) -> None:
    lines = draw(picture(*wide(networks, hosts)), width=width, color=False).splitlines()
    joined = [line for line in lines if "╞" in line]
    assert len(joined) == hosts  # the server, and every agent
    begin, end = (
        columns(lines, "╗") | columns(lines, "╦"),
        columns(lines, "╝") | columns(lines, "╩"),
    )
    assert begin == end != set()
    walls = [line for line in lines if line.startswith("▒")]
    assert len(walls) >= networks - 1
    for wall in walls:
        for column in columns([wall], "║"):
            assert wall[column - 1] == wall[column + 1] == " "


def test_too_many_links_share_lanes() -> None:
    topology, live = wide(4, 12)
    narrow = draw(picture(topology, live), width=70, color=False).splitlines()
    broad = draw(picture(topology, live), width=200, color=False).splitlines()
    assert len(columns(narrow, "║")) == 1
    assert len(columns(broad, "║")) == 11


def test_numbers_are_on_the_agents_line() -> None:
    text = draw(picture(ISOLATED, ISOLATED_LIVE), color=False)
    (line,) = [one for one in text.splitlines() if "● agent" in one]
    assert "╞══ 3 tunnels, 1 stalled · ↑ 1.2MiB ↓ 330MiB · rtt 101ms ═" in line
    narrow = draw(picture(ISOLATED, ISOLATED_LIVE), width=80, color=False)
    (line,) = [one for one in narrow.splitlines() if "● agent" in one]
    assert "╞══ 3 tunnels, 1 stalled ═" in line


def test_color_changes_nothing_else() -> None:
    drawn = picture(HA, HA_LIVE)
    colored = draw(drawn, color=True)
    assert "\x1b[31m✗ server3" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == draw(drawn, color=False)


def test_ascii_is_ascii() -> None:
    text = draw(picture(ISOLATED, ISOLATED_LIVE), color=False, ascii=True)
    assert text.isascii()
    assert "nodes -> master:8091" in text
    assert "nodes <-> pods" in text
    assert "?" not in text


def test_nothing_live_has_no_links() -> None:
    text = draw(picture(ISOLATED, LiveState()), color=False)
    assert "═" not in text
    assert "○ agent" in text
    assert "▲ nodes → master:8091" in text
