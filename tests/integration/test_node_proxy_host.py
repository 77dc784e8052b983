"""The node proxy sets sysctls of a real kernel and follows its addresses, in its own namespace."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from own_network import needs_root, own_network

from isthmus.cli.main import main
from isthmus.programs.node_proxy.kernel.host import AddressChanges, addresses_of_host
from isthmus.programs.node_proxy.rules.model import IpFamily

pytestmark = needs_root
LIMIT_S = 20.0
SYS = Path("/proc/sys/net")
QUIET = ("--conntrack-max-per-core=0", "--oom-score-adj=0")


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, timeout=LIMIT_S)


def number(name: str) -> int:
    return int((SYS / name).read_text())


def test_init_only_sets_the_kernel_and_ends() -> None:
    with own_network():
        assert number("ipv4/conf/all/route_localnet") == 0
        flags = ["--init-only", *QUIET, "--conntrack-tcp-timeout-close-wait=42s"]
        assert main(["node-proxy", *flags]) == 0
        assert number("ipv4/conf/all/route_localnet") == 1
        assert number("netfilter/nf_conntrack_tcp_timeout_close_wait") == 42
        assert number("netfilter/nf_conntrack_tcp_timeout_established") == 86400


@pytest.mark.parametrize(
    "flag", ["--iptables-localhost-nodeports=false", "--nodeport-addresses=10.0.0.0/8",
             "--proxy-mode=nftables"],
)  # fmt: skip
def test_localhost_node_ports_are_only_prepared_where_they_can_be(flag: str) -> None:
    with own_network():
        assert main(["node-proxy", "--init-only", *QUIET, flag]) == 0
        assert number("ipv4/conf/all/route_localnet") == 0


def test_addresses_of_the_host() -> None:
    with own_network():
        ip("address", "add", "198.51.100.7/24", "dev", "lo")
        ip("address", "add", "198.51.100.8", "peer", "198.51.100.99", "dev", "lo")
        ip("address", "add", "fd00:7::7/64", "dev", "lo", "nodad")
        found = addresses_of_host()
        assert found[IpFamily.IPV4] == {"127.0.0.1", "198.51.100.7", "198.51.100.8"}
        assert found[IpFamily.IPV6] == {"::1", "fd00:7::7"}


def test_changes_of_addresses_are_heard_of() -> None:
    async def scenario() -> None:
        heard = asyncio.Event()
        changes = AddressChanges(heard.set)
        try:
            for args in (("add", "198.51.100.7/24"), ("del", "198.51.100.7/24")):
                heard.clear()
                ip("address", *args, "dev", "lo")
                async with asyncio.timeout(LIMIT_S):
                    await heard.wait()
        finally:
            changes.close()

    with own_network():
        asyncio.run(scenario())


def test_a_kubeconfig_that_is_not_there_is_found_before_anything_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with own_network():
        assert main(["node-proxy", *QUIET, f"--kubeconfig={tmp_path}/none"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"isthmus: cannot read --kubeconfig {tmp_path}/none: no such file")
        # And nothing was touched for it.
        assert number("ipv4/conf/all/route_localnet") == 0


def test_where_a_family_has_no_programs_there_is_nothing_to_clean_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("iptables", "iptables-save", "iptables-restore"):
        found = shutil.which(name)
        if found is None:
            pytest.skip("iptables is not installed")
        (tmp_path / name).symlink_to(found)
    with own_network():
        monkeypatch.setenv("PATH", str(tmp_path))
        assert main(["node-proxy", "cleanup"]) == 0
        monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
        assert main(["node-proxy", "cleanup"]) == 0
    assert capsys.readouterr().err == ""
