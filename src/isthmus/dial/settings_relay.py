"""The settings of other servers (--peer-server), and of relaying dials to their agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.parsing import check_pair
from isthmus.values import HostPort, ServerId
from isthmus.wire.alpn import is_askable

GROUP = "Relaying between servers"
_FLAG = "--peer-server"
_MAX_NAME_CHARS = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings(SettingsBlock):
    """Which servers are asked to relay, and for which servers this one relays.

    Empty certificate settings default to those for agents; ServerSettings has them.
    """

    GO: ClassVar = OURS

    peer_relay: bool = option(
        False,
        help="Ask other servers, of --peer-server or of the Leases, to pass a dial to their "
        "agents while none of this server can take it",
        group=GROUP,
    )
    peer_relay_name: tuple[str, ...] = option(
        (),
        help="Common or alternative name of servers whose dials this server passes to its own "
        "agents; without it, no server's",
        repeat=True,
        group=GROUP,
        metavar="NAME",
    )
    peer_cert: str = option(
        "",
        help="TLS certificate shown to other servers; it must be valid for clients",
        shown_default="--cluster-cert",
        group=GROUP,
        metavar="FILE",
    )
    peer_key: str = option(
        "",
        help="Private key of --peer-cert",
        shown_default="--cluster-key",
        group=GROUP,
        metavar="FILE",
    )
    peer_ca_cert: str = option(
        "",
        help="CAs that certificates of other servers must come from",
        shown_default="--cluster-ca-cert",
        group=GROUP,
        metavar="FILE",
    )
    peer_server_name: str = option(
        "",
        help="Name expected in the certificates of other servers, wherever they are; empty means "
        "their host",
        group=GROUP,
        metavar="NAME",
    )

    def check(self, *, others: bool, agents_ca: str, link: str) -> None:
        """Check the flags; ``others``: whether other servers can be known.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_pair("peer-cert", self.peer_cert, "peer-key", self.peer_key)
        if self.peer_relay and not others:
            raise ConfigError(
                "--peer-relay needs to know other servers: give --peer-server, or"
                " --enable-lease-controller"
            )
        if self.peer_relay and not (self.peer_ca_cert or agents_ca):
            raise ConfigError("--peer-relay needs --peer-ca-cert: whom it asks has to prove itself")
        if self.peer_relay_name and not agents_ca:
            raise ConfigError(
                "--peer-relay-name needs --cluster-ca-cert: without it no peer of the agent port"
                " proves a name by a certificate"
            )
        if (self.peer_relay or self.peer_relay_name) and link == "grpc":
            raise ConfigError("--link=grpc cannot relay: that is done by our own protocol")
        for name in self.peer_relay_name:
            if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
                raise ConfigError(f"--peer-relay-name: {name!r} is not a certificate's name")


def parse_peers(texts: Sequence[str], *, own: str) -> dict[ServerId, HostPort]:
    """Read ``ID=HOST:PORT`` texts; the entry of our own id is left out.

    All replicas can have the same flags, so our own entry may be present; for that
    a replica has to know its own id.

    Raises:
        ConfigError: names the invalid text and says why.
    """
    if not texts:
        return {}
    if not own:
        raise ConfigError(f"{_FLAG} needs --server-id as well: agents ask for servers by their ids")
    check_askable("--server-id", own)
    found: dict[ServerId, HostPort] = {}
    for text in texts:
        name, equals, where = text.partition("=")
        if not equals:
            raise ConfigError(
                f"{_FLAG} takes ID=HOST:PORT, such as two=10.0.0.2:8091, not {text!r}"
            )
        check_askable(f"{_FLAG} {text}", name)
        server_id, address = ServerId(name), parse_address(f"{_FLAG} {text}", where)
        if found.setdefault(server_id, address) != address:
            raise ConfigError(f"{_FLAG}: {name} is there twice, with different addresses")
    found.pop(ServerId(own), None)
    return found


def parse_address(flag: str, text: str) -> HostPort:
    """Read an address from a flag.

    Raises:
        ConfigError: not a host and port.
    """
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error


def check_askable(flag: str, server_id: str) -> None:
    """Check an id that agents request: it is part of an ALPN name."""
    if not is_askable(server_id):
        raise ConfigError(
            f"{flag}: an id that agents can ask for has 1 to 200 letters, digits, '.', '_' or '-'"
        )
