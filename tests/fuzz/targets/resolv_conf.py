"""A resolv.conf: servers that are addresses, names that fit, bounded numbers."""

from ipaddress import ip_address

from isthmus.net.rules_names import MOST_SEARCHED, MOST_SERVERS, parse_resolv_conf


def check(data: bytes) -> None:
    """Read any file."""
    conf = parse_resolv_conf(data.decode("utf-8", "replace"), "host.example.com")
    assert 1 <= len(conf.servers) <= MOST_SERVERS
    for server in conf.servers:
        ip_address(server)
    assert 1 <= len(conf.questions("name")) <= MOST_SEARCHED + 1
