"""Flags as an operator may see them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.settings.options import BLANK, blanked, options_of, shown_flags
from isthmus.settings.parsing import load

PROGRAMS = (
    ServerSettings, AgentSettings, ApiserverProxySettings, HttpsProxySettings, NodeProxySettings,
    SniRouterSettings, Socks5ProxySettings,
)  # fmt: skip


@pytest.mark.parametrize("settings", PROGRAMS, ids=lambda kind: kind.__name__)
def test_every_flag_is_shown_as_it_would_be_typed(settings: type) -> None:
    made: object = load(settings, {}, {})
    shown = shown_flags(made)
    assert list(shown) == [declared.flag for declared in options_of(settings)]
    assert not any(each["given"] for each in shown.values())
    # Typed again, they make the same settings.
    typed = {}
    for declared in options_of(settings):
        value = shown[declared.flag]["value"]
        texts = value if isinstance(value, list) else [value]
        if any(texts):
            typed[declared.attribute] = tuple(texts)
    assert load(settings, typed, {}) == made


def test_what_was_given_is_marked() -> None:
    made = load(AgentSettings, {"v": ("2",), "agent_id": ("node-1",)}, {})
    shown = shown_flags(made)
    assert shown["v"] == {"value": "2", "given": True}
    assert shown["agent-id"] == {"value": "node-1", "given": True}
    assert shown["proxy-server-host"] == {"value": ["127.0.0.1"], "given": False}
    # Made by a program and not by flags: what differs from the default.
    assert shown_flags(AgentSettings(agent_id="x"))["agent-id"]["given"]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("http://proxy:3128", "http://proxy:3128"),
        ("http://me@proxy:3128", f"http://{BLANK}@proxy:3128"),
        ("http://me:hush@proxy:3128", f"http://{BLANK}@proxy:3128"),
        ("http://me:hu@sh@proxy:3128/", f"http://{BLANK}@proxy:3128/"),
        ("http://me:hu/sh@proxy:3128", f"http://{BLANK}@proxy:3128"),
        ("http://me:hu#s?h@proxy:3128", f"http://{BLANK}@proxy:3128"),
        ("http://a:1,http://me:hush@b:2", f"http://a:1,http://{BLANK}@b:2"),
        ("me:hush@proxy:3128", f"{BLANK}@proxy:3128"),
        ("me:hu/sh@proxy:3128", f"{BLANK}@proxy:3128"),
        (
            "a=10.0.0.0/8;via=dialer:x?token=hush&zone=b",
            f"a=10.0.0.0/8;via=dialer:x?token={BLANK}&zone=b",
        ),
        ("dialer:x?my_password=hush", f"dialer:x?my_password={BLANK}"),
        ("https://x/v1?api_key=hush", f"https://x/v1?api_key={BLANK}"),
        ("https://x/#access_token=hush", f"https://x/#access_token={BLANK}"),
        ("/etc/token", "/etc/token"),
        ("10.0.0.1:443=api.example:6443", "10.0.0.1:443=api.example:6443"),
        ("me@example.com", "me@example.com"),
    ],
)
def test_secrets_are_blanked(typed: str, shown: str) -> None:
    assert blanked(typed) == shown


@given(st.text(st.characters(exclude_categories=["Z", "C"])))
def test_no_password_of_a_url_is_shown(password: str) -> None:
    secret = f"{password}QQ"
    assert secret not in blanked(f"http://me:{secret}@proxy.example:3128")
    assert secret not in blanked(f"me:{secret}@proxy.example:3128")
