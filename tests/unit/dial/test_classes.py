"""Classes of traffic in a policy: what is read, what is wrong, and which rule decides."""

from __future__ import annotations

import pytest

from isthmus.dial.rules_policy import ClassRule, Match, Ports, Question, class_of, deciding
from isthmus.dial.settings_policy import parse
from isthmus.errors import ConfigError
from isthmus.text.patterns import Pattern
from isthmus.values import HostPort, Identity, TrafficClass

HEAD = "apiVersion: isthmus.dev/v1alpha1\nkind: ConnectivityPolicy\nrules: []\n"
CLASSES = (
    HEAD
    + """\
classes:
- name: execs
  class: normal
  match: {objects: ["namespaces/*/exec"]}
- name: webhooks
  class: urgent
  match: {requesters: ["certificate:kube-*"], networks: [east], ports: [443]}
- name: copies
  class: bulk
  match: {hosts: ["*.backup.svc"]}
"""
)
KUBE = Identity("kube-apiserver")


def asked(target: str, requester: Identity = KUBE, network: str = "east") -> Question:
    return Question(requester=requester, network=network, target=HostPort.parse(target))


def test_every_field_is_read() -> None:
    found = parse(CLASSES, "p.yaml")
    assert found.classes == (
        ClassRule(
            name="execs",
            traffic=TrafficClass.NORMAL,
            objects=(Pattern("namespaces/*/exec"),),
        ),
        ClassRule(
            name="webhooks",
            traffic=TrafficClass.URGENT,
            match=Match(
                requesters=(Pattern("certificate:kube-*"),),
                networks=(Pattern("east"),),
                ports=(Ports(443, 443),),
            ),
        ),
        ClassRule(
            name="copies",
            traffic=TrafficClass.BULK,
            match=Match(hosts=(Pattern("*.backup.svc", fold=True),)),
        ),
    )
    assert [rule.where for rule in found.classes] == ["p.yaml:5", "p.yaml:8", "p.yaml:11"]
    assert parse(HEAD, "p.yaml").classes == ()


@pytest.mark.parametrize(
    ("target", "about", "rule", "traffic"),
    [
        ("10.1.2.3:443", "", "webhooks", TrafficClass.URGENT),
        ("10.1.2.3:443", "namespaces/a/pods/b/exec", "execs", TrafficClass.NORMAL),
        ("10.1.2.3:443", "namespaces/a/pods/b/log", "webhooks", TrafficClass.URGENT),
        ("db.backup.svc:22", "", "copies", TrafficClass.BULK),
        ("10.1.2.3:22", "", "", TrafficClass.NORMAL),
    ],
)
def test_the_first_that_matches_decides(
    target: str, about: str, rule: str, traffic: TrafficClass
) -> None:
    policy = parse(CLASSES, "p.yaml")
    found = deciding(policy.classes, asked(target), about)
    assert (found.name if found is not None else "") == rule
    assert class_of(policy, asked(target), about) is traffic


def test_without_a_policy_everything_is_alike() -> None:
    assert class_of(None, asked("10.1.2.3:443")) is TrafficClass.NORMAL


def test_every_error_has_its_place() -> None:
    text = (
        HEAD
        + """\
classes:
- name: a
  class: fast
- name: a
  class: bulk
  weight: 3
  match: {objects: []}
- class: bulk
  match: {object: [x]}
- name: b
  class: urgent
  match: {objects: ["{node}"], cidrs: [10.0.0.1/8]}
"""
    )
    with pytest.raises(ConfigError) as caught:
        parse(text, "p.yaml")
    assert str(caught.value).splitlines() == [
        "p.yaml:6:10: classes[0].class: must be urgent, normal or bulk, not 'fast'",
        "p.yaml:7:3: classes[1]: 'a' is the name of classes[0] already (p.yaml:5)",
        "p.yaml:9:3: classes[1]: unknown key 'weight'",
        "p.yaml:10:20: classes[1].match.objects: is empty; leave it out to match everything",
        "p.yaml:11:3: classes[2].name: is missing",
        "p.yaml:12:11: classes[2].match: unknown key 'object', did you mean objects?",
        "p.yaml:15:21: classes[3].match.objects[0]: '{node}' has {node}, and only * stands for"
        " something here",
        "p.yaml:15:40: classes[3].match.cidrs[0]: '10.0.0.1/8' has bits below its prefix, did you"
        " mean 10.0.0.0/8?",
    ]


def test_there_can_be_too_many() -> None:
    many = "".join(f"- {{name: r{number}, class: bulk}}\n" for number in range(101))
    with pytest.raises(ConfigError, match="classes: has 101 items, at most 100 are possible"):
        parse(HEAD + "classes:\n" + many, "p.yaml")
