"""The looks of a plan's picture: colours by day and by night, and the pattern of the wall.

Rules name their colours outright and the night repeats them: not every viewer knows variables.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.hosting.model import Viewpoint
from isthmus.text.svg import MONO, SANS

#: The class of everything that has to do with a place.
KIND: Mapping[Viewpoint, str] = {
    Viewpoint.INTERNET: "net",
    Viewpoint.GUEST_VPC: "guest",
    Viewpoint.MANAGEMENT: "host",
    Viewpoint.SAME_CLUSTER: "own",
}
# Every one is told from the others, on both grounds, by eyes that see few colours.
_BY_DAY = {"net": "#d9480f", "guest": "#1971c2", "host": "#7d4cc9", "own": "#5c6b7f"}
_BY_NIGHT = {"net": "#ff922b", "guest": "#4dabf7", "host": "#b197fc", "own": "#8d99ac"}


def _lines(colors: Mapping[str, str], indent: str = "") -> str:
    return "".join(
        f"{indent}.rail.{kind}, .bar.{kind} {{ stroke: {color}; }}\n"
        f"{indent}.dot.{kind}, .head.{kind}, .side.{kind} {{ fill: {color}; }}\n"
        for kind, color in colors.items()
    )


STYLE = f"""\
text {{ font-family: {SANS}; fill: #1f2733; }}
.mono {{ font-family: {MONO}; fill: #3a4555; white-space: pre; }}
.name, .strong, .title {{ font-weight: 600; }}
.faint {{ fill: #5b6778; }}
.page {{ fill: #f6f7f9; }}
.area {{ fill: #eaeff6; stroke: #cbd5e3; }}
.area.inner {{ fill: #dfe7f3; stroke: #b9c6da; }}
.card {{ fill: #ffffff; stroke: #d3dae4; }}
.rule {{ fill: none; stroke: #e1e6ee; }}
.rail, .bar {{ fill: none; stroke-width: 2.5; }}
.ring {{ fill: #f6f7f9; }}
.brick {{ fill: #c98b6b; }}
.mortar {{ fill: #ecd9cc; }}
.wall {{ fill: url(#bricks); stroke: #a8694a; }}
.chip {{ fill: #e8edf5; }}
.chip.held {{ fill: #f3e2d6; }}
.chip.open {{ fill: #ffe3a8; }}
.text.held {{ fill: #7a4524; }}
.text.open {{ fill: #7a4a00; }}
.alarm {{ fill: #f59f00; }}
.bang {{ fill: #1f2733; font-weight: 700; }}
.bad {{ fill: #c92a2a; font-weight: 600; }}
{_lines(_BY_DAY)}\
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6eaf0; }}
  .mono {{ fill: #c0cad8; }}
  .faint {{ fill: #9aa6b8; }}
  .page {{ fill: #12161c; }}
  .area {{ fill: #1a212b; stroke: #313c4b; }}
  .area.inner {{ fill: #202a38; stroke: #3b4a60; }}
  .card {{ fill: #2a3442; stroke: #465468; }}
  .rule {{ stroke: #3a4657; }}
  .ring {{ fill: #12161c; }}
  .brick {{ fill: #b0714f; }}
  .mortar {{ fill: #4a3328; }}
  .wall {{ stroke: #d29a78; }}
  .chip {{ fill: #3a4759; }}
  .chip.held {{ fill: #4a3328; }}
  .chip.open {{ fill: #5a4412; }}
  .text.held {{ fill: #eebf9c; }}
  .text.open {{ fill: #ffd479; }}
  .bang {{ fill: #12161c; }}
  .bad {{ fill: #ff8787; }}
{_lines(_BY_NIGHT, "  ")}\
}}
"""

BRICKS = """\
<pattern id="bricks" width="10" height="9" patternUnits="userSpaceOnUse">
<rect class="mortar" width="10" height="9"/>
<rect class="brick" x="0.5" y="0.5" width="9" height="3.5" rx="0.7"/>
<rect class="brick" x="-4.5" y="5" width="9" height="3.5" rx="0.7"/>
<rect class="brick" x="5.5" y="5" width="9" height="3.5" rx="0.7"/>
</pattern>"""
