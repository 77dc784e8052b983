"""The looks of an SVG picture: colours by day and by night, and the pattern of the wall.

Rules name their colours outright and the night repeats them: not every viewer knows variables.
"""

from __future__ import annotations

SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"

#: For tunnels, in turn; every one is seen on both grounds.
TUNNEL_COLORS = ("#e8590c", "#1c7ed6", "#2f9e44", "#ae3ec9", "#0c8599", "#e64980", "#b08900")

STYLE = f"""\
text {{ font-family: {SANS}; fill: #1f2733; }}
.mono {{ font-family: {MONO}; fill: #4b5768; white-space: pre; }}
.name, .strong, .title {{ font-weight: 600; }}
.faint, .sub {{ fill: #667085; }}
.opening {{ fill: #8a5a2b; font-weight: 500; }}
.page {{ fill: #f6f7f9; }}
.area {{ fill: #eaeff6; stroke: #cbd5e3; }}
.area.first {{ fill: #e6edfb; stroke: #b9caf0; }}
.card {{ fill: #ffffff; stroke: #d3dae4; }}
.guest .card {{ fill: none; stroke: #94a0b3; stroke-dasharray: 5 4; }}
.brick {{ fill: #c98b6b; }}
.mortar {{ fill: #ecd9cc; }}
.edge {{ fill: none; stroke: #a8694a; }}
.chip.serve {{ fill: #e3f4ea; }}
.chip.shape {{ fill: #fdf0d2; }}
.tube {{ fill: none; stroke: #b9c3d3; }}
.inside {{ fill: none; stroke: #f2f5fa; }}
.tube.ill {{ stroke: #e89a9a; }}
.collar {{ fill: #8894a8; }}
.run {{ fill: none; stroke-width: 2.5; }}
.place {{ fill: none; stroke: #94a0b3; stroke-width: 1.5; }}
.arrow {{ fill: #a8694a; stroke: #a8694a; stroke-width: 1.5; }}
.running {{ fill: #2f9e44; }}
.dead {{ fill: #e03131; }}
.waiting {{ fill: none; stroke: #94a0b3; stroke-width: 1.5; }}
.alarm {{ fill: #f59f00; stroke: #ffffff; }}
.bang {{ fill: #1f2733; font-weight: 700; }}
.warn {{ fill: #b25e00; }}
.bad {{ fill: #c92a2a; }}
.rule {{ stroke: #d3dae4; }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6eaf0; }}
  .mono {{ fill: #aab6c8; }}
  .faint, .sub {{ fill: #8d99ac; }}
  .opening {{ fill: #e0ac80; }}
  .page {{ fill: #12161c; }}
  .area {{ fill: #1a212b; stroke: #313c4b; }}
  .area.first {{ fill: #1a2333; stroke: #34466a; }}
  .card {{ fill: #232c38; stroke: #3a4657; }}
  .brick {{ fill: #8a553c; }}
  .mortar {{ fill: #4a3328; }}
  .edge {{ stroke: #b5795a; }}
  .chip.serve {{ fill: #1f3d2d; }}
  .chip.shape {{ fill: #48391a; }}
  .tube {{ stroke: #56637a; }}
  .inside {{ stroke: #1b222c; }}
  .tube.ill {{ stroke: #a14a4a; }}
  .collar {{ fill: #7a879b; }}
  .alarm {{ stroke: #12161c; }}
  .bang {{ fill: #12161c; }}
  .warn {{ fill: #ffc56b; }}
  .bad {{ fill: #ff8787; }}
  .rule {{ stroke: #313c4b; }}
}}
"""

BRICKS = """\
<pattern id="bricks" width="19" height="16" patternUnits="userSpaceOnUse">
<rect class="mortar" width="19" height="16"/>
<rect class="brick" x="0.75" y="0.75" width="17.5" height="6.5" rx="1"/>
<rect class="brick" x="-8.75" y="8.75" width="17.5" height="6.5" rx="1"/>
<rect class="brick" x="10.25" y="8.75" width="17.5" height="6.5" rx="1"/>
</pattern>"""
