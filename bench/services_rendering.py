"""The time to render the rules of many Services, without a kernel.

A separate process with its own heap, ``python bench/services_rendering.py SERVICES``; prints a
line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from services_rig import make_objects

from isthmus.programs.node_proxy.kernel.iptables import restore_input
from isthmus.programs.node_proxy.rules.detectors import SourceRanges
from isthmus.programs.node_proxy.rules.iptables.ruleset import (
    IptablesRenderer,
    SavedRules,
    SavedTable,
    full_writes,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, ServiceView
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesRenderer, rebuilt
from isthmus.programs.node_proxy.rules.reading import read_service, read_slice
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.programs.node_proxy.rules.tracker import ServiceTracker

_SETTINGS = RuleSettings(family=IpFamily.IPV4, detector=SourceRanges(ranges=("10.180.0.0/16",)))


def iptables_text(view: ServiceView) -> str:
    """Render the input of iptables-restore."""
    ruleset = IptablesRenderer(_SETTINGS).render(view).ruleset
    return restore_input(full_writes(ruleset, SavedRules()), there=SavedTable(), may_list=False)


def nftables_text(view: ServiceView) -> str:
    """Render the input of nft."""
    renderer = NftablesRenderer(_SETTINGS)
    renderer.advance(view)
    return rebuilt(renderer.ruleset())


RENDERERS: dict[str, Callable[[ServiceView], str]] = {
    "iptables": iptables_text,
    "nftables": nftables_text,
}


def tracker_of(services: int) -> ServiceTracker:
    """Read objects as the API writes them, into a tracker without a first take."""
    made = make_objects(services)
    notes: list[str] = []
    texts = [[json.dumps(one).encode() for one in some] for some in (made.services, made.slices)]
    tracker = ServiceTracker(node_name="node-a", families=(IpFamily.IPV4,))
    tracker.set_node({})
    tracker.replace_services(filter(None, (read_service(text, notes) for text in texts[0])))
    tracker.replace_slices(filter(None, (read_slice(text, notes) for text in texts[1])))
    assert not notes, notes[0]
    return tracker


def main() -> int:
    """Measure each mode once, from the tracked objects to the text."""
    services = int(sys.argv[1])
    tracker = tracker_of(services)
    began = time.perf_counter()
    view = tracker.take()[IpFamily.IPV4].view
    taken_s = time.perf_counter() - began
    assert len(view.ports) == services
    found = {}
    for mode, render in RENDERERS.items():
        began = time.perf_counter()
        text = render(view)
        found[mode] = {
            "render_s": taken_s + time.perf_counter() - began,
            "lines": text.count("\n"),
        }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
