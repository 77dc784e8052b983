from __future__ import annotations

import pytest

from isthmus.dial.settings_targets import MOST_TARGETS, Target, parse_target
from isthmus.errors import ConfigError
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.options import changed, compose
from isthmus.values import HostPort

ON = ("EnableClusterToMasterTraffic=true",)
GOOD = compose(
    AgentSettings,
    ca_cert="ca",
    agent_cert="c",
    agent_key="k",
    feature_gates=ON,
    bind_address=("10.96.0.1",),
    target=("6443:apiserver.example.com:6443",),
)
WRITTEN = "LOCAL_PORT:HOST:PORT, such as 6443:apiserver.example.com:6443 or 6443:[fd00::1]:6443"


@pytest.mark.parametrize(
    ("text", "local_port", "host", "port"),
    [
        # The two examples of KEP-2025.
        ("6443:apiserver.svc.cluster.local:6443", 6443, "apiserver.svc.cluster.local", 6443),
        (
            "6443:[2001:db8:1f70::999:de8:7648:6e8]:6443",
            6443,
            "2001:db8:1f70::999:de8:7648:6e8",
            6443,
        ),
        ("6443:localhost:443", 6443, "localhost", 443),
        ("1:10.0.0.1:65535", 1, "10.0.0.1", 65535),
        ("2001:db8:80", 2001, "db8", 80),
    ],
)
def test_the_order_of_today(text: str, local_port: int, host: str, port: int) -> None:
    target, warning = parse_target(text)
    assert target == Target(local_port, HostPort(host, port))
    assert warning == ""
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        # The example of the older draft.
        ("apiserver.svc.cluster.local:6443:6443", "6443:apiserver.svc.cluster.local:6443"),
        ("10.0.0.1:443:6443", "6443:10.0.0.1:443"),
        ("[fd00::1]:443:6443", "6443:[fd00::1]:443"),
        ("1e3:443:6443", "6443:1e3:443"),
    ],
)
def test_the_older_order_is_converted_with_a_warning(text: str, meant: str) -> None:
    target, warning = parse_target(text)
    assert str(target) == meant
    assert warning == (f"--target {text} is in the order of an older draft; write --target={meant}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", f"--target takes {WRITTEN}, not ''"),
        ("6443", f"--target takes {WRITTEN}, not '6443'"),
        ("localhost:6443", f"--target takes {WRITTEN}, not 'localhost:6443'"),
        (
            "6443:8443:443",
            "--target 6443:8443:443: there is no host in it: it reads as local port 6443 to host"
            " 8443, port 443, or in the older order as host 6443, port 8443, from local port 443",
        ),
        (
            "0:localhost:443",
            "--target 0:localhost:443: the local port must be from 1 to 65535, not '0'",
        ),
        (
            "65536:localhost:443",
            "--target 65536:localhost:443: the local port must be from 1 to 65535, not '65536'",
        ),
        (
            "localhost:443:x",
            "--target localhost:443:x: the local port must be from 1 to 65535, not 'x'",
        ),
        (
            "6443:fd00::1:443",
            "--target 6443:fd00::1:443: an IPv6 address needs brackets: 'fd00::1:443'",
        ),
        (
            "6443:[fd00::1:443",
            "--target 6443:[fd00::1:443: not an IPv6 address in brackets: '[fd00::1:443'",
        ),
        ("6443:localhost:0", "--target 6443:localhost:0: port out of range: 0"),
        (
            "6443:local host:1",
            "--target 6443:local host:1: not a host name or address: 'local host'",
        ),
        ("6443:localhost:https", "--target 6443:localhost:https: not a port: 'https'"),
        # getaddrinfo would read it as 127.0.0.1.
        ("6443:127.1:443", "--target 6443:127.1:443: not a host name or address: '127.1'"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_target(text)
    assert str(raised.value) == sentence
    with pytest.raises(ConfigError) as raised:
        changed(GOOD, target=(text,)).validate()
    assert str(raised.value) == sentence


def test_a_target_is_right_or_is_none() -> None:
    with pytest.raises(ValueError, match="port out of range: 0"):
        Target(0, HostPort("localhost", 443))


def test_good_settings_pass_without_a_warning() -> None:
    GOOD.validate()
    assert GOOD.warnings() == []
    assert GOOD.takes_node_traffic
    assert GOOD.node_traffic.targets == (Target(6443, HostPort("apiserver.example.com", 6443)),)
    assert GOOD.node_traffic.target_wait_s == 10.0
    nothing = changed(GOOD, target=(), bind_address=(), feature_gates=())
    nothing.validate()
    assert nothing.warnings() == []
    assert not nothing.takes_node_traffic


def test_several_targets_keep_their_order() -> None:
    settings = changed(GOOD, target=("8443:b:1", "6443:a:1"))
    settings.validate()
    assert [each.local_port for each in settings.node_traffic.targets] == [8443, 6443]


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        (
            {"bind_address": ""},
            "--target has no effect without --bind-address: only traffic from the control plane is"
            " served",
        ),
        ({"target": ()}, "--bind-address has no effect without --target: nothing is bound"),
        (
            {"feature_gates": ()},
            "--target and --bind-address have no effect without"
            " --feature-gates=EnableClusterToMasterTraffic=true: nothing is bound",
        ),
        (
            {"feature_gates": (), "target": ()},
            "--bind-address has no effect without"
            " --feature-gates=EnableClusterToMasterTraffic=true: nothing is bound",
        ),
        (
            {"feature_gates": (), "bind_address": ""},
            "--target has no effect without"
            " --feature-gates=EnableClusterToMasterTraffic=true: nothing is bound",
        ),
        (
            {"target": ("localhost:443:6443",)},
            "--target localhost:443:6443 is in the order of an older draft; write"
            " --target=6443:localhost:443",
        ),
    ],
)
def test_what_is_perhaps_not_meant_is_warned_about(
    changes: dict[str, object], warning: str
) -> None:
    settings = changed(GOOD, **changes)  # type: ignore[arg-type]  # names and values of its fields
    settings.validate()
    assert settings.warnings() == [warning]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"target": ("6443:a:1", "6443:b:2")},
            "--target: local port 6443 is given twice, for a:1 and for b:2",
        ),
        (
            {"target": ("6443:a:1", "a:1:6443")},
            "--target: local port 6443 is given twice, for a:1 and for a:1",
        ),
        (
            {"target": tuple(f"{port}:a:1" for port in range(1, MOST_TARGETS + 2))},
            "--target may be given 64 times at most, not 65",
        ),
        ({"target_wait_s": -1.0}, "--target-wait must not be negative"),
        (
            {"target": ("8093:a:1",)},
            "--target 8093:a:1: local port 8093 is the health port's, at every address; change"
            " --health-server-port, or set --health-server-host",
        ),
        ({"proxy_server_name": "a b"}, "--proxy-server-name: not a host name or address: 'a b'"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    settings = changed(GOOD, **changes)  # type: ignore[arg-type]  # names and values of its fields
    with pytest.raises(ConfigError) as raised:
        settings.validate()
    assert str(raised.value) == sentence


def test_the_health_port_is_only_in_the_way_where_it_is() -> None:
    changed(GOOD, target=("8093:a:1",), health_server_host="127.0.0.1").validate()
    changed(GOOD, target=("8093:a:1",), feature_gates=()).validate()
