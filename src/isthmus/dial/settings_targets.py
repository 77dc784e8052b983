"""The settings of connections that an agent carries from its node to the control plane.

    --target=6443:apiserver.example.com:6443      LOCAL_PORT:HOST:PORT (KEP-2025)

net/settings_bind.py has the local addresses; the server's own
settings_destinations.py permits destinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.gates import CLUSTER_TO_MASTER, NODE_TRAFFIC
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.values import HostPort

FLAG = "--target"
#: Each has a listening socket.
MOST_TARGETS = 64
_PORTS = range(1, 65536)
_WRITTEN = "LOCAL_PORT:HOST:PORT, such as 6443:apiserver.example.com:6443 or 6443:[fd00::1]:6443"


@dataclass(frozen=True, slots=True)
class Target:
    """A port of this node, and its destination as seen from the server."""

    local_port: int
    destination: HostPort

    def __post_init__(self) -> None:
        if self.local_port not in _PORTS:
            raise ValueError(f"port out of range: {self.local_port}")

    def __str__(self) -> str:
        """As written in the flag."""
        return f"{self.local_port}:{self.destination}"


def parse_target(text: str) -> tuple[Target, str]:
    """Read ``LOCAL_PORT:HOST:PORT``, an IPv6 address in brackets; returns a warning, or "".

    The older order ``HOST:PORT:LOCAL_PORT``, of an earlier draft of the KEP, is accepted as well,
    with a warning. The two are unambiguous if there is a host: a host is never only a number
    (HostPort rejects such a name), so a text that starts with a number and a colon can only be in
    the current order, and one that starts with a name, an IPv4 address or a bracket only in the
    older. Three numbers would fit both and have no host: the error shows both readings.

    Raises:
        ConfigError: shows the text and says what is wrong.
    """
    first, colon, rest = text.partition(":")
    before, _, last = text.rpartition(":")
    if not colon or before == first:
        raise ConfigError(f"{FLAG} takes {_WRITTEN}, not {text!r}")
    parts = text.split(":")
    if len(parts) == 3 and all(map(_is_number, parts)):
        raise ConfigError(
            f"{FLAG} {text}: there is no host in it: it reads as local port {parts[0]} to host"
            f" {parts[1]}, port {parts[2]}, or in the older order as host {parts[0]}, port"
            f" {parts[1]}, from local port {parts[2]}"
        )
    if _is_number(first):
        return _made(text, first, rest), ""
    target = _made(text, last, before)
    return target, f"{FLAG} {text} is in the order of an older draft; write {FLAG}={target}"


def _made(text: str, local_port: str, destination: str) -> Target:
    # The length is limited, because int() is slow with long texts.
    if not _is_number(local_port) or len(local_port) > 5 or int(local_port) not in _PORTS:
        raise ConfigError(
            f"{FLAG} {text}: the local port must be from 1 to 65535, not {local_port!r}"
        )
    try:
        return Target(int(local_port), HostPort.parse(destination))
    except ValueError as error:
        raise ConfigError(f"{FLAG} {text}: {error}") from error


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def parse_targets(texts: Sequence[str]) -> tuple[tuple[Target, ...], list[str]]:
    """Read every target, with the warnings.

    Raises:
        ConfigError: an entry is invalid, two have the same local port, or there are too many.
    """
    if len(texts) > MOST_TARGETS:
        raise ConfigError(f"{FLAG} may be given {MOST_TARGETS} times at most, not {len(texts)}")
    found: dict[int, Target] = {}
    warnings = []
    for text in texts:
        target, warning = parse_target(text)
        other = found.setdefault(target.local_port, target)
        if other is not target:
            raise ConfigError(
                f"{FLAG}: local port {target.local_port} is given twice, for {other.destination}"
                f" and for {target.destination}"
            )
        warnings += [warning] if warning else []
    return tuple(found.values()), warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings(SettingsBlock):
    """The destinations of local connections; ``check()`` checks them."""

    GO: ClassVar = OURS

    target: tuple[str, ...] = option(
        (),
        help="Port of --bind-address, and the destination beside the server that its connections "
        "are forwarded to; the server must permit it (--allowed-destination)",
        repeat=True,
        group=NODE_TRAFFIC,
        metavar="LOCAL_PORT:HOST:PORT",
    )
    target_wait_s: float = option(
        10.0,
        help="How long a local connection waits for a server that accepts it before it is reset",
        unit="seconds",
        group=NODE_TRAFFIC,
    )

    @property
    def targets(self) -> tuple[Target, ...]:
        """Every target, in the order given.

        Raises:
            ConfigError: an entry is invalid, or two have the same local port.
        """
        return parse_targets(self.target)[0]

    def check(self, *, bind_address: Sequence[str], on: bool) -> list[str]:
        """Check the settings of node traffic; returns warnings.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        targets, warnings = parse_targets(self.target)
        given = [
            flag for flag, value in ((FLAG, self.target), ("--bind-address", bind_address)) if value
        ]
        if not given:
            return []
        if not on:
            warnings.append(
                f"{' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect without"
                f" --feature-gates={CLUSTER_TO_MASTER}=true: nothing is bound"
            )
        elif not bind_address:
            warnings.append(
                f"{FLAG} has no effect without --bind-address: only traffic from the control plane"
                " is served"
            )
        elif not targets:
            warnings.append(f"--bind-address has no effect without {FLAG}: nothing is bound")
        return warnings
