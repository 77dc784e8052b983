"""A hosts file: names in lower case with addresses, and nothing else."""

from ipaddress import ip_address

from isthmus.net.rules_names import parse_hosts


def check(data: bytes) -> None:
    """Read any file."""
    for name, addresses in parse_hosts(data.decode("utf-8", "replace")).items():
        assert name == name.lower() and addresses
        for address in addresses:
            ip_address(address)
