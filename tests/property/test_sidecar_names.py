"""Names of sidecars: whatever is asked or answered, there is an end to it, and a safe one."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise

import dns.message
import dns.rrset
from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_name_order import Inquiry, NameRules, Outcome, Resolution, Source, Step, Way
from isthmus.dial.rules_service_names import CloudApis, ServiceName, guest_questions, service_name
from isthmus.errors import DialFailure
from isthmus.net.dns_messages import DnsAnswer, DnsError, question, read_answer
from isthmus.net.tunnel_dns import DnsStream
from isthmus.programs.sidecar.rules_tunnel_health import TunnelAttempt, TunnelHealth
from isthmus.testing.ends import MemoryEnd
from isthmus.tunnel.end import join

DOMAIN = "cluster.local"
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
hosts = st.one_of(st.text(max_size=40), st.lists(labels, max_size=7).map(".".join))


@given(hosts)
def test_any_text_is_a_service_or_none(host: str) -> None:
    found = service_name(host, DOMAIN)
    questions = guest_questions(host, DOMAIN, exists=None)
    assert 1 <= len(questions) <= 2
    if found is not None:
        assert service_name(found.dns_name(DOMAIN), DOMAIN) == found
        assert found.dns_name(DOMAIN) in questions
    CloudApis().suffix_of(host)


@given(labels, labels, st.sampled_from(["", ".svc", ".svc.cluster.local", ".svc.cluster.local."]))
def test_each_form_names_the_service(name: str, namespace: str, rest: str) -> None:
    assert service_name(f"{name}.{namespace}{rest}", DOMAIN) == ServiceName(namespace, name)


@given(labels, labels, st.lists(labels, min_size=1, max_size=4).map(".".join))
def test_other_labels_behind_are_no_service(name: str, namespace: str, rest: str) -> None:
    found = service_name(f"{name}.{namespace}.{rest}", DOMAIN)
    assert found is None or rest in ("svc", "svc.cluster.local")


rules = st.builds(
    NameRules,
    cloud=st.sampled_from([None, CloudApis()]),
    enabled=st.booleans(),
    guest_dns=st.booleans(),
    management_dns=st.booleans(),
    must_resolve=st.booleans(),
    prefer_ipv4=st.booleans(),
)
addresses = st.lists(st.ip_addresses().map(str), min_size=1, max_size=12).map(tuple)
SERVICE_OUTCOMES = [Outcome.FOUND, Outcome.ALIAS, Outcome.HEADLESS, Outcome.NO_SUCH_NAME]
DNS_OUTCOMES = [Outcome.FOUND, Outcome.NO_SUCH_NAME, Outcome.FAILED, Outcome.SKIPPED]
names = st.sampled_from(["a.b", "a.b.svc", "x.example.com", "ec2.amazonaws.com", "192.0.2.1", "a"])


@given(rules, names, st.data())
def test_every_inquiry_ends_and_guest_addresses_are_never_dialed_directly(
    rules: NameRules, name: str, data: st.DataObject
) -> None:
    inquiry = Inquiry(name, rules)
    for _ in range(20):
        if isinstance(inquiry.ahead, Resolution):
            break
        of_service = inquiry.ahead is Source.SERVICE
        outcome = data.draw(st.sampled_from(SERVICE_OUTCOMES if of_service else DNS_OUTCOMES))
        found = data.draw(addresses) if outcome is Outcome.FOUND else ()
        alias = data.draw(st.one_of(names, st.text(max_size=5)))
        inquiry.took(Step(source=inquiry.ahead, outcome=outcome, addresses=found, alias=alias))
    answer = inquiry.ahead
    assert isinstance(answer, Resolution)
    assert (answer.failure is DialFailure.UNRESOLVED) == bool(answer.detail)
    last = answer.steps[-1]
    if answer.way is Way.DIRECT:
        assert last.source is Source.MANAGEMENT_DNS
        assert rules.management_dns
    if last.source in (Source.SERVICE, Source.GUEST_DNS) and answer.failure is None:
        assert answer.way is Way.TUNNEL
    if rules.must_resolve and answer.way is Way.TUNNEL and answer.failure is None:
        assert answer.addresses


moves = st.lists(
    st.tuples(st.sampled_from(["begin", "works", "fails", "drops"]), st.integers(0, 9))
)


@given(moves)
def test_there_is_never_more_than_one_retry(moves: list[tuple[str, int]]) -> None:
    health, now = TunnelHealth(retry_s=5), 0.0
    under_way: list[TunnelAttempt] = []
    began_at: list[float] = []
    for move, number in moves:
        now += number
        if move == "begin":
            attempt = health.begin(now=now)
            if attempt is not None:
                if attempt.retry:
                    began_at.append(now)
                under_way.append(attempt)
        elif under_way:
            attempt = under_way.pop(number % len(under_way))
            if move == "works":
                health.worked(attempt)
                began_at.clear()
            elif move == "fails":
                health.failed(attempt, now=now)
            else:
                health.dropped(attempt)
        current = [each for each in under_way if each.retry and each.epoch == health._epoch]
        assert len(current) <= 1
    assert all(later - earlier >= 5 for earlier, later in pairwise(began_at))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_an_error(wire: bytes) -> None:
    asked = question("www.example.com", "A")
    with contextlib.suppress(DnsError):
        assert isinstance(read_answer(asked, asked.id.to_bytes(2, "big") + wire), DnsAnswer)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=3))
def test_an_answer_with_bytes_changed_is_an_answer_or_an_error(at: int, junk: bytes) -> None:
    asked = question("www.example.com", "A")
    wire = bytearray(_response(asked.message))
    at %= len(wire)
    wire[at : at + len(junk)] = junk
    with contextlib.suppress(DnsError):
        assert isinstance(read_answer(asked, bytes(wire)), DnsAnswer)


def _response(query: dns.message.Message) -> bytes:
    response = dns.message.make_response(query)
    response.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", "192.0.2.1"))
    return response.to_wire()


@given(st.lists(st.integers(1, 30), max_size=20), st.binary(max_size=40))
def test_a_stream_may_be_cut_anywhere(cuts: list[int], behind: bytes) -> None:
    async def main() -> None:
        stream = DnsStream(asyncio.get_running_loop(), idle_s=1000)
        near = MemoryEnd()
        join(near, stream)
        asked = [question(f"n{number}.example.com", "A") for number in range(3)]
        futures = [stream.ask(each) for each in asked if not stream.has(each.id)]
        wires = [_response(each.message) for each in reversed(asked)]
        sent = b"".join(len(wire).to_bytes(2, "big") + wire for wire in wires) + behind
        while sent:
            size = cuts.pop() if cuts else 1
            stream.write(sent[:size])
            sent = sent[size:]
        for future in futures:
            assert (await future).addresses == ("192.0.2.1",)
        stream.cut()

    asyncio.run(main())
