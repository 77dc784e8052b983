"""The doctor and the kernel: addresses, rules, routes and tools of a network of the test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from own_network import needs_root, own_network

from isthmus.cli.main import main
from isthmus.frame.finding import CheckId, CheckState, Finding
from isthmus.frame.patient import Patient, Running
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.node_proxy.doctor import see_sysctls, see_tools
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.settings.options import compose
from isthmus.tools.doctor.files import placed
from isthmus.tools.doctor.host import see_bind_address, see_routes
from isthmus.tools.pki.making import PkiFiles

pytestmark = needs_root

ADDRESS = "10.96.7.1"
SYS = Path("/proc/sys/net/ipv4")


@pytest.fixture(autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20)


def uplink(name: str, address: str, *, mtu: int = 1500) -> None:
    """An interface with a subnet, and a default route through it."""
    ip("link", "add", name, "mtu", str(mtu), "type", "veth", "peer", "name", f"{name}-peer")
    ip("address", "add", f"{address}/24", "dev", name)
    for each in (name, f"{name}-peer"):
        ip("link", "set", each, "up")
    ip("route", "add", "default", "dev", name, "metric", address.split(".")[1])


def states(findings: Iterable[Finding]) -> dict[CheckId, CheckState]:
    return {one.check: one.state for one in findings}


def agent(*hosts: str, **more: object) -> AgentSettings:
    return compose(AgentSettings, ca_cert="ca.crt", proxy_server_host=hosts, **more)  # type: ignore[arg-type]


def bound(*, runs: bool) -> Patient:
    settings = agent(
        "127.0.0.1",
        bind_address=(ADDRESS,),
        target=("6443:localhost:6443",),
        feature_gates=("EnableClusterToMasterTraffic=true",),
    )
    running = Running(url="http://127.0.0.1:1", program="agent") if runs else None
    return Patient(program="agent", settings=settings, running=running)


def test_an_address_that_is_not_there() -> None:
    assert states(see_bind_address(bound(runs=True))) == {CheckId.BIND_ADDRESS: CheckState.FAILED}
    assert states(see_bind_address(bound(runs=False))) == {CheckId.BIND_ADDRESS: CheckState.OK}


def test_an_address_that_somebody_else_put_there() -> None:
    ip("address", "add", f"{ADDRESS}/32", "dev", "lo")
    found = states(see_bind_address(bound(runs=True)))
    assert found == {
        CheckId.BIND_ADDRESS: CheckState.WARNING,
        CheckId.BIND_RULE: CheckState.WARNING,
    }


def test_an_address_with_its_rule_and_then_without() -> None:
    uplink("up0", "10.7.0.2")
    assert main(["agent", "setup-interface", f"--bind-address={ADDRESS}"]) == 0
    found = states(see_bind_address(bound(runs=True)))
    assert found == {CheckId.BIND_ADDRESS: CheckState.OK, CheckId.BIND_RULE: CheckState.OK}
    # In this network of our own, somebody flushes the firewall.
    subprocess.run(["nft", "flush", "ruleset"], check=True, timeout=20)
    found = states(see_bind_address(bound(runs=True)))
    assert found == {
        CheckId.BIND_ADDRESS: CheckState.OK,
        CheckId.BIND_RULE: CheckState.FAILED,
    }


def routed(host: str) -> dict[CheckId, Finding]:
    findings = see_routes(Patient(program="agent", settings=agent(host)))
    return {one.check: one for one in findings}


def test_no_route() -> None:
    found = routed("192.0.2.1")
    assert found[CheckId.ROUTE].state is CheckState.FAILED
    assert list(found) == [CheckId.ROUTE]


def test_a_route_and_its_mtu() -> None:
    uplink("up0", "10.7.0.2", mtu=1300)
    found = routed("192.0.2.1")
    assert found[CheckId.ROUTE].state is CheckState.OK
    assert "through up0" in found[CheckId.ROUTE].seen
    assert found[CheckId.MTU].state is CheckState.WARNING
    assert found[CheckId.MTU].seen == "1300 bytes"
    assert found[CheckId.RP_FILTER].state is CheckState.OK
    ip("link", "set", "up0", "mtu", "1500")
    assert routed("192.0.2.1")[CheckId.MTU].state is CheckState.OK


def test_an_interface_that_is_down_has_no_route() -> None:
    uplink("up0", "10.7.0.2")
    ip("link", "set", "up0", "down")
    assert routed("192.0.2.1")[CheckId.ROUTE].state is CheckState.FAILED


def test_strict_filters_with_two_uplinks() -> None:
    uplink("up0", "10.7.0.2")
    uplink("up1", "10.8.0.2")
    for name in ("all", "up0", "up1"):
        (SYS / "conf" / name / "rp_filter").write_text("0")
    assert routed("192.0.2.1")[CheckId.RP_FILTER].state is CheckState.OK
    (SYS / "conf/up0/rp_filter").write_text("1")
    finding = routed("192.0.2.1")[CheckId.RP_FILTER]
    assert finding.state is CheckState.WARNING
    assert "up0, up1" in finding.seen


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_the_tools_of_a_node_proxy(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    who = Patient(program="node-proxy", settings=NodeProxySettings(proxy_mode=mode))
    # An old nft is warned of; the node proxy's own rules do not go through it.
    assert {one.state for one in see_tools(who) if one.about != "nft"} == {CheckState.OK}
    monkeypatch.setenv("PATH", "/nowhere")
    findings = list(see_tools(who))
    wanted = CheckState.OK if mode == "nftables" else CheckState.FAILED
    assert {one.state for one in findings} == {wanted}
    assert f"--proxy-mode={mode}" in findings[0].about


def test_an_nft_that_crashes_of_others_sets_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nft = tmp_path / "nft"
    nft.write_text("#!/bin/sh\n[ $1 = --version ] && exec echo 'nftables v1.0.6'\nkill -SEGV $$\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    who = Patient(program="node-proxy", settings=NodeProxySettings(proxy_mode="nftables"))
    (finding,) = (one for one in see_tools(who) if one.about == "nft")
    assert finding.state is CheckState.WARNING
    assert "killed by SIGSEGV" in finding.seen
    assert "update nft" in finding.todo


def test_a_node_that_does_not_forward() -> None:
    who = Patient(program="node-proxy", settings=NodeProxySettings(proxy_mode="nftables"))
    for value, state in (("0", CheckState.FAILED), ("1", CheckState.OK)):
        (SYS / "ip_forward").write_text(value)
        found = {one.about: one.state for one in see_sysctls(who)}
        assert found["net.ipv4.ip_forward"] is state


def test_the_command_of_a_node_proxy(
    tmp_path: Path, certificates: PkiFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything together; its services come from files, so that no API is missed."""
    (SYS / "ip_forward").write_text("1")
    flags = [f"--manifests={tmp_path}", "--proxy-mode=nftables", "--cluster-cidr=10.1.0.0/16"]
    assert main(["doctor", "-v", "node-proxy", *flags]) in (0, 1)
    text = capsys.readouterr().out
    assert "ok       firewall-tools: --proxy-mode=nftables, IPv4" in text
    assert "ok       forwarding: net.ipv4.ip_forward" in text
    assert "ports: --healthz-bind-address 0.0.0.0:10256: tried to listen there: it is free" in text


def test_the_files_of_a_program_in_a_container(tmp_path: Path) -> None:
    """A mount namespace is what makes one, as far as files are concerned."""
    (tmp_path / "inside").mkdir()
    mount = ["mount", "-t", "tmpfs", "none", str(tmp_path / "inside")]
    script = 'shift; "$@" && echo ours > "$0/ca.crt" && echo ready && exec sleep 60'
    command = ["unshare", "-m", "sh", "-c", script, str(tmp_path / "inside"), "--", *mount]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            running = Running(url="http://127.0.0.1:1", program="agent", pid=process.pid)
            path = str(tmp_path / "inside" / "ca.crt")
            who = Patient(program="agent", settings=agent("127.0.0.1"), running=running)
            assert not Path(path).exists()
            assert placed(who, path).read_text() == "ours\n"
        finally:
            process.kill()
