"""What an egress selector cannot say becomes one that kube-apiserver takes; each change is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.dial.connectivity_files import load
from isthmus.dial.rules_connectivity import NetworkProtocol
from isthmus.dial.settings_connectivity_writing import (
    ProposalChoices,
    is_lost_by_egress,
    propose_egress,
    to_egress_selector,
)
from isthmus.errors import ConfigError

GOLDEN = Path(__file__).parents[2] / "golden" / "config"
#: As in KEP-1281, the whole of it.
SAMPLE = "".join(
    f"""\
---
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: {name}
  connection:
{connection}"""
    for name, connection in (
        ("direct", "    type: direct\n"),
        ("Master", "    type: grpc\n    url: grpc://1.2.3.4:5678\n    caBundle: file1.ca\n"),
        ("Cluster", "    type: grpc\n    url: grpc://1.2.3.5:5679\n    caBundle: file2.ca\n"),
    )
)


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "kep.yaml"
    path.write_text(SAMPLE)
    return path


@pytest.mark.parametrize("uds", ["", "/run/isthmus/{network}.sock"])
@pytest.mark.parametrize("name", ["lost-egress-selector", "lost-egress-selector-certificate"])
def test_a_proposal_is_one_that_can_be_read(name: str, uds: str, tmp_path: Path) -> None:
    config = load([str(GOLDEN / f"{name}.yaml")], check_files=False).config
    assert is_lost_by_egress(config)
    proposal = propose_egress(config, ProposalChoices(uds=uds))
    written = tmp_path / "egress.yaml"
    written.write_text(to_egress_selector(proposal.config))
    read = load([str(written)], check_files=False)
    assert not read.warnings and not is_lost_by_egress(read.config)
    ways = {it.connection.protocol for it in read.config.networks.values()}
    assert ways <= {NetworkProtocol.HTTP_CONNECT, NetworkProtocol.PACKET}
    # Whatever differs is told.
    told = "\n".join(proposal.changes)
    for network in config.networks.values():
        assert f"network {network.name} " in told
        for what in (*network.cidrs, *network.hosts):
            assert str(what) in told


def test_the_proposals_sample(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--client-cert=c.crt", "--client-key=c.key"]
    assert main(["config", "convert", str(sample), *flags]) == 0
    said = capsys.readouterr()
    assert said.out.count("proxyProtocol: HTTPConnect") == 2
    assert "url: https://1.2.3.4:5678" in said.out and "caBundle: file2.ca" in said.out
    assert said.out.count("clientCert: c.crt") == 2
    assert said.err.count("warning: ") == 5
    assert "network direct is left out: kube-apiserver dials directly" in said.err
    assert main(["config", "convert", str(sample), "--uds-name=/run/{network}.sock"]) == 0
    out = capsys.readouterr().out
    assert "udsName: /run/controlplane.sock" in out and "udsName: /run/cluster.sock" in out


def test_strict_refuses(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "convert", str(sample), "--strict"]) == 2
    said = capsys.readouterr()
    assert "without losing something" in said.err and not said.out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--client-cert=c.crt"], "--client-cert needs --client-key as well"),
        (["--uds-name=run/x.sock"], "--uds-name takes an absolute path of at most 107 bytes"),
        ([f"--uds-name=/{'x' * 107}"], "--uds-name takes an absolute path of at most 107 bytes"),
    ],
)
def test_what_is_given_makes_sense(
    sample: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    assert main(["config", "convert", str(sample), *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vpn.yaml"
    path.write_text(
        SAMPLE.replace("name: direct", "name: vpn").partition("---\n")[2].split("---")[0]
    )
    assert main(["config", "convert", str(path)]) == 2
    assert "network vpn: there are no networks but controlplane" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/run/\udcff", "/run/a\nb"], ids=["no UTF-8", "two lines"])
def test_a_path_that_cannot_be_written_is_refused(path: str) -> None:
    choices = ProposalChoices(client_cert=path, client_key=path), ProposalChoices(uds=path)
    for each in choices:
        with pytest.raises(ConfigError, match="takes a path in printable UTF-8, not '/run/"):
            each.check()
