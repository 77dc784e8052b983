"""Reading --peer-server: the other servers, by their ids, and where this one reaches them."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.errors import ConfigError
from isthmus.values import HostPort, ServerId
from isthmus.wire.link import is_askable

_FLAG = "--peer-server"


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
