"""Whose certificate is good where: by names that are listed, else by the mark of isthmus pki."""

from __future__ import annotations

import pytest

from isthmus.settings.rules_roles import CertificateName, Role, admits
from isthmus.values import ANONYMOUS, Identity

AGENT = Identity("isthmus-agent", ("isthmus:agents",))
CLIENT = Identity("isthmus-client", ("isthmus:clients",))
SERVER = Identity("isthmus-server", ("isthmus:servers",))
OTHER = Identity("kube-apiserver", ("system:masters",), sans=("Proxy.Example.com", "10.0.0.1"))
NAMELESS = Identity("anonymous", kind="none", sans=("spiffe://a/ns/b",))


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("who", [AGENT, CLIENT, SERVER, OTHER, NAMELESS, ANONYMOUS])
def test_without_names_only_the_mark_of_another_role_is_refused(role: Role, who: Identity) -> None:
    refusal = admits(role, "--names", ()).refusal(who)
    marked = [it for it in Role if it.value in who.groups]
    assert bool(refusal) == bool(marked and role not in marked), refusal


def test_a_certificate_may_be_for_several() -> None:
    both = Identity("x", ("isthmus:agents", "isthmus:clients"))
    assert not admits(Role.AGENT, "--names", ()).refusal(both)
    assert not admits(Role.CLIENT, "--names", ()).refusal(both)
    assert "an agent and a client, not for a server" in admits(Role.SERVER, "-", ()).refusal(both)


@pytest.mark.parametrize(
    ("name", "who", "fits"),
    [
        ("kube-apiserver", OTHER, True),
        ("kube-*", OTHER, True),
        ("KUBE-APISERVER", OTHER, False),
        ("proxy.example.COM", OTHER, True),
        ("*.example.com", OTHER, True),
        ("10.0.0.1", OTHER, True),
        ("10.0.0.2", OTHER, False),
        ("system:masters", OTHER, False),
        ("O=system:masters", OTHER, True),
        ("O=system:*", OTHER, True),
        ("O=kube-apiserver", OTHER, False),
        ("O=*", Identity("x"), False),
        ("*", ANONYMOUS, False),
        ("anonymous", ANONYMOUS, False),
        ("anonymous", NAMELESS, False),
        ("spiffe://a/ns/*", NAMELESS, True),
        ("isthmus-agent", AGENT, True),
    ],
)
def test_names_decide_alone(name: str, who: Identity, fits: bool) -> None:
    refusal = admits(Role.CLIENT, "--client-names", (name,)).refusal(who)
    assert (refusal == "") is fits
    assert fits or refusal.endswith("is none of --client-names")


@pytest.mark.parametrize("kind", ["uid", "token"])
def test_who_did_not_come_by_tls_has_no_role(kind: str) -> None:
    who = Identity("0", ("isthmus:agents",), kind=kind)
    assert not admits(Role.CLIENT, "--client-names", ("somebody",)).refusal(who)


@pytest.mark.parametrize("text", ["", "O=", "a[b]", "{node}", "x\n", "x" * 600, "O={node}"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError):
        CertificateName(text)
    with pytest.raises(ValueError):
        admits(Role.AGENT, "--agent-names", (text,))


def test_a_name_of_a_peer_is_cut_and_printable() -> None:
    refusal = admits(Role.CLIENT, "--client-names", ("a",)).refusal(Identity("\x1b" + "x" * 9999))
    assert len(refusal) < 300 and refusal.isprintable()


def test_matching_a_long_name_is_not_quadratic_in_stars() -> None:
    many = "*".join(["a"] * 200)
    assert not CertificateName(many + "b").covers(Identity("a" * 100_000))
