"""The settings that workloads of servers and of agents share: what is put around their pods."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, option
from isthmus.text.cidrs import cidr

_GROUP = "Around the pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundSettings:
    """What a daemonset or deployment comes with; ``check_around()`` says whether it makes sense."""

    host_network: bool = option(
        True,
        help="Run the pods of a daemonset in the network of their nodes",
        group=_GROUP,
        go=OURS,
    )
    network_policy: bool = option(
        True,
        help="Add a NetworkPolicy where pods have a network of their own; nobody enforces one in "
        "the network of a node",
        group=_GROUP,
        go=OURS,
    )
    allow_cidr: tuple[str, ...] = option(
        (),
        help="Narrow the NetworkPolicy to this network: a server's agents come from it, an agent "
        "dials into it",
        repeat=True,
        metavar="CIDR",
        shown_default="everywhere",
        group=_GROUP,
        go=OURS,
    )
    disruption_budget: bool = option(
        True,
        help="Add a PodDisruptionBudget to a deployment with several pods",
        group=_GROUP,
        go=OURS,
    )

    def check_around(self) -> None:
        """Look at these settings.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        for text in self.allow_cidr:
            try:
                cidr(text)
            except ValueError as error:
                raise ConfigError(f"--allow-cidr {text} {error}") from None
