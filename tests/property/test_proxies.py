"""Proxies: what is written reads back, whatever is written has an answer, and secrets stay so."""

from __future__ import annotations

from base64 import b64decode
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError, ProtocolError
from isthmus.net.rules_proxies import ProxyAddress, ProxyRules
from isthmus.values import HostPort
from isthmus.wire.connect_answer import MAX_ANSWER_BYTES, ConnectAnswer, ConnectAsking

TARGET = HostPort("server.example", 8132)
places = st.sampled_from(["proxy.example", "10.1.2.3", "[2001:db8::1]"])
secret = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
entries = st.text(alphabet="a.*:[]/0128f, %", max_size=30)
cuts = st.lists(st.integers(1, 40), max_size=30)


@given(st.sampled_from(["http", "https"]), places, st.integers(1, 65535), secret, secret)
def test_an_address_reads_back(
    scheme: str, place: str, port: int, user: str, password: str
) -> None:
    who = f"{quote(user, safe='')}:{quote(password, safe='')}"
    proxy = ProxyAddress.parse(f"{scheme}://{who}@{place}:{port}")
    assert (proxy.user, proxy.password) == (user, password)
    assert str(proxy) == f"{scheme}://{place}:{port}"
    assert proxy.authorization is not None
    assert b64decode(proxy.authorization.removeprefix("Basic ")) == f"{user}:{password}".encode()


@given(st.one_of(st.text(max_size=60), st.text(alphabet="htps:/@[]%0a1. #?", max_size=30)))
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    try:
        proxy = ProxyAddress.parse(text)
    except ConfigError:
        return
    assert ProxyAddress.parse(str(proxy)).at == proxy.at


@given(st.one_of(entries, st.text(max_size=40)), st.one_of(places, st.text(max_size=20)))
def test_any_list_and_host_have_an_answer(no_proxy: str, host: str) -> None:
    rules = ProxyRules.from_environment({"HTTPS_PROXY": "p.example", "NO_PROXY": no_proxy})
    assert rules.proxy_for(host.strip("[]"), 8132) in (None, rules.proxy)
    if "*" in [entry.strip() for entry in no_proxy.split(",")]:
        assert rules.proxy_for(host, 8132) is None


def verdict(chunks: list[bytes]) -> ConnectAnswer | str | None:
    asking = ConnectAsking(TARGET)
    answer: ConnectAnswer | None = None
    for chunk in chunks:
        if answer is not None:
            # The reader has let go by now: more bytes are the target's, or a refusal's body.
            break
        try:
            answer = asking.receive(chunk)
        except ProtocolError:
            return "refused"
    return answer


heads = st.one_of(
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.0 200 Connection established\r\nVia: x\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204\r\n\r\n",
            b"HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_ANSWER_BYTES - 25) + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_ANSWER_BYTES - 24) + b"\r\n\r\n",
            b"SSH-2.0-x\r\n",
            b"HTTP/2 200\r\n\r\n",
        ]
    ),
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda tail: b"HTTP/1.1 " + tail),
)


@given(heads, cuts)
def test_the_verdict_does_not_depend_on_the_cuts(head: bytes, sizes: list[int]) -> None:
    chunks, at = [], 0
    for size in sizes:
        if at + size >= len(head):
            break
        chunks.append(head[at : at + size])
        at += size
    if head:
        whole = verdict([head])
        assert verdict([*chunks, head[at:]]) == whole
