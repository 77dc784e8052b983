"""The lines of an SVG picture before they have a place: which card is joined to which, and why.

A link joins two processes; a tunnel goes on from its agent to the target's host; a host on several
networks is joined to its small cards there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.lab.picture import LabPicture, flow_text, link_texts
from isthmus.lab.picture_live import LiveLink, LiveTunnel

TUNNELS_DRAWN = 6
LINE_GAP = 5.0


@dataclass(frozen=True, slots=True)
class WireEnd:
    """A port on a card in a column."""

    column: int
    host: str
    port: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A line between two cards, ``left`` never right of ``right``.

    ``source`` opened it, towards ``target``. ``colors`` are those of the tunnels it shows.
    """

    left: WireEnd
    right: WireEnd
    source: str
    target: str
    networks: tuple[str, str]
    link: LiveLink | None = None
    tunnel: LiveTunnel | None = None
    colors: tuple[int, ...] = ()

    @property
    def thickness(self) -> float:
        """Of a link: what its tunnels need."""
        return 12 + LINE_GAP * len(self.colors) if self.link else 2.5

    @property
    def labels(self) -> tuple[str, ...]:
        """What is written over and under a link."""
        if self.link is None:
            return ()
        flow = flow_text(self.link.to_agent, self.link.to_server)
        over = " · ".join(text for text in link_texts(self.link) if text != flow)
        if self.left.column == self.right.column:  # the label may have to stand aside
            over = f"{self.link.agent} – {self.link.server}: {over}"
        return (over, flow)

    @property
    def height(self) -> float:
        """With the labels."""
        if self.link is None:
            return 9.0
        # Inside a network the tube is beside its label and not between its lines.
        return 50.0 if self.left.column == self.right.column else self.thickness + 50


def tunnels_drawn(link: LiveLink) -> tuple[LiveTunnel, ...]:
    """Those of a link's tunnels that get a line: who does not move comes first."""
    return tuple(sorted(link.tunnels, key=lambda one: not one.stalled)[:TUNNELS_DRAWN])


def tunnel_colors(picture: LabPicture) -> list[tuple[int, ...]]:
    """A colour's number for every tunnel that is drawn, link by link."""
    made, count = [], 0
    for link in picture.links:
        drawn = len(tunnels_drawn(link))
        made.append(tuple(range(count, count + drawn)))
        count += drawn
    return made


def wires_of(picture: LabPicture) -> Iterator[Wire]:
    """All lines of a picture."""
    column = {
        host.name: number for number, one in enumerate(picture.networks) for host in one.hosts
    }

    def wire(
        source: WireEnd,
        target: WireEnd,
        link: LiveLink | None = None,
        tunnel: LiveTunnel | None = None,
        colors: tuple[int, ...] = (),
    ) -> Wire:
        left, right = (source, target) if source.column <= target.column else (target, source)
        networks = (
            picture.networks[source.column].name,
            picture.networks[target.column].name,
        )
        return Wire(
            left=left,
            right=right,
            source=source.host,
            target=target.host,
            networks=networks,
            link=link,
            tunnel=tunnel,
            colors=colors,
        )

    for number, one in enumerate(picture.networks):
        for guest in one.guests:
            if guest.host in column:
                yield wire(
                    WireEnd(column[guest.host], guest.host, f"place {one.name}"),
                    WireEnd(number, guest.host, "host"),
                )
    for link, colors in zip(picture.links, tunnel_colors(picture), strict=True):
        server, agent = picture.host_of(link.server_process), picture.host_of(link.agent_process)
        if not server or not agent:
            continue
        end = WireEnd(column[agent], agent, f"process {link.agent_process}")
        yield wire(
            end,
            WireEnd(column[server], server, f"process {link.server_process}"),
            link=link,
            colors=colors,
        )
        for tunnel, color in zip(tunnels_drawn(link), colors, strict=True):
            if tunnel.host in column and tunnel.host != agent:
                target = WireEnd(column[tunnel.host], tunnel.host, "host")
                yield wire(end, target, tunnel=tunnel, colors=(color,))
