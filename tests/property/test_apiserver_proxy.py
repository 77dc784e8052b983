"""Whatever is in a file for the apiserver proxy, it is a plan or a ConfigError; plans read back."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.programs.apiserver_proxy.plan import CheckPlan, Checks, ProxyPlan
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.programs.apiserver_proxy.settings_file import parse, write
from isthmus.programs.apiserver_proxy.settings_haproxy_cfg import convert
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import Tlv

GOLDEN = Path(__file__).parents[1] / "golden" / "haproxy"
LINES = sorted({line for path in GOLDEN.glob("*.cfg") for line in path.read_text().splitlines()})
WORDS = sorted({word for line in LINES for word in line.split()})

names = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z]{2,5})?", fullmatch=True)
upstreams = st.builds(HostPort, names, st.integers(1, 65535))
texts = st.text(st.characters(codec="utf-8"), max_size=40)
seconds = st.integers(1, 86_400_000).map(lambda ms: ms / 1000)
plans = st.builds(
    ProxyPlan,
    listen=st.lists(
        st.tuples(st.sampled_from(["", "172.20.0.1", "fd00::1", "127.0.0.1"]),
                  st.integers(1, 65535)),
        min_size=1, max_size=3, unique=True,
    ).map(tuple),
    manage_address=st.booleans(),
    uplinks=st.lists(st.sampled_from(["eth0", "bond0.7"]), unique=True).map(tuple),
    upstreams=st.lists(upstreams, min_size=1, max_size=5, unique=True).map(tuple),
    check=st.builds(
        CheckPlan,
        kind=st.just(Checks.HTTPS),
        path=st.from_regex(r"/[a-z0-9/?&=%]{0,20}", fullmatch=True),
        ca=texts, server_name=st.just("") | names, interval_s=seconds, timeout_s=seconds,
        bounds=st.builds(Bounds, fall=st.integers(1, 100), rise=st.integers(1, 100)),
        accepted=st.lists(st.integers(400, 599)).map(tuple),
    ),
    connect_timeout_s=seconds,
    idle_timeout_s=st.just(0.0) | seconds,
    retries=st.integers(0, 16),
    max_connections=st.integers(1, 1_000_000),
    max_connections_per_source=st.integers(0, 1_000_000),
    resolve_every_s=seconds,
    proxy_protocol=st.none() | st.lists(
        st.builds(Tlv, st.sampled_from([1, 0x20, 0xE0]), texts.map(str.encode)), max_size=4
    ).map(tuple),
)  # fmt: skip


@given(plans)
def test_what_is_written_reads_back(plan: ProxyPlan) -> None:
    assert parse(write(plan), "f") == plan


@given(st.text(max_size=300))
def test_any_text_is_a_plan_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse(text, "f")
    with contextlib.suppress(ConfigError):
        convert(text, "f")


@given(st.lists(st.sampled_from(LINES) | st.lists(st.sampled_from(WORDS)).map(" ".join)))
def test_any_lines_of_haproxy_are_a_plan_or_a_config_error(lines: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        found = convert("\n".join(lines), "f", ca="/ca")
        assert parse(write(found.plan), "own") == found.plan
