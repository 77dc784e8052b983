"""Every flag in kube-proxy's own help, given to kube-proxy and to isthmus node-proxy.

Both write the settings that they made of it to a file: what a flag changes in kube-proxy's it has
to change in ours, and what ours refuses it has to refuse in one sentence.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.build import Binaries
from kube.programs import LIMIT_S

from isthmus.cli.main import main
from isthmus.text.durations import parse_duration

pytestmark = pytest.mark.interop

# "  -v, --v Level      number …": the word after the name is what it takes; none for a boolean.
_FLAG = re.compile(r"^\s+(?:-\w, )?--([a-z0-9-]+)(?: ([A-Za-z0-9]\S*))?(?:\s{2,}|$)", re.MULTILINE)
_BY_TYPE = {
    "duration": "7s",
    "int32": "7",
    "float32": "7.5",
    "ip": "10.1.2.3",
    "ipport": "127.0.0.9:7777",
    "quantity": "0",
    "mapStringBool": "AllAlpha=false",
}
_BY_NAME = {
    "cluster-cidr": "10.7.0.0/16,fd00:7::/48",
    "detect-local-mode": "NodeCIDR",
    "ipvs-exclude-cidrs": "10.8.0.0/16,fd00:8::/48",
    "kube-api-content-type": "application/json",
    "kubeconfig": "/etc/some.kubeconfig",
    "log-flush-frequency": "7s",
    "logging-format": "json",
    "nodeport-addresses": "10.9.0.0/16,fd00:9::/48",
    "pod-bridge-interface": "cbr7",
    "pod-interface-name-prefix": "veth7",
    "proxy-mode": "nftables",
    "show-hidden-metrics-for-version": "1.35",
    "v": "4",
    "vmodule": "proxier=4",
}
# What another flag has to say first.
_ALPHA = ["--feature-gates=LoggingAlphaOptions=true"]
_WITH = {
    "log-json-info-buffer-size": _ALPHA,
    "log-json-split-stream": _ALPHA,
    "log-text-info-buffer-size": _ALPHA,
    "log-text-split-stream": _ALPHA,
    "pod-bridge-interface": ["--detect-local-mode=BridgeInterface"],
    "pod-interface-name-prefix": ["--detect-local-mode=InterfaceNamePrefix"],
}
# They do something else than run, or name what cannot be here.
_ELSEWHERE = {"help", "version", "config", "cleanup", "init-only", "write-config-to"}
# Known to kube-proxy's file, and no part of ours.
_LEFT_OUT = ("featureGates", "logging.flushFrequency", "logging.vmodule", "logging.options")
# With another mode kube-proxy empties the section of the first.
_EMPTIED = {"proxy-mode": "iptables."}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as its help has it; ``kind`` is empty for a boolean."""

    name: str
    kind: str

    @property
    def words(self) -> list[str]:
        """It, with a value that is not its default."""
        value = _BY_NAME.get(self.name) or _BY_TYPE.get(self.kind) or "some"
        if not self.kind:
            value = "false" if self.name == "iptables-localhost-nodeports" else "true"
        return [*_WITH.get(self.name, ()), f"--{self.name}={value}"]


def flags_of(binaries: Binaries) -> list[Flag]:
    done = subprocess.run(
        [binaries.kube_proxy, "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    found = [Flag(*match.groups(default="")) for match in _FLAG.finditer(done.stdout)]
    assert {"proxy-mode", "v", "cluster-cidr", "masquerade-all"} <= {each.name for each in found}
    assert len(found) > 50, done.stdout
    return found


def theirs(binaries: Binaries, words: list[str], file: Path) -> dict[str, object]:
    argv = [str(binaries.kube_proxy), f"--write-config-to={file}", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return settings(file)


def settings(file: Path) -> dict[str, object]:
    found = yaml.safe_load(file.read_text())
    return {key: plain(value) for key, value in flat(found, "")}


def flat(section: dict[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def plain(value: object) -> object:
    """A value however it is written: 15m0s is 15m, and nothing is an empty list."""
    if isinstance(value, str) and re.fullmatch(r"(\d+(\.\d+)?(h|m|s|ms))+", value):
        return parse_duration(value)
    return value or None


def test_every_flag_means_the_same(
    kube_binaries: Binaries, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    before = theirs(kube_binaries, [], file)
    compared = set()
    for flag in flags_of(kube_binaries):
        if flag.name in _ELSEWHERE:
            continue
        wanted = theirs(kube_binaries, flag.words, file)
        file.unlink()
        assert main(["node-proxy", f"--write-config-to={file}", *flag.words]) == 0, flag
        assert "Traceback" not in capsys.readouterr().err
        ours = settings(file)
        for key, value in wanted.items():
            left_out = (*_LEFT_OUT, _EMPTIED.get(flag.name, "?"))
            if value == before.get(key) or key.startswith(left_out):
                continue
            assert ours[key] == value, (flag, key)
            compared.add(key)
    assert len(compared) > 40, compared


@pytest.mark.parametrize("name", sorted(_ELSEWHERE - {"help", "version"}))
def test_flags_that_do_something_else_are_there(
    kube_binaries: Binaries, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert name in {flag.name for flag in flags_of(kube_binaries)}
    assert main(["node-proxy", "--help"]) == 0
    assert re.search(rf"--{name}\b", capsys.readouterr().out)
    assert main(["node-proxy", "--version"]) == 2
    assert capsys.readouterr().err == "isthmus: unknown flag --version\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize(
    "words",
    [
        "--proxy-mode=userspace", "--proxy-mode=kernelspace", "--bind-address=here",
        "--cluster-cidr=10.0.0.0", "--cluster-cidr=10.0.0.0/33",
        "--cluster-cidr=10.0.0.0/8,11.0.0.0/8,12.0.0.0/8 --detect-local-mode=ClusterCIDR",
        "--conntrack-min=-1", "--conntrack-max-per-core=-1", "--conntrack-udp-timeout=-1s",
        "--detect-local-mode=Guess", "--detect-local-mode=BridgeInterface",
        "--detect-local-mode=InterfaceNamePrefix", "--healthz-bind-address=0.0.0.0:99999",
        "--iptables-masquerade-bit=32", "--iptables-masquerade-bit=-1",
        "--iptables-sync-period=0s", "--iptables-sync-period=-5s", "--iptables-sync-period=soon",
        "--iptables-min-sync-period=-1s",
        "--iptables-min-sync-period=40s --iptables-sync-period=30s",
        "--metrics-bind-address=[::1", "--nodeport-addresses=10.0.0.1",
        "--nodeport-addresses=primary,10.0.0.0/8", "--oom-score-adj=1001", "--oom-score-adj=-1001",
        "--kube-api-burst=-1", "--ipvs-exclude-cidrs=x --proxy-mode=ipvs",
    ],
)  # fmt: skip
def test_values_that_kube_proxy_refuses_are_refused_in_one_sentence(
    kube_binaries: Binaries, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    # In a namespace of its own: one that takes the value begins to work.
    argv = ["unshare", "--net", str(kube_binaries.kube_proxy), "--master=http://127.0.0.1:1"]
    done = subprocess.run(
        [*argv, *words.split()], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1, done.stderr
    file = tmp_path / "config.yaml"
    code = main(["node-proxy", f"--write-config-to={file}", *words.split()])
    said = capsys.readouterr().err
    assert (code, len(said.splitlines())) == (2, 1), said
    assert not file.exists()
