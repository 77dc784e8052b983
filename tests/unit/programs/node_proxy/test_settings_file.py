"""kube-proxy's own file: what it says, where it is wrong, and writing it again."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.node_proxy.settings_file import document, overruled, parse
from isthmus.settings.options import compose
from isthmus.text.go_yaml import to_yaml

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

# What kubeadm writes: every key, most with the value that Go takes for nothing.
KUBEADM = (
    HEAD
    + """\
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"""
)


def read(text: str, **flags: Any) -> NodeProxySettings:
    found = parse(HEAD + text, "kp.yaml", compose(NodeProxySettings, **flags))
    found.validate()
    return found


def test_what_kubeadm_writes_is_all_defaults() -> None:
    found = parse(KUBEADM, "kp.yaml", NodeProxySettings())
    found.validate()
    assert found.kubeconfig == "/var/lib/kube-proxy/kubeconfig.conf"
    assert found.cluster_cidr == ("10.244.0.0/16",)
    default = NodeProxySettings()
    for name in ("healthz", "metrics", "mode", "sync_period_s", "min_sync_period_s", "log",
                 "oom_score_adj", "kube_api_qps", "kube_api_burst", "conntrack_max_per_core",
                 "conntrack_tcp_timeout_established_s", "iptables_localhost_nodeports",
                 "masquerade_bit", "config_sync_period_s"):  # fmt: skip
        assert getattr(found, name) == getattr(default, name), name


def test_every_kind_of_value() -> None:
    found = read(
        """\
mode: nftables
clusterCIDR: "10.0.0.0/8, fd00::/8"
nodePortAddresses: [10.0.0.0/8]
nftables: {masqueradeBit: 3, masqueradeAll: true, syncPeriod: 1m, minSyncPeriod: 500ms}
iptables: {masqueradeAll: false, localhostNodePorts: false}
conntrack: {maxPerCore: 0, tcpBeLiberal: true, udpTimeout: 10s}
clientConnection: {qps: 7.5}
healthzBindAddress: "[::]:10256"
logging: {format: json, verbosity: 5}
"""
    )
    assert found.mode == "nftables"
    assert found.cluster_cidr == ("10.0.0.0/8", "fd00::/8")
    assert found.node_port_ranges == ("10.0.0.0/8",)
    assert (found.masquerade_bit, found.masquerade_all) == (3, True)
    assert (found.sync_period_s, found.min_sync_period_s) == (60.0, 0.5)
    assert not found.iptables_localhost_nodeports
    assert (found.conntrack_max_per_core, found.conntrack_udp_timeout_s) == (0, 10.0)
    assert found.kube_api_qps == 7.5
    assert (found.log.log_format, found.log.v) == ("json", 5)
    assert found.healthz == ("::", 10256)


def test_sections_of_other_modes_are_no_news() -> None:
    assert parse(KUBEADM, "kp.yaml", NodeProxySettings()).notes() == []
    assert read("").notes() == []
    assert read("ipvs: {scheduler: lc}\n").notes() == []
    (note,) = read("clusterCIDR: 10.0.0.0/8\ndetectLocalMode: NodeCIDR\n").notes()
    assert note.startswith("kp.yaml:3: clusterCIDR is ignored")


def test_masquerade_all_is_that_of_the_mode() -> None:
    assert not read("mode: iptables\nnftables: {masqueradeAll: true}\n").masquerade_all
    assert read("mode: ipvs\niptables: {masqueradeAll: true}\n").masquerade_all


def test_flags_that_the_file_has_no_key_for_count() -> None:
    found = read("mode: iptables\n", detect_local="node-cidr", node_cidr=("10.0.0.0/24",))
    assert found.detector_mode == "node-cidr"
    assert found.node_cidr == ("10.0.0.0/24",)


def test_flags_that_it_has_a_key_for_do_not() -> None:
    found = read("mode: iptables\n", cluster_cidr=("10.0.0.0/8",), kubeconfig="elsewhere")
    assert found.cluster_cidr == ()
    assert found.kubeconfig == ""
    given = ["cluster_cidr", "hostname_override", "v", "detect_local", "healthz_port"]
    assert set(overruled(given)) == {"--cluster-cidr", "--healthz-port"}


def test_the_name_and_logging_flags_count_beside_it() -> None:
    found = read("hostnameOverride: file\nlogging: {verbosity: 3}\n", hostname_override="flag", v=5)
    assert (found.hostname_override, found.log.v) == ("flag", 5)
    assert read("hostnameOverride: file\n").hostname_override == "file"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "iptables:\n  masquradeBit: 3\n  syncPeriod: 30\nmodus: x\n",
            [
                "kp.yaml:4:3: iptables: unknown key 'masquradeBit', did you mean masqueradeBit?",
                "kp.yaml:5:15: iptables.syncPeriod: must be text, not '30' (YAML: int): put it in"
                " quotes",
                "kp.yaml:6:1: unknown key 'modus', did you mean mode?",
            ],
        ),
        (
            "mode: userspace\n",
            ["kp.yaml:3:7: mode: must be iptables or nftables or ipvs, not 'userspace'"],
        ),
        (
            "iptables: {syncPeriod: soon}\n",
            ["kp.yaml:3:24: iptables.syncPeriod: 'soon' is not a duration"],
        ),
        (
            "clusterCIDR: 10.0.0.1\n",
            ["kp.yaml:3: clusterCIDR: '10.0.0.1' has no prefix length"],
        ),
        (
            "iptables: {masqueradeBit: 40}\n",
            ["kp.yaml:3: iptables.masqueradeBit must be from 0 to 31, not 40"],
        ),
        (
            "detectLocalMode: BridgeInterface\n",
            ["--pod-bridge-interface is empty: kp.yaml:3: detectLocalMode=BridgeInterface"],
        ),
        ("conntrack: [1]\n", ["kp.yaml:3:12: conntrack: must be a mapping, not a list"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, sentences: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    found = str(caught.value).splitlines()
    starts = [line[: len(start)] for line, start in zip(found, sentences, strict=True)]
    assert starts == sentences


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "kind: KubeProxyConfiguration\n",
            "apiVersion is missing: .*kubeproxy.config.k8s.io/v1alpha1",
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n",
            "must be kubeproxy.config.k8s.io/v1alpha1",
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n",
            "must be KubeProxyConfiguration",
        ),
        ("", "is empty, .*KubeProxyConfiguration"),
    ],
)
def test_another_document(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse(text, "kp.yaml", NodeProxySettings())


@pytest.mark.parametrize("mode", ["", "nftables", "ipvs"])
def test_what_is_written_reads_the_same(mode: str) -> None:
    before = NodeProxySettings(
        proxy_mode=mode, cluster_cidr=("10.0.0.0/8", "fd00::/8"), masquerade_all=True,
        ipvs_exclude_cidrs=("10.9.0.0/16",), iptables_sync_period_s=12.0,
        metrics_bind_address="[::1]:9", detect_local_mode="ClusterCIDR",
    )  # fmt: skip
    written = document(before)
    after = parse(to_yaml([written]), "again.yaml", NodeProxySettings())
    after.validate()
    assert document(after) == written
    assert after.sync_period_s == before.sync_period_s
    assert after.masquerade_all


def test_the_settings_in_force_say_where_node_ports_are_taken() -> None:
    assert document(NodeProxySettings())["nodePortAddresses"] == []
    assert document(NodeProxySettings(proxy_mode="nftables"))["nodePortAddresses"] == ["primary"]


def test_keys_that_older_kube_proxies_had_are_taken() -> None:
    # Clusters that are upgraded keep their file, and kube-proxy reads over what it has forgotten.
    text = "udpIdleTimeout: 250ms\nresourceContainer: /kube-proxy\nconntrack: {max: 0, min: 7}\n"
    found = parse(HEAD + text, "old.conf", NodeProxySettings())
    assert found.conntrack_min == 7
