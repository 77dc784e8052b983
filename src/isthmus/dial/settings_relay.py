"""Other servers: who they are (--peer-server), and relaying dials to their agents."""

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
    """Whom a server asks that has no agent, and for whom it asks its own.

    The certificates that are left empty are those for agents; ServerSettings has them.
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
        """Hold the flags against each other; ``others``: other servers can be known.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
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
                "--peer-relay-name needs --cluster-ca-cert: without it nobody at the agent port"
                " proves a name by a certificate"
            )
        if (self.peer_relay or self.peer_relay_name) and link == "grpc":
            raise ConfigError("--link=grpc cannot relay: that is done by our own protocol")
        for name in self.peer_relay_name:
            if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
                raise ConfigError(f"--peer-relay-name: {name!r} is not a certificate's name")


def parse_peers(texts: Sequence[str], *, own: str) -> dict[ServerId, HostPort]:
    """Read ``ID=HOST:PORT`` texts; our own id among them is left out.

    So that every replica can have the same flags, our own entry may be there; for the same reason
    a replica has to know which one it is.

    Raises:
        ConfigError: one sentence that says what is wrong with which text.
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
    """Read an address that a flag gives.

    Raises:
        ConfigError: it is no host and port.
    """
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error


def check_askable(flag: str, server_id: str) -> None:
    """An id that agents ask for is a part of an ALPN name."""
    if not is_askable(server_id):
        raise ConfigError(
            f"{flag}: an id that agents can ask for has 1 to 200 letters, digits, '.', '_' or '-'"
        )
