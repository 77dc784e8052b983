"""Reading shares: of a policy file, and of flags."""

from __future__ import annotations

import pytest

from isthmus.dial.rules_policy import Match, Per, Share
from isthmus.dial.settings_policy import parse
from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import compose
from isthmus.settings.program import quantity
from isthmus.text.patterns import Pattern

HEAD = """\
apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
default: allow
rules: []
shares:
"""


def read(text: str) -> tuple[Share, ...]:
    return parse(HEAD + text, "policy.yaml").shares


def test_everything_that_a_share_can_say() -> None:
    shares = read("""\
- name: batch
  match:
    requesters: ["certificate:batch-*"]
    groups: [batch]
    networks: [east]
  per: network
  maxTunnels: 100
  dialsPerSecond: 0.5
  dialBurst: 7
  bytesPerSecond: 10Mi
  burstBytes: 500k
- name: default
  dialsPerSecond: 3
  bytesPerSecond: 100000
""")
    assert shares == (
        Share(
            name="batch",
            match=Match(
                requesters=(Pattern("certificate:batch-*"),),
                groups=(Pattern("batch"),),
                networks=(Pattern("east"),),
            ),
            per=Per.NETWORK,
            max_tunnels=100,
            dials_per_s=0.5,
            dial_burst=7,
            bytes_per_s=10 * 2**20,
            burst_bytes=500_000,
        ),
        Share(
            name="default",
            dials_per_s=3.0,
            dial_burst=6,
            bytes_per_s=100_000,
            burst_bytes=100_000,
        ),
    )
    assert shares[0].where == "policy.yaml:6"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {name: a}", "limits nothing: it has none of maxTunnels, dialsPerSecond"),
        ("- {maxTunnels: 1}", "name: is missing"),
        ("- {name: a b, maxTunnels: 1}", "is not a name"),
        ("- {name: a, maxTunnels: 0}", "maxTunnels"),
        ("- {name: a, dialsPerSecond: 0}", "dialsPerSecond"),
        ("- {name: a, bytesPerSecond: 1Ki}", "is not between 64Ki and 1024Gi"),
        ("- {name: a, bytesPerSecond: 1.5Mi}", "is not a number of bytes such as 500k or 10Mi"),
        ("- {name: a, maxTunnels: 1, dialBurst: 3}", "says nothing without dialsPerSecond"),
        ("- {name: a, maxTunnels: 1, burstBytes: 3}", "says nothing without bytesPerSecond"),
        ("- {name: a, maxTunnels: 1, per: person}", "per"),
        ("- {name: a, maxTunnels: 1, maxTunnel: 1}", "unknown key"),
        ("- {name: a, maxTunnels: 1, match: {ports: [1]}}", "unknown key"),
        ("- {name: a, maxTunnels: 1, match: {groups: []}}", "is empty"),
        (
            "- {name: a, maxTunnels: 1}\n- {name: a, maxTunnels: 2}",
            "'a' is the name of shares[0] already",
        ),
    ],
)
def test_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith("policy.yaml:") and words in str(caught.value)


def test_a_policy_without_shares_has_none() -> None:
    assert parse(HEAD.replace("shares:\n", ""), "policy.yaml").shares == ()


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("2k", 2000), ("3Gi", 3 * 2**30)])
def test_quantities(text: str, number: int) -> None:
    assert quantity(text) == number


def test_flags() -> None:
    assert ServerSettings().shares.of_flags is None
    settings = compose(
        ServerSettings,
        max_tunnels_per_requester=5,
        max_dials_per_second_per_requester=1.5,
        max_bytes_per_second_per_requester="1Mi",
    )
    assert settings.shares.of_flags == Share(
        name="(flags)",
        max_tunnels=5,
        dials_per_s=1.5,
        dial_burst=3,
        bytes_per_s=2**20,
        burst_bytes=2**20,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            compose(ServerSettings, max_tunnels_per_requester=-1),
            "--max-tunnels-per-requester must be from",
        ),
        (
            compose(ServerSettings, max_dials_per_second_per_requester=-0.5),
            "--max-dials-per-second-per-requester must be 0 or at least 0.01, not -0.5",
        ),
        (
            compose(ServerSettings, max_bytes_per_second_per_requester="12"),
            "--max-bytes-per-second-per-requester 12 is not between 64Ki",
        ),
    ],
)
def test_flags_that_are_wrong(settings: ServerSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _ = settings.shares.of_flags
