"""Feature gates, in the syntax of Kubernetes: features that are not on by default yet.

    --feature-gates=EnableClusterToMasterTraffic=true,AllBeta=false

A list of NAME=BOOL; the flag may be repeated and a later entry wins. AllAlpha and AllBeta set every
gate of their stage that is not named itself. The ends of a link tell each other which gates are on
(links/), so that a gate that is on at one end only is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.parsing import parse_bool
from isthmus.text.suggestions import nearest

FLAG = "--feature-gates"
#: The group of flags, in both programs, that the gate of KEP-2025 enables.
NODE_TRAFFIC = "From nodes to the control plane"
ALPHA = "ALPHA"
BETA = "BETA"
#: KEP-2025: nodes reach the control plane through their agents.
CLUSTER_TO_MASTER = "EnableClusterToMasterTraffic"
#: The names that stand for every gate of a stage, as in Kubernetes.
STAGES: Mapping[str, str] = MappingProxyType({"AllAlpha": ALPHA, "AllBeta": BETA})


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureGate:
    """One feature that can be turned on or off, and its stage."""

    name: str
    stage: str
    default: bool
    #: What the feature does; the text continues a sentence that begins with its name.
    does: str

    def __str__(self) -> str:
        """The gate as help texts of Kubernetes show it."""
        return f"{self.name}=true|false ({self.stage} - default={str(self.default).lower()})"


GATES: Mapping[str, FeatureGate] = MappingProxyType(
    {
        gate.name: gate
        for gate in (
            FeatureGate(
                name=CLUSTER_TO_MASTER,
                stage=ALPHA,
                default=False,
                does="lets nodes reach the listed destinations of the control plane",
            ),
        )
    }
)


def parse_gates(texts: Sequence[str]) -> Mapping[str, bool]:
    """Read ``NAME=BOOL`` texts; return every known gate and whether it is on.

    Raises:
        ConfigError: names the invalid text and the reason.
    """
    named: dict[str, bool] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name not in GATES and name not in STAGES:
            known = [*GATES, *STAGES]
            hint = nearest(name, known) or f", there are {', '.join(known)}"
            raise ConfigError(f"{FLAG}: no feature gate is called {name!r}{hint}")
        if not equals:
            raise ConfigError(f"{FLAG}: {name} needs a value, such as {name}=true")
        try:
            named[name] = parse_bool(value)
        except ValueError as error:
            raise ConfigError(f"{FLAG}: {name}: {error}") from error
    by_stage = {stage: named[word] for word, stage in STAGES.items() if word in named}
    return {
        name: named.get(name, by_stage.get(gate.stage, gate.default))
        for name, gate in GATES.items()
    }


def _listed() -> str:
    return "; ".join(f"{gate} {gate.does}" for gate in GATES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings(SettingsBlock):
    """Which features are on; ``check()`` validates the names."""

    GO: ClassVar = OURS

    feature_gates: tuple[str, ...] = option(
        (),
        help=f"Turn features on or off: {_listed()}; AllAlpha and AllBeta set every gate of that "
        "stage",
        repeat=True,
        group="Feature gates",
        metavar="NAME=true|false,...",
    )

    def states(self) -> Mapping[str, bool]:
        """Every known gate, and whether it is on.

        Raises:
            ConfigError: a text is invalid, or there is no such gate.
        """
        return parse_gates(self.feature_gates)

    def enabled(self, name: str) -> bool:
        """Whether a gate, one of GATES, is on."""
        return self.states()[name]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the gates that are on, as the ends of a link tell each other."""
        return tuple(name for name, on in self.states().items() if on)

    def check(self) -> None:
        """Read the gates.

        Raises:
            ConfigError: an entry is invalid.
        """
        self.states()
