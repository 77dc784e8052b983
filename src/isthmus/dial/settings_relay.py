"""The settings about relaying: reaching targets through the agents of other servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.parsing import check_pair

GROUP = "Relaying between servers"
_MAX_NAME_CHARS = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings(SettingsBlock):
    """Whom a server asks that has no agent, and for whom it asks its own.

    The certificates that are left empty are those for agents; ServerSettings has them.
    """

    GO: ClassVar = OURS

    peer_relay: bool = option(
        False,
        help="While no agent here can take a dial, ask the servers of --peer-server, or of the "
        "Leases, to pass it to theirs",
        group=GROUP,
    )
    peer_relay_name: tuple[str, ...] = option(
        (),
        help="Pass dials of a server to this one's own agents if its certificate has this name, "
        "as common name or alternative name; without it, of no server",
        repeat=True,
        group=GROUP,
        metavar="NAME",
    )
    peer_cert: str = option(
        "",
        help="Show this certificate to other servers; it must be good for clients",
        shown_default="--cluster-cert",
        group=GROUP,
        metavar="FILE",
    )
    peer_key: str = option(
        "",
        help="Use this private key with --peer-cert",
        shown_default="--cluster-key",
        group=GROUP,
        metavar="FILE",
    )
    peer_ca_cert: str = option(
        "",
        help="Trust other servers with a certificate from these authorities",
        shown_default="--cluster-ca-cert",
        group=GROUP,
        metavar="FILE",
    )
    peer_server_name: str = option(
        "",
        help="Expect this name in the certificates of other servers, wherever they are; empty "
        "means their host",
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
