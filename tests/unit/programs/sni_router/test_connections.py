"""The tables of the SNI router are complete, and addresses of the kernel become values."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from isthmus.net.connection_gate import endpoint
from isthmus.programs.sni_router.connections import ALERT_OF, OF_MISS
from isthmus.programs.sni_router.metrics import SniRefusal
from isthmus.programs.sni_router.rules import Miss
from isthmus.wire.client_hello import TlsAlert
from isthmus.wire.proxy_protocol import IpPort


def test_every_refusal_has_its_answer() -> None:
    assert ALERT_OF.keys() == set(SniRefusal)
    assert OF_MISS.keys() == set(Miss)
    assert all(ALERT_OF[refusal] is not None for refusal in OF_MISS.values())


def test_an_alert_on_the_wire() -> None:
    # RFC 8446 §5.1 and §6: alert, TLS 1.2, two bytes, fatal, the description.
    assert TlsAlert.UNRECOGNIZED_NAME.to_bytes_fatal() == bytes.fromhex("15 0303 0002 02 70")


@pytest.mark.parametrize(
    ("address", "ip"),
    [
        (("10.0.0.1", 1), "10.0.0.1"),
        (("::ffff:10.0.0.1", 1, 0, 0), "10.0.0.1"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::1"),
        (("2001:db8::1", 1, 0, 0), "2001:db8::1"),
    ],
)
def test_endpoints(address: tuple[object, ...], ip: str) -> None:
    assert endpoint(address) == IpPort(ip_address(ip), 1)
