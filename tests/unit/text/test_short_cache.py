"""Caches keyed by what peers send: bounded in bytes, and every other cache says why it is small."""

from __future__ import annotations

import ast
import tracemalloc
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import pytest

from isthmus.dial.frontends import grpc_proxy
from isthmus.errors import ProtocolError
from isthmus.frame.audit.model import requester_of
from isthmus.links import dials
from isthmus.net.rules_near import host_of
from isthmus.text.short_cache import key_bytes, short_cache
from isthmus.values import NORMAL, HostPort, Identity
from isthmus.wire.kep1281_pb2 import ConnectOptions
from isthmus.wire.link_pb2 import Dial
from isthmus.wire.payload import read_connect_options

ROOT = Path(__file__).parents[3] / "src" / "isthmus"
MIB = 1024 * 1024

#: functools' caches count entries and not bytes. Each is here with the reason why it stays small.
BOUNDED = {
    "programs/__init__.py:programs": "takes nothing: the list of programs",
    "programs/agent/target_dial.py:_target": "a HostPort: 253 characters, else it raises",
    "programs/agent/target_dial.py:_literal": "a HostPort: 253 characters",
    "net/rules_names.py:_see": "addresses of a resolver or the kernel: 64 characters",
    "frame/audit/model.py:_second": "whole seconds",
    "dial/settings_endpoint_lists.py:EndpointLists": "addresses of HostPorts: 45 characters",
    "frame/model/snapshot.py:_keys": "our own types",
    "frame/dashboard/delta.py:_cached_keys": "our own types",
    "frame/dashboard/delta.py:_getters": "our own types",
    "dial/dialers/direct.py:_literal": "a HostPort: 253 characters",
    "programs/sidecar/dialer_names.py:_of_address": "addresses: 45 characters",
    "dial/frontends/backend.py:_user": "numbers",
    "lab/probe.py:_context": "8 of our own settings",
    "links/dials.py:_success": "an address that was reached, as text: 255 characters",
    "net/connection_gate.py:source_named": "addresses that the kernel wrote: 64 characters",
    "programs/node_proxy/kernel/ipvs.py:_warn_deprecated": "one",
    "programs/node_proxy/rules/explaining_flow.py:_network": "a command that ends",
    "programs/node_proxy/rules/explaining_flow.py:parsed": "a command that ends",
    "programs/node_proxy/rules/explaining_iptables.py:parse_rule": "a command that ends",
    "programs/node_proxy/rules/iptables/ports.py:probability": "numbers",
    "programs/node_proxy/rules/nftables/compiling_rules.py:address_bytes": "addresses of objects",
    "programs/node_proxy/rules/nftables/compiling_rules.py:port_bytes": "numbers",
    "net/rules_nft_encoding.py:compare": "our own rules",
    "net/rules_nft_encoding.py:conntrack": "numbers",
    "net/rules_nft_encoding.py:fib": "numbers",
    "net/rules_nft_encoding.py:meta": "numbers",
    "net/rules_nft_encoding.py:payload": "numbers",
    "programs/node_proxy/rules/reading.py:_hints": "names of zones: 63 characters",
    "programs/node_proxy/rules/reading.py:_slice_port": "names of ports: 63 characters",
    "tunnel/http2.py:_greeting": "16 of our own limits",
    "wire/http_connect.py:_target": "a host and a port: 260 characters, else it raises",
    "wire/payload.py:payload_head": "numbers",
}


def caches() -> set[str]:
    """Every use of functools' caches, by file and function or class."""
    found = set()
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if "functools" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            if isinstance(node, ast.FunctionDef):
                made = [ast.unparse(it) for it in node.decorator_list]
            else:
                made = [ast.unparse(it.func) for it in ast.walk(node) if isinstance(it, ast.Call)]
            words = {it.partition("(")[0].rpartition(".")[2] for it in made}
            if words & {"lru_cache", "cache"}:
                found.add(f"{path.relative_to(ROOT)}:{node.name}")
    return found


def test_every_cache_that_counts_entries_says_why_it_is_small() -> None:
    assert caches() == set(BOUNDED), (
        "a new functools cache: use text/short_cache.py if a peer has a say in its keys, else"
        " say in BOUNDED why it stays small"
    )


def test_no_cache_may_be_larger_than_a_mebibyte() -> None:
    with pytest.raises(ValueError, match="cache of more than"):
        short_cache(1024, 2048)


def test_short_keys_are_kept_and_long_ones_are_not() -> None:
    asked: list[str] = []

    @short_cache(2, 200)
    def answer(text: str) -> str:
        asked.append(text)
        return text.upper()

    long = "x" * 201
    assert [answer(it) for it in ("a", long, "a", long)] == ["A", long.upper(), "A", long.upper()]
    assert asked == ["a", long, long]
    answer("b")
    answer("c")  # the third: the oldest goes
    assert [key for (key,) in answer.kept] == ["b", "c"]  # type: ignore[misc]


def test_a_key_counts_everything_that_it_keeps() -> None:
    assert key_bytes(("abc",)) == 64 + 64 + 3
    assert key_bytes("\U0001f600" * 10) == 64 + 40
    small, large = Identity("a"), Identity("a", sans=("b" * 1000,))
    assert key_bytes(large) - key_bytes(small) == 64 + 1000


def stuff(number: int) -> None:
    """Ask every function with a cache about one long text, another each time."""
    text = f"{number:08d}" * 2000
    identity = Identity(text, (text,))
    requester_of(identity)
    host_of(text)
    dials.said_alike(HostPort("a", 1), identity, NORMAL)
    dials.said_about(identity, dials.NOTHING)
    with suppress(ProtocolError):  # longer than it may be
        dials.heard_about(Dial(requester=text).SerializeToString())
    dials.requester_of(Dial(requester=text, requester_groups=[text]))
    grpc_proxy._said(((b":path", text.encode()),))
    # With a field that nobody knows: the target is a good one all the same.
    options = ConnectOptions(remote_addr="a:1").SerializeToString()
    unknown = b"\xa2\x06\x80\x7d" + text.encode()  # field 100, of 16,000 bytes
    assert read_connect_options(b64encode(options + unknown)) == HostPort("a", 1)


def test_what_peers_send_does_not_stay() -> None:
    stuff(0)
    tracemalloc.start()
    try:
        for number in range(1, 300):
            stuff(number)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # 300 rounds of about 150 kB each.
    assert kept < 2 * MIB, "more than the caches may keep"
