"""haproxy.cfg: what HyperShift writes becomes our own file, and every other line is told.

Run with UPDATE_GOLDEN=1 to write what is expected anew, and read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.apiserver_proxy.plan import Checks
from isthmus.programs.apiserver_proxy.settings_file import parse, write
from isthmus.programs.apiserver_proxy.settings_haproxy_cfg import convert
from isthmus.wire.proxy_protocol import Tlv

GOLDEN = Path(__file__).parents[3] / "golden" / "haproxy"


def converted(path: Path) -> str:
    try:
        found = convert(path.read_text(), path.name, ca="/etc/kubernetes/ca.crt")
    except ConfigError as error:
        return f"error:\n{error}\n"
    text = write(found.plan)
    assert parse(text, "own") == found.plan
    return "\n".join([text, *(f"# warning: {it}" for it in found.warnings)]) + "\n"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.cfg")), ids=lambda it: it.stem)
def test_as_expected(path: Path) -> None:
    expected = path.with_suffix(".txt")
    found = converted(path)
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(found)
    assert found == expected.read_text()


def test_without_a_ca_it_connects_only() -> None:
    found = convert((GOLDEN / "hypershift.cfg").read_text(), "haproxy.cfg")
    assert found.plan.check.kind is Checks.TCP
    assert (
        "haproxy.cfg:29: server controlplane names no ca-file: upstreams are checked by connecting"
        " only; with --ca-cert, isthmus asks for /version over TLS" in found.warnings
    )


def test_an_address_is_checked_by_the_name_that_every_apiserver_has() -> None:
    text = (GOLDEN / "shared-ingress.cfg").read_text()
    found = convert(text, "h.cfg", ca="/ca.crt")
    assert found.plan.check.server_name == "kubernetes.default.svc"
    assert any("20.1.2.3" in it and "kubernetes.default.svc" in it for it in found.warnings)
    named = text.replace("20.1.2.3:6443", "20.1.2.3:6443 check-sni api.example.com")
    assert convert(named, "h.cfg", ca="/ca.crt").plan.check.server_name == "api.example.com"
    assert not convert(text, "h.cfg").plan.check.server_name  # it connects only


@pytest.mark.parametrize(
    ("value", "tlv"),
    [
        ('%[str("a-1")]', "a-1"),
        ("%[str(a-1)]", "a-1"),
        ('%[str("a-1"),upper]', None),
        ('%[str("")]', None),
        ('%[str("a-1")]x', None),
        ("%[fc_pp_tlv(0x20)]", None),
    ],
)
def test_a_tlv_is_a_text_and_no_other_expression(value: str, tlv: str | None) -> None:
    text = (GOLDEN / "shared-ingress.cfg").read_text()
    text = re.sub(r"%\[str.*", lambda _: value, text)
    if tlv is None:
        with pytest.raises(ConfigError, match=r"h\.cfg:29:\d+: .* is not a fixed text"):
            convert(text, "h.cfg")
    else:
        assert convert(text, "h.cfg").plan.proxy_protocol == (Tlv(0x20, tlv.encode()),)


def test_the_dots_of_an_example_are_an_error_with_their_place() -> None:
    text = (GOLDEN / "hypershift.cfg").read_text().replace("  maxconn 7000\n", "...\n", 1)
    with pytest.raises(ConfigError, match=r"h\.cfg:2:1: '\.\.\.' in global cannot be converted"):
        convert(text, "h.cfg")


def test_retries_to_the_only_server_are_none() -> None:
    text = (GOLDEN / "hypershift.cfg").read_text()
    said = "retries 3"
    assert said in " ".join(convert(text, "h.cfg").warnings)
    for other in (text.replace("retries 3", "retries 0"), f"{text}  server b b.example.com:6443\n"):
        assert said not in " ".join(convert(other, "h.cfg").warnings)


def test_too_long() -> None:
    with pytest.raises(ConfigError, match=r"h\.cfg: longer than"):
        convert("#" * 2_000_000, "h.cfg")
