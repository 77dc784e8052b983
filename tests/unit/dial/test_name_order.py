"""The order in which names are looked up, and the way that follows: every row of it."""

from __future__ import annotations

from itertools import product

import pytest

from isthmus.dial.rules_name_order import (
    Inquiry,
    NameRules,
    Outcome,
    Resolution,
    Source,
    Step,
    Way,
    chosen,
)
from isthmus.dial.rules_service_names import CloudApis
from isthmus.errors import DialFailure

SERVICE, GUEST, MANAGEMENT = Source.SERVICE, Source.GUEST_DNS, Source.MANAGEMENT_DNS
FOUND, NONE, FAILED = Outcome.FOUND, Outcome.NO_SUCH_NAME, Outcome.FAILED
SKIPPED, ERROR, HEADLESS = Outcome.SKIPPED, Outcome.ANSWERED_ERROR, Outcome.HEADLESS
CLOUD = CloudApis()
PLAIN = NameRules()
GUESTS = NameRules(guest_dns=True)
BOTH = NameRules(guest_dns=True, management_dns=True)
HTTPS = NameRules(guest_dns=True, must_resolve=True)
ADDRESS = {SERVICE: "10.0.0.1", GUEST: "10.0.0.2", MANAGEMENT: "192.0.2.3"}


def walk(name: str, rules: NameRules, *told: tuple[Source, Outcome]) -> Resolution:
    """Follow an inquiry; everybody is asked in the order that is told, and nobody else."""
    inquiry = Inquiry(name, rules)
    for source, outcome in told:
        assert inquiry.ahead is source
        addresses = (ADDRESS[source],) if outcome is FOUND else ()
        inquiry.took(Step(source=source, outcome=outcome, addresses=addresses))
    assert isinstance(inquiry.ahead, Resolution)
    return inquiry.ahead


@pytest.mark.parametrize(
    ("rules", "told", "way", "dialed"),
    [
        # 2: a Service, before anything else.
        (PLAIN, [(SERVICE, FOUND)], Way.TUNNEL, "10.0.0.1"),
        (BOTH, [(SERVICE, FOUND)], Way.TUNNEL, "10.0.0.1"),
        # 3: without the guest's DNS, that of this pod.
        (PLAIN, [(SERVICE, NONE), (MANAGEMENT, FOUND)], Way.TUNNEL, "192.0.2.3"),
        (PLAIN, [(SERVICE, FAILED), (MANAGEMENT, FOUND)], Way.TUNNEL, "192.0.2.3"),
        (PLAIN, [(SERVICE, NONE), (MANAGEMENT, NONE)], None, ""),
        # 4: the guest's.
        (GUESTS, [(SERVICE, NONE), (GUEST, FOUND)], Way.TUNNEL, "10.0.0.2"),
        (BOTH, [(SERVICE, NONE), (GUEST, FOUND)], Way.TUNNEL, "10.0.0.2"),
        (HTTPS, [(SERVICE, NONE), (GUEST, FOUND)], Way.TUNNEL, "10.0.0.2"),
        # A headless Service is known to the guest's DNS alone, whatever the flags say.
        (PLAIN, [(SERVICE, HEADLESS), (GUEST, FOUND)], Way.TUNNEL, "10.0.0.2"),
        (PLAIN, [(SERVICE, HEADLESS), (GUEST, NONE)], None, ""),
        # 5: it fails.
        (GUESTS, [(SERVICE, NONE), (GUEST, FAILED)], None, ""),
        (GUESTS, [(SERVICE, NONE), (GUEST, NONE)], None, ""),
        (BOTH, [(SERVICE, NONE), (GUEST, FAILED), (MANAGEMENT, FOUND)], Way.DIRECT, "192.0.2.3"),
        (BOTH, [(SERVICE, NONE), (GUEST, NONE), (MANAGEMENT, FOUND)], Way.DIRECT, "192.0.2.3"),
        (BOTH, [(SERVICE, NONE), (GUEST, ERROR), (MANAGEMENT, FOUND)], Way.DIRECT, "192.0.2.3"),
        # Both do: the name goes to the agent as it is.
        (BOTH, [(SERVICE, NONE), (GUEST, FAILED), (MANAGEMENT, NONE)], Way.TUNNEL, "api.web"),
        (BOTH, [(SERVICE, NONE), (GUEST, NONE), (MANAGEMENT, FAILED)], Way.TUNNEL, "api.web"),
        # 6: while the tunnel does not work.
        (BOTH, [(SERVICE, NONE), (GUEST, SKIPPED), (MANAGEMENT, FOUND)], Way.DIRECT, "192.0.2.3"),
        (BOTH, [(SERVICE, NONE), (GUEST, SKIPPED), (MANAGEMENT, NONE)], None, ""),
    ],
)
def test_every_row_of_the_order(
    rules: NameRules, told: list[tuple[Source, Outcome]], way: Way | None, dialed: str
) -> None:
    answer = walk("api.web", rules, *told)
    assert [step.source for step in answer.steps][: len(told)] == [source for source, _ in told]
    if way is None:
        assert answer.failure is DialFailure.UNRESOLVED
        assert answer.detail
    else:
        assert answer.failure is None
        assert answer.way is way
        assert (answer.addresses or (answer.host,)) == (dialed,)


def test_what_cannot_be_a_service_is_not_looked_for_among_them() -> None:
    assert walk("foo.bar.example.com", PLAIN, (MANAGEMENT, FOUND)).addresses == ("192.0.2.3",)
    assert walk("single", GUESTS, (GUEST, FOUND)).addresses == ("10.0.0.2",)


@pytest.mark.parametrize("rules", [PLAIN, BOTH, HTTPS, NameRules(enabled=False, cloud=CLOUD)])
@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_an_address_is_never_resolved(rules: NameRules, address: str) -> None:
    answer = walk(address, rules)
    assert answer.source is Source.ADDRESS
    assert answer.addresses == (address,)
    assert answer.way is Way.TUNNEL


@pytest.mark.parametrize("must", [False, True])
def test_1_a_cloud_api_goes_directly_by_its_name(must: bool) -> None:
    for enabled, guest, management in product([True, False], repeat=3):
        rules = NameRules(
            cloud=CLOUD,
            enabled=enabled,
            guest_dns=guest,
            management_dns=management,
            must_resolve=must,
        )
        answer = walk("ec2.amazonaws.com", rules)
        assert answer.way is Way.PROXIED
        assert answer.addresses == ()
        assert answer.host == "ec2.amazonaws.com"
        assert answer.steps[0].detail == "ends in .amazonaws.com"


def test_without_the_flag_a_cloud_api_is_a_name_as_any_other() -> None:
    assert walk("ec2.amazonaws.com", GUESTS, (GUEST, FOUND)).way is Way.TUNNEL


def test_1_a_resolver_that_is_off_leaves_names_to_the_agent() -> None:
    off = NameRules(enabled=False, guest_dns=True, management_dns=True)
    answer = walk("api.web", off)
    assert (answer.way, answer.addresses, answer.host) == (Way.TUNNEL, (), "api.web")
    assert [step.source for step in answer.steps] == [Source.RESOLVER_OFF, Source.AGENT]


def test_1_unless_names_have_to_be_resolved_here() -> None:
    off = NameRules(enabled=False, must_resolve=True)
    assert walk("api.web", off, (MANAGEMENT, FOUND)).addresses == ("192.0.2.3",)
    assert walk("api.web", off, (MANAGEMENT, NONE)).failure is DialFailure.UNRESOLVED


def test_a_name_that_must_be_resolved_never_goes_to_the_agent() -> None:
    rules = NameRules(guest_dns=True, management_dns=True, must_resolve=True)
    answer = walk("x.example.com", rules, (GUEST, FAILED), (MANAGEMENT, NONE))
    assert answer.failure is DialFailure.UNRESOLVED
    assert answer.detail == "guest DNS: failed; management DNS: no such name"


def alias(name: str) -> Step:
    return Step(source=SERVICE, outcome=Outcome.ALIAS, alias=name)


def test_an_external_name_is_resolved_as_that_name() -> None:
    inquiry = Inquiry("db.web", NameRules(guest_dns=True, cloud=CLOUD))
    assert inquiry.took(alias("db.other")) is SERVICE
    assert inquiry.took(alias("db.example.com")) is GUEST
    assert inquiry.name == "db.example.com"
    answer = inquiry.took(Step(source=GUEST, outcome=FOUND, addresses=("10.9.9.9",)))
    assert isinstance(answer, Resolution)
    assert (answer.name, answer.host) == ("db.web", "db.example.com")
    assert answer.addresses == ("10.9.9.9",)


def test_an_external_name_may_be_an_address_or_a_cloud_api() -> None:
    answer = Inquiry("db.web", PLAIN).took(alias("192.0.2.9"))
    assert isinstance(answer, Resolution)
    assert answer.addresses == ("192.0.2.9",)
    answer = Inquiry("db.web", NameRules(cloud=CLOUD)).took(alias("rds.amazonaws.com"))
    assert isinstance(answer, Resolution)
    assert (answer.way, answer.host) == (Way.PROXIED, "rds.amazonaws.com")


def test_external_names_in_a_circle_or_that_are_none_fail() -> None:
    inquiry = Inquiry("a.web", PLAIN)
    while inquiry.ahead is SERVICE:
        inquiry.took(alias("b.web" if inquiry.name == "a.web" else "a.web"))
    assert isinstance(inquiry.ahead, Resolution)
    assert inquiry.ahead.failure is DialFailure.UNRESOLVED
    assert len(inquiry.steps) == 9
    answer = Inquiry("a.web", PLAIN).took(alias("not a name"))
    assert isinstance(answer, Resolution)
    assert "not a host name" in answer.detail


@pytest.mark.parametrize(
    ("given", "prefer_ipv4", "expected"),
    [
        (["fd00::1", "10.0.0.1"], False, ("fd00::1", "10.0.0.1")),
        (["fd00::1", "10.0.0.1", "10.0.0.2"], True, ("10.0.0.1", "10.0.0.2")),
        (["fd00::1", "fd00::2"], True, ("fd00::1", "fd00::2")),
        (["10.0.0.1", "10.0.0.1"], False, ("10.0.0.1",)),
        ([], True, ()),
        ([f"10.0.0.{n}" for n in range(20)], False, tuple(f"10.0.0.{n}" for n in range(8))),
    ],
)
def test_ipv4_is_preferred_only_where_there_is_some(
    given: list[str], prefer_ipv4: bool, expected: tuple[str, ...]
) -> None:
    assert chosen(given, prefer_ipv4) == expected


def test_the_preference_is_for_every_source() -> None:
    inquiry = Inquiry("api.web", NameRules(prefer_ipv4=True))
    answer = inquiry.took(Step(source=SERVICE, outcome=FOUND, addresses=("fd00::1", "10.0.0.1")))
    assert isinstance(answer, Resolution)
    assert answer.addresses == ("10.0.0.1",)
    assert answer.steps[0].addresses == ("10.0.0.1",)
