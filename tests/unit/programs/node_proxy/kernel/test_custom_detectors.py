"""Detectors of other packages: found by their entry points, held against the interface."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy import node
from isthmus.programs.node_proxy.node import GROUP, find_detector
from isthmus.programs.node_proxy.rules.detectors import (
    DetectorSettings,
    LocalTrafficDetector,
    SourceRanges,
)
from isthmus.programs.node_proxy.rules.model import IpFamily

MODULE = '''
from dataclasses import dataclass
from isthmus.programs.node_proxy.rules.detectors import LocalMatch

@dataclass(frozen=True)
class Marked:
    """What something else marked."""

    bit: int

    @classmethod
    def make(cls, given):
        return cls(len(given.cluster_cidrs))

    def matches(self, family):
        mark = f"{1 << self.bit:#x}"
        return (LocalMatch(iptables=("-m", "mark", "--mark", f"{mark}/{mark}"),
                      iptables_not=("-m", "mark", "!", "--mark", f"{mark}/{mark}"),
                      nft=f"meta mark & {mark} == {mark}",
                      nft_not=f"meta mark & {mark} != {mark}"),)

    @property
    def bridge_ports(self):
        return None

make = Marked.make

def words(given):
    class Words:
        bridge_ports = None
        def matches(self, family):
            return ("-i", "eth0")
    return Words()

def empty(given):
    return object()

def broken(given):
    raise ValueError("no licence")

number = 7
'''


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offer what is in MODULE, and a module that cannot be imported."""
    (tmp_path / "offered_detectors.py").write_text(MODULE)
    (tmp_path / "offered_wreck.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("make", "words", "empty", "broken", "number")
    points = [EntryPoint(name, f"offered_detectors:{name}", GROUP) for name in names]
    points.append(EntryPoint("wreck", "offered_wreck:make", GROUP))
    monkeypatch.setattr(node, "entry_points", lambda group: EntryPoints(points))
    for name in ("offered_detectors", "offered_wreck"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def made(name: str) -> LocalTrafficDetector:
    return find_detector(name)(DetectorSettings(cluster_cidrs=("10.0.0.0/8",)))


def test_one_that_is_installed() -> None:
    (match,) = made("make").matches(IpFamily.IPV4)
    assert match.iptables == ("-m", "mark", "--mark", "0x2/0x2")
    assert made("make") == made("make")


def test_our_own_come_first() -> None:
    assert made("cluster-cidr") == SourceRanges(("10.0.0.0/8",))


def test_one_that_is_not_there() -> None:
    with pytest.raises(ConfigError) as caught:
        find_detector("node-cdir")
    assert str(caught.value) == (
        "--detect-local must be cluster-cidr, node-cidr, pod-interface-prefix, bridge, broken,"
        " empty, make, number, words or wreck, not 'node-cdir', did you mean node-cidr?"
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("words", "returned something other than LocalMatch values"),
        ("empty", "failed: AttributeError: 'object' object has no attribute 'matches'"),
        ("broken", "failed: ValueError: no licence"),
        ("number", "is not callable"),
    ],
)
def test_one_that_is_wrong(name: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(name)
    assert str(caught.value) == f"the detector '{name}' (offered_detectors:{name}) {what}"


def test_one_that_cannot_be_imported() -> None:
    with pytest.raises(ConfigError, match=r"'wreck' .* cannot be loaded: ModuleNotFoundError"):
        find_detector("wreck")
