import pytest

from isthmus.settings import identifiers
from isthmus.settings.identifiers import Identifiers


def test_reads_konnectivitys_own_example() -> None:
    text = (
        "host=localhost&host=node1.mydomain.com&cidr=127.0.0.1/16&ipv4=1.2.3.4&ipv4=5.6.7.8"
        "&ipv6=::1&default-route=true"
    )
    assert Identifiers.parse(text) == Identifiers(
        host=("localhost", "node1.mydomain.com"),
        cidr=("127.0.0.0/16",),
        ipv4=("1.2.3.4", "5.6.7.8"),
        ipv6=("::1",),
        default_route=True,
    )


def test_one_thing_has_one_text() -> None:
    assert Identifiers.parse("ipv6=0:0::01&host=A.B.&cidr=fd00::1/8") == Identifiers.parse(
        "cidr=fd00::%2F8&host=a.b&ipv6=%3A%3A1"
    )


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("default-route=true", True),
        ("default-route=1", True),
        ("default-route=false", False),
        ("default-route=false&default-route=true", False),
        ("", False),
    ],
)
def test_only_the_first_default_route_counts(text: str, route: bool) -> None:
    assert Identifiers.parse(text).default_route is route


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("defaultroute=true", "unknown key 'defaultroute', did you mean default-route?"),
        ("zzz=1", "unknown key 'zzz'"),
        ("host=", "host= is not a value for host"),
        ("host", "host= is not a value for host"),
        ("ipv4=1.2.3", "ipv4=1.2.3 is not a value for ipv4"),
        ("cidr=1.2.3.4/33", "cidr=1.2.3.4/33 is not a value for cidr"),
        ("default-route=yes", "default-route=yes is not a value for default-route"),
        ("host=a%zz", "a % must be followed by two hex digits"),
        ("x" * 9000, "longer than 8192 characters"),
        ("&".join(["host=a"] * 257), "more than 256 values"),
    ],
)
def test_an_agent_is_strict(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        Identifiers.parse(text)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("text", "kept", "keys"),
    [
        ("ipv4=1.2.3.4&ipv4=", "ipv4=1.2.3.4", ["ipv4"]),
        ("host=&ipv4=&default-route=true&host", "default-route=true", ["host", "ipv4", "host"]),
        ("ipv4=1.2.3.4&default-route=", "ipv4=1.2.3.4&default-route=", []),
        ("ipv4=&host=", "ipv4=&host=", []),
        ("ipv4=1.2.3.4", "ipv4=1.2.3.4", []),
        ("", "", []),
    ],
)
def test_an_empty_value_among_others_is_left_out(text: str, kept: str, keys: list[str]) -> None:
    assert Identifiers.without_empty(text) == (kept, keys)


def test_a_server_skips_empty_values() -> None:
    assert Identifiers.read_claim("ipv4=&ipv4=1.2.3.4&host") == Identifiers(ipv4=("1.2.3.4",))


def test_a_server_skips_keys_that_it_does_not_know() -> None:
    assert Identifiers.read_claim("color=red&ipv4=1.2.3.4") == Identifiers(ipv4=("1.2.3.4",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ipv4=1.2.3.4&ipv4=x", "ipv4=x is not a value for ipv4"),
        ("default-route=maybe", "default-route=maybe is not a value for default-route"),
        ("host=" + 500 * "/", f"host={100 * '/'} is not a value for host"),
    ],
)
def test_a_server_names_a_bad_value(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        Identifiers.read_claim(text)
    assert str(caught.value) == sentence


def test_a_server_looks_for_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    # Finding the nearest key takes milliseconds, and a peer may send thousands of unknown ones.
    monkeypatch.setattr(identifiers, "nearest", lambda *_: pytest.fail("asked for advice"))
    text = "&".join(["hosx=1", "host=a"] * 128)
    assert Identifiers.read_claim(text).host == ("a",) * 128
