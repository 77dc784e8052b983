"""What an agent stands for, as the identifiers of the right kind.

HyperShift writes ``ipv4=`` whatever the family of an address, and a server that looks for an IPv6
address does not find such an agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import quote

from isthmus.errors import ConfigError
from isthmus.settings.identifiers import Identifiers
from isthmus.values import is_address


def identifiers(texts: Sequence[str], given: str = "") -> str:
    """A text for --agent-identifiers; ``given`` is one that was typed, which stays in front.

    Raises:
        ConfigError: a text is neither address, network nor host; the sentence quotes it.
    """
    pairs: dict[str, None] = {}
    for text in texts:
        try:
            # Quoted, so that a text stays one value whatever is in it.
            found = Identifiers.parse(f"{_kind(text)}={quote(text, safe=':/')}")
        except ValueError:
            raise ConfigError(
                f"--stand-for takes an address, a network or a host, not {text!r}"
            ) from None
        pairs[found.to_query()] = None
    return "&".join(filter(None, (given, *pairs)))


def _kind(text: str) -> str:
    if "/" in text:
        return "cidr"
    if not is_address(text):
        return "host"
    return f"ipv{ip_address(text).version}"
