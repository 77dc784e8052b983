"""Which code each failure has, and how passwords are compared."""

from __future__ import annotations

import pytest

from isthmus.errors import DialFailure
from isthmus.programs.sidecar.frontend import Credentials
from isthmus.programs.socks5_proxy.program import CODE_OF, code_for
from isthmus.wire.socks5 import Code


def test_every_failure_has_a_code() -> None:
    assert CODE_OF.keys() == set(DialFailure)
    assert Code.SUCCEEDED not in CODE_OF.values()


@pytest.mark.parametrize(
    ("failure", "detail", "code"),
    [
        (DialFailure.REFUSED, "", 5),
        (DialFailure.TIMED_OUT, "", 6),
        (DialFailure.UNREACHABLE, "10.0.0.1 port 80: EHOSTUNREACH", 4),
        (DialFailure.UNREACHABLE, "10.0.0.1 port 80: ENETUNREACH", 3),
        (DialFailure.UNREACHABLE, "dial tcp 10.0.0.1:80: connect: network is unreachable", 3),
        (DialFailure.UNREACHABLE, "", 4),
        (DialFailure.UNRESOLVED, "ENETUNREACH", 4),
        (DialFailure.DENIED, "", 2),
        (DialFailure.NO_AGENT, "", 1),
    ],
)
def test_codes(failure: DialFailure, detail: str, code: int) -> None:
    assert code_for(failure, detail) == code


def test_credentials() -> None:
    wanted = Credentials(b"me", b"secret")
    assert wanted.match(b"me", b"secret")
    for wrong in ((b"me", b"Secret"), (b"Me", b"secret"), (b"", b""), (b"me", b"secret\0")):
        assert not wanted.match(*wrong)
    assert "secret" not in repr(wanted)
