"""Which names are names of Services, and which complete names stand for them in DNS."""

from __future__ import annotations

import pytest

from isthmus.dial.rules_service_names import Service, ServiceName, guest_questions, service_name

DOMAIN = "cluster.local"


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("api.web", "web/api"),
        ("api.web.svc", "web/api"),
        ("api.web.svc.cluster.local", "web/api"),
        ("api.web.svc.cluster.local.", "web/api"),
        ("API.Web.SVC.Cluster.Local", "web/api"),
        ("4api.web", "web/4api"),
        ("a-b.c-d", "c-d/a-b"),
        # What merely begins like one.
        ("foo.bar.example.com", None),
        ("api.web.svc.example.com", None),
        ("api.web.svc.cluster", None),
        ("api.web.svc.cluster.local.example.com", None),
        ("api.web.pod.cluster.local", None),
        ("pod.api.web.svc.cluster.local", None),
        ("api.web.", None),
        ("api.web.svc.", None),
        ("api", None),
        ("api.", None),
        ("", None),
        (".", None),
        ("..", None),
        ("_https.web", None),
        ("-api.web", None),
        ("api.web-", None),
        ("a" * 64 + ".web", None),
        ("ä.web", None),
        ("api.svc.cluster.local", None),
    ],
)
def test_three_forms_are_names_of_services_and_nothing_else(host: str, named: str | None) -> None:
    found = service_name(host, DOMAIN)
    assert (str(found) if found else None) == named


def test_the_domain_of_a_cluster_may_be_another() -> None:
    assert service_name("api.web.svc.corp.example", "Corp.Example.") == ServiceName("web", "api")
    assert service_name("api.web.svc.cluster.local", "corp.example") is None


@pytest.mark.parametrize(
    ("host", "exists", "asked"),
    [
        ("api.web", True, ["api.web.svc.cluster.local"]),
        ("api.web", False, ["api.web"]),
        ("api.web", None, ["api.web.svc.cluster.local", "api.web"]),
        ("api.web.svc", False, ["api.web.svc.cluster.local"]),
        ("api.web.svc.cluster.local.", None, ["api.web.svc.cluster.local"]),
        ("Foo.Example.COM.", None, ["foo.example.com"]),
        ("api.web.", None, ["api.web"]),
        ("single", None, ["single"]),
        ("pod-0.api.web.svc.cluster.local", None, ["pod-0.api.web.svc.cluster.local"]),
    ],
)
def test_dns_is_asked_for_complete_names(host: str, exists: bool | None, asked: list[str]) -> None:
    assert list(guest_questions(host, DOMAIN, exists=exists)) == asked


@pytest.mark.parametrize("text", ["", "dns", "a/b/c", "A/b", "a/", "/b", "a b/c"])
def test_a_service_is_named_by_namespace_and_name(text: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        ServiceName.parse(text)
    assert str(ServiceName.parse("kube-system/kube-dns")) == "kube-system/kube-dns"


def test_a_service_says_at_which_port_its_dns_is() -> None:
    at = ServiceName("kube-system", "kube-dns")
    dns = Service(at=at, addresses=("10.0.0.10",), ports=(("metrics", 9153), ("dns-tcp", 5353)))
    assert dns.tcp_port("dns-tcp", 53) == 5353
    assert dns.tcp_port("other", 9153) == 9153
    assert dns.tcp_port("other", 53) == 9153
    assert Service(at=at, addresses=("10.0.0.10",)).tcp_port("dns-tcp", 53) == 53


def test_a_service_without_an_address_and_another_name_is_headless() -> None:
    at = ServiceName("web", "api")
    assert Service(at=at).headless
    assert not Service(at=at, external_name="example.com").headless
    assert not Service(at=at, addresses=("10.0.0.1",)).headless
