"""Addresses and networks as the API has them, written in the one way that rules write them.

Go's sloppy parser let ``010.0.0.1`` into old objects and reads it as 10.0.0.1, and takes an IPv4
address mapped into IPv6 for the former; so does this.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_network

from isthmus.values import is_address

_MAPPED_BITS = 96  # ::ffff:0:0/96 (RFC 4291 §2.5.5.2)


def canonical_address(text: str) -> str:
    """An address in its shortest form (RFC 5952), or nothing if it is none."""
    if ":" in text:
        if not is_address(text):
            return ""
        six = IPv6Address(text)
        return str(six if six.ipv4_mapped is None else six.ipv4_mapped)
    return text if is_address(text) else _sloppy(text)


def canonical_network(text: str) -> str:
    """A network without host bits, or nothing if it is none; space around it is no matter."""
    address, slash, length = text.strip().partition("/")
    if not (slash and length.isascii() and length.isdigit() and len(length) <= 3):
        return ""
    if ":" not in address:
        address = canonical_address(address)
    if not is_address(address):
        return ""
    bits = int(length)
    if ":" in address and bits >= _MAPPED_BITS:
        mapped = IPv6Address(address).ipv4_mapped
        if mapped is not None:
            address, bits = str(mapped), bits - _MAPPED_BITS
    try:
        return str(ip_network(f"{address}/{bits}", strict=False))
    except ValueError:
        return ""


def _sloppy(text: str) -> str:
    parts = text.split(".")
    fine = all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts)
    if len(parts) != 4 or not fine:
        return ""
    numbers = [int(part) for part in parts]
    return ".".join(map(str, numbers)) if max(numbers) <= 255 else ""
